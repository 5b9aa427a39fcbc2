"""Each page in Chinese says as much as the English one: the same headings, options, codes, fields and metrics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (
    "aisbench",
    "architecture",
    "artifacts",
    "benchmarks",
    "ci",
    "codes",
    "commands",
    "containers",
    "contributing",
    "diagnosis",
    "differences",
    "disaggregation",
    "embedded-server",
    "exact-prompts",
    "how-vllm-counts",
    "metrics",
    "offline-reanalysis",
    "planning",
    "routers-and-gateways",
    "python",
    "real-vllm",
    "running",
    "security",
    "servers",
    "sglang",
    "sweeps",
)

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


def said_on_one_page_only(pattern: re.Pattern[str], english: str, chinese: str) -> list[str]:
    in_english, in_chinese = (
        {each for each in pattern.findall(text) if not each.endswith(".md")} for text in (english, chinese)
    )
    return sorted(in_english ^ in_chinese)


@pytest.mark.parametrize("name", PAGES)
def test_headings_are_the_same(name: str) -> None:
    english, chinese = headings(page(name)), headings(page(name, "zh"))
    assert chinese == english


@pytest.mark.parametrize("name", PAGES)
def test_options_and_codes_are_the_same(name: str) -> None:
    english, chinese = page(name), page(name, "zh")
    if name == "commands":  # help breaks lines within options
        english = re.sub(r"-\n +", "-", english)
    assert said_on_one_page_only(OPTION, english, chinese) == []
    assert said_on_one_page_only(CODE, english, chinese) == []


@pytest.mark.parametrize("name", [name for name in PAGES if name != "commands"])
def test_fields_and_metrics_are_the_same(name: str) -> None:
    assert said_on_one_page_only(FIELD, prose(page(name)), prose(page(name, "zh"))) == []


def test_a_command_has_no_other_options_in_chinese() -> None:
    english, chinese = (
        dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page("commands", language), re.M | re.S))
        for language in ("", "zh")
    )
    for command, section in chinese.items():
        first_cells = " ".join(re.findall(r"^\| `(-.*?)` \|", section, re.MULTILINE))
        assert set(OPTION.findall(first_cells)) <= set(OPTION.findall(english[command])), command


def test_modules_named_in_chinese_are_those_of_the_english_map() -> None:
    """The table of modules and tests is on the English page only; test_architecture holds that against the files."""
    module = re.compile(r"`(\w+/\w[\w/.]*)`")
    english, chinese = (set(module.findall(page("architecture", language))) for language in ("", "zh"))
    assert len(chinese) > 30
    assert chinese <= english


def test_the_readme_lists_its_pages() -> None:
    readme = page("README", "zh")
    for path in sorted((DOCS / "zh").glob("*.md")):
        assert path.name == "README.md" or f"]({path.name})" in readme, path.name
