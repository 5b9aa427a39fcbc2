"""docs/architecture.md names every room, and for each module the test beside it or where else it is tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def architecture(project_root: Path) -> str:
    return (project_root / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tested_elsewhere(architecture: str) -> dict[str, str]:
    """Module → the test of the map."""
    rows = re.findall(r"^\| `(tests/[\w/]+\.py|make \w+)` \| (`.+`) \|$", architecture, re.MULTILINE)
    return {module: test for test, modules in rows for module in re.findall(r"`([\w/]+)`", modules)}


def test_every_room_has_its_sentence(architecture: str, project_root: Path) -> None:
    source = project_root / "src" / "ais_bench_prefix_cache"
    rooms = {path.name for path in source.iterdir() if (path / "__init__.py").is_file()}
    assert rooms == set(re.findall(r"^\| (?:`cli.py`, )?`(\w+)/` \|", architecture, re.MULTILINE))


def test_every_module_is_tested_where_the_map_says(tested_elsewhere: dict[str, str], project_root: Path) -> None:
    source, unit = project_root / "src" / "ais_bench_prefix_cache", project_root / "tests" / "unit"
    unmapped = []
    for path in sorted(source.rglob("*.py")):
        module = path.relative_to(source).with_suffix("")
        beside = unit / module.parent / f"test_{module.name}.py"
        if not path.stem.startswith("__") and not beside.is_file() and str(module) not in tested_elsewhere:
            unmapped.append(f"{module}: add {beside.relative_to(project_root)}, or a line to docs/architecture.md")
    assert unmapped == []
    gone = [module for module in tested_elsewhere if not (source / f"{module}.py").is_file()]
    gone += [test for test in tested_elsewhere.values() if "/" in test and not (project_root / test).is_file()]
    assert sorted(set(gone)) == [], "take these out of docs/architecture.md"


def test_what_the_text_names_exists(architecture: str, project_root: Path) -> None:
    """Modules in backquotes, as `room/module` or `room/module.function`."""
    source = project_root / "src" / "ais_bench_prefix_cache"
    rooms = "|".join(path.name for path in source.iterdir() if path.is_dir())
    named = re.findall(rf"`((?:{rooms})/[\w/]+)(?:\.(\w+))?`", architecture)
    assert len(named) > 100
    for module, attribute in named:
        path = source / f"{module}.py"
        assert (
            path.is_file() or (source / module).is_dir() or (attribute and (source / f"{module}.{attribute}").is_file())
        ), module
        if attribute and attribute != "py" and path.is_file():
            assert re.search(rf"^(def|class) {attribute}\b", path.read_text(encoding="utf-8"), re.MULTILINE), attribute
