"""All rules applied to one run's evidence. ``docs/diagnosis.md`` has a section for each code."""

from __future__ import annotations

from ais_bench_prefix_cache.analysis.diagnosis import cache, server, traffic
from ais_bench_prefix_cache.analysis.diagnosis.evidence import Evidence, Finding, Severity
from ais_bench_prefix_cache.foundation.codes import Code

_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
_NOT_EXPLAINING = frozenset(
    {Code.COUNTERS_DISAGREE, Code.BLOCK_COUNTERS, Code.LOAD_GENERATOR_LIMIT, Code.REQUESTS_NOT_COMPARED}
)
"""Findings that may stand beside a shortfall of hits without being its reason."""


def diagnose(evidence: Evidence) -> list[Finding]:
    """Every finding that the evidence supports, the gravest first; none without evidence."""
    findings = list(server.unusable_snapshots(evidence))
    for rule in (*traffic.RULES, *cache.RULES, *server.RULES):
        finding = rule(evidence)
        if finding is not None:
            findings.append(finding)
    explained = any(each.severity != "note" and each.code not in _NOT_EXPLAINING for each in findings)
    rest = None if explained else cache.unexplained(evidence)
    if rest is not None:
        findings.append(rest)
    return sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity))
