"""All rules together: none without evidence, each documented, the gravest first."""

from __future__ import annotations

import re
from pathlib import Path

from tests.doubles.metric_texts import engine, vllm_text
from tests.doubles.run_evidence import COLD, EXACT, between, counted, facts, seen

from ais_bench_prefix_cache.analysis.diagnosis import cache, server, traffic
from ais_bench_prefix_cache.analysis.diagnosis.diagnose import diagnose

ROOT = Path(__file__).parents[4]


def test_no_finding_where_theory_equals_the_counter() -> None:
    assert diagnose(EXACT) == []
    assert diagnose(seen(EXACT, [0] + [64] * 9)) == []
    ranks = between(vllm_text(engine(0, 0), engine(0, 0)), vllm_text(engine(600, 320), engine(400, 256)), COLD, 2)
    assert diagnose(ranks) == []


def test_the_gravest_finding_comes_first() -> None:
    findings = diagnose(facts(counted(1010, 576, request_success=10, num_preemptions=1), dropped_blocks=1))
    assert [f.severity for f in findings] == sorted(
        (f.severity for f in findings), key=["error", "warning", "note"].index
    )
    assert {f.code for f in findings} == {"TOKENS_ADDED", "PREEMPTIONS", "SPECULATIVE_DECODING"}


def test_every_code_is_documented_and_named_in_the_tests_beside() -> None:
    used = set()
    for module in (cache, server, traffic):
        used |= set(re.findall(r"Code\.([A-Z_]+)", Path(str(module.__file__)).read_text(encoding="utf-8")))
    codes = {code for code in used if not code.startswith("SNAPSHOT_")}
    beside = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert {code for code in codes if f"Code.{code}" not in beside} == set()
    text = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### ([A-Z_]+)$", text, re.MULTILINE)) == codes


def test_what_the_documentation_says_was_seen_on_a_real_server_has_a_test_there() -> None:
    text = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    listed = re.search(r"brought about on a real vLLM .*?line: (.*?)\.\n", text, re.DOTALL)
    assert listed is not None
    claimed = set(re.findall(r"[A-Z_]{5,}", listed[1]))
    assert len(claimed) > 20
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "real").glob("test_*.py"))
    assert {code for code in claimed if f'"{code}"' not in tests and f"[{code}]" not in tests} == set()
