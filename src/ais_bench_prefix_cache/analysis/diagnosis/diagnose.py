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


def _lost_in_histories(evidence: Evidence) -> bool:
    """Whether all hits that are missing are missing in histories that were sent as messages."""
    history = evidence.facts.history
    return history is not None and 0 < evidence.hits_short <= history.lost_tokens


def diagnose(evidence: Evidence) -> list[Finding]:
    """Every finding that the evidence supports, the gravest first; none without evidence."""
    findings = list(server.unusable_snapshots(evidence))
    # What a chat loses by its histories would look like a cache that forgets, or one of larger blocks.
    of_cache = (cache.history_reencoded,) if _lost_in_histories(evidence) else cache.RULES
    for rule in (*traffic.RULES, *of_cache, *server.RULES):
        finding = rule(evidence)
        if finding is not None:
            findings.append(finding)
    explained = any(each.severity != "note" and each.code not in _NOT_EXPLAINING for each in findings)
    rest = None if explained else cache.unexplained(evidence)
    if rest is not None:
        findings.append(rest)
    return sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity))
