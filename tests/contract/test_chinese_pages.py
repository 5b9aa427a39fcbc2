"""Each page in Chinese says as much as the English one: the same headings, options, codes, fields and metrics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("artifacts", "ci", "commands", "diagnosis", "differences", "embedded-server", "metrics", "running")

OPTION = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*")
CODE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
FIELD = re.compile(r"`([a-z_:]+(?:[._<>a-z]+)?)`(?!\]\()")


def page(name: str, language: str = "") -> str:
    return (DOCS / language / f"{name}.md").read_text(encoding="utf-8")


def prose(text: str) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(text: str) -> list[tuple[int, str]]:
    """Level, and the heading itself where it is a name of the program."""
    found = re.findall(r"^(#+) (.+)$", prose(text), re.MULTILINE)
    return [(len(level), title if re.fullmatch(r"[A-Z_]+|[a-z]+", title) else "") for level, title in found]


@pytest.mark.parametrize("name", PAGES)
def test_headings_are_the_same(name: str) -> None:
    assert headings(page(name, "zh")) == headings(page(name))


@pytest.mark.parametrize("name", PAGES)
def test_options_and_codes_are_the_same(name: str) -> None:
    """Beyond what the English page says, a Chinese one may only repeat what is said elsewhere."""
    english, chinese = page(name), page(name, "zh")
    if name == "commands":  # help breaks lines within options
        english = re.sub(r"-\n +", "-", english)
    assert sorted(set(OPTION.findall(english)) ^ set(OPTION.findall(chinese))) == []
    assert sorted(set(CODE.findall(english)) ^ set(CODE.findall(chinese))) == []


@pytest.mark.parametrize("name", [name for name in PAGES if name != "commands"])
def test_fields_and_metrics_are_the_same(name: str) -> None:
    differing = set(FIELD.findall(prose(page(name)))) ^ set(FIELD.findall(prose(page(name, "zh"))))
    assert sorted(field for field in differing if not field.endswith(".md")) == []


def test_every_command_has_its_own_options_in_chinese() -> None:
    english, chinese = (
        dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page("commands", language), re.M | re.S))
        for language in ("", "zh")
    )
    assert english.keys() == chinese.keys()
    for command, section in english.items():
        declared = {
            option for line in section.splitlines() if re.match(r"  -", line) for option in OPTION.findall(line)
        }
        first_cells = " ".join(re.findall(r"^\| `(-.*?)` \|", chinese[command], re.MULTILINE))
        assert declared - {"--help"} == set(OPTION.findall(first_cells)), command


def test_the_readmes_list_their_pages() -> None:
    readme = page("README", "zh")
    for path in sorted((DOCS / "zh").glob("*.md")):
        assert path.name == "README.md" or f"]({path.name})" in readme, path.name
