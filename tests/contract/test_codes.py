"""Every code stands once in ``foundation/codes.py``: with a sentence, used, and known to the documents."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ais_bench_prefix_cache.foundation.codes import Code

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for path in sorted((ROOT / "src").rglob("*.py")) if path.name != "codes.py"]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
OTHER_NAMES = {"AISBENCH_PREFIX_CACHE", "VLLM", "PYTHON", "HF", "BEST_EFFORT", "PASS_WITH_WARNING", "NO_PROXY"}
"""What looks like a code in the documents and is a variable or a verdict; of variables the beginning."""


def test_a_code_is_its_name_and_has_one_sentence() -> None:
    assert [code.value for code in Code] == list(Code.__members__)  # an alias would be missing on the left
    for code in Code:
        assert re.fullmatch(r"[A-Z][^\n]*[^ .]\.", code.sentence), code
    sentences = [code.sentence for code in Code]
    assert len(set(sentences)) == len(sentences), "two codes mean one thing"


def test_codes_are_used_and_written_nowhere_else() -> None:
    used: set[str] = set()
    literal: list[str] = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Code":
                used.add(node.attr)
            elif isinstance(node, ast.Constant) and node.value in Code.__members__:
                literal.append(f"{path.name}:{node.lineno} {node.value!r}")
    assert literal == []
    assert sorted(set(Code.__members__) - used) == []


def test_the_page_of_codes_is_the_list() -> None:
    rows = [f"| `{code}` | {code.sentence} |" for code in sorted(Code)]
    page = (ROOT / "docs" / "codes.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("| `")] == rows


def test_the_page_in_chinese_has_a_sentence_for_every_code() -> None:
    page = (ROOT / "docs" / "zh" / "codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+。) \|$", page, re.MULTILINE)
    assert [code for code, _ in rows] == sorted(Code)
    assert len({sentence for _, sentence in rows}) == len(rows), "two codes mean one thing"


def test_the_documents_name_no_other_codes() -> None:
    unknown = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        headings = re.findall(r"^### ([A-Z]+(?:_[A-Z0-9]+)+)$", text, re.MULTILINE)
        for word in [*headings, *re.findall(r"`([A-Z]+(?:_[A-Z0-9]+)+)`", text)]:
            if word not in Code.__members__ and not any(word.startswith(name) for name in OTHER_NAMES):
                unknown.append(f"{page.name}: {word}")
    assert unknown == []
