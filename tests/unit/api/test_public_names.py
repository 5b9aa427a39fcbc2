"""What ``import ais_bench_prefix_cache`` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.scenarios import scenario_file

import ais_bench_prefix_cache as pc
from ais_bench_prefix_cache.reporting.notebook import html_tables


def test_every_public_name_is_documented_and_there(project_root: Path) -> None:
    page = (project_root / "docs" / "python.md").read_text(encoding="utf-8")
    for name in pc.__all__:
        assert getattr(pc, name).__doc__
        assert f"pc.{name}(" in page or f"`{name}`" in page, name
    assert set(pc.__all__) <= set(dir(pc))
    with pytest.raises(AttributeError, match="has no attribute 'plam'"):
        pc.plam  # noqa: B018


def test_the_import_loads_no_library() -> None:
    code = "import sys; before = set(sys.modules); import ais_bench_prefix_cache; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert imported <= {*sys.stdlib_module_names, "ais_bench_prefix_cache"}


def test_a_plan_is_a_frozen_record_without_files(tmp_path: Path) -> None:
    path = scenario_file(tmp_path)
    there = sorted(tmp_path.iterdir())
    planned = pc.plan(path, {"prefix_cache.target_hit_rate": 0.25, "requests.count": 8})
    assert planned.scenario.requests.count == 8
    assert planned.summary["requested_target_hit_rate"] == 0.25
    assert sorted(tmp_path.iterdir()) == there
    with pytest.raises(FrozenInstanceError):
        planned.theoretical_hit_rate = 1.0  # type: ignore[misc]


def test_a_loaded_scenario_keeps_its_settings_and_notices_an_edit(tmp_path: Path) -> None:
    path = scenario_file(tmp_path)
    scenario = pc.load_scenario(path, {"requests.count": 7})
    assert len(pc.plan(scenario).plan) == 7
    assert len(pc.plan(scenario, {"requests.count": 5}).plan) == 5
    path.write_text(path.read_text() + "\n")
    with pytest.raises(pc.PrefixCacheError, match="the file was changed after the Scenario had been loaded"):
        pc.plan(scenario)


def test_without_pandas_an_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: Any = None
    monkeypatch.setitem(sys.modules, "pandas", hidden)
    with pytest.raises(pc.PrefixCacheError) as caught:
        pc.plan(scenario_file(tmp_path)).to_pandas()
    assert str(caught.value) == (
        "to_pandas: pandas is not installed\n"
        "    pip install pandas; without it the result's own fields have the same figures"
    )


def test_html_is_escaped() -> None:
    assert html_tables("<a>", [("<b>", ("", "<c>"), [("<d>", "<e>")])], ["<f>"]) == (
        "<p><strong>&lt;a&gt;</strong></p>\n"
        '<table><caption>&lt;b&gt;</caption><tr><th scope="col"></th><th scope="col">&lt;c&gt;</th></tr>'
        '<tr><th scope="row">&lt;d&gt;</th><td>&lt;e&gt;</td></tr></table>\n'
        "<ul><li>&lt;f&gt;</li></ul>"
    )
