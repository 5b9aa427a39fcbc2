"""The commands that docs/kv-cache.md and its translation show print what the pages show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ais_bench_prefix_cache.cli import main

PROJECT = Path(__file__).resolve().parent.parent.parent
PAGES = ["docs/kv-cache.md", "docs/zh/kv-cache.md"]
EXAMPLE = re.compile(r"^```console\n\$ ais-bench-prefix-cache (.*)\n([\s\S]*?)^```$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_examples_print_what_the_page_shows(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PROJECT / "docs")
    examples = EXAMPLE.findall((PROJECT / page).read_text(encoding="utf-8"))
    assert len(examples) == 4
    for command, shown in examples:
        assert main(command.split()) == 0
        assert capsys.readouterr().out == shown
