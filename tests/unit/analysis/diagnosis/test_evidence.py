"""What a finding is in a document."""

from __future__ import annotations

from collections.abc import Callable

from ais_bench_prefix_cache.analysis.diagnosis.evidence import Finding
from ais_bench_prefix_cache.foundation.codes import Code

Prom = Callable[[str], str]


def test_findings_are_json_ready() -> None:
    assert Finding(Code.NO_THEORY, "note", "m", {"n": 1}, "r").as_json() == {
        "code": "NO_THEORY",
        "severity": "note",
        "message": "m",
        "evidence": {"n": 1},
        "remedy": "r",
    }
