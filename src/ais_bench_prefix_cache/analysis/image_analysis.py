"""``analysis.json`` of an image data set: what the server counted, with no theory to compare it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ais_bench_prefix_cache.analysis.analysis_document import (
    USAGE_KEY,
    SnapshotTexts,
    Status,
    finish_document,
    known_run,
    measure,
    restored,
)
from ais_bench_prefix_cache.analysis.comparison import counted_section
from ais_bench_prefix_cache.analysis.diagnosis.evidence import Finding
from ais_bench_prefix_cache.analysis.run_facts import RunFacts
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.counters.difference import CounterDelta
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.scenario.model import ServiceConfig


@dataclass(frozen=True)
class ServerUsage:
    """Sums over the ``usage`` of all answers; None where the server did not say it for each of them."""

    requests: int
    prompt_tokens: int | None
    cached_tokens: int | None

    @classmethod
    def from_json(cls, section: Mapping[str, Any]) -> ServerUsage:
        """Back from ``asdict``."""
        return cls(**section)

    @classmethod
    def of_seen(cls, seen: Sequence[SeenRequest]) -> ServerUsage:
        """From what the sender saw of each answer."""
        prompt = [row.prompt_tokens for row in seen if row.prompt_tokens is not None]
        cached = [row.cached_tokens for row in seen if row.cached_tokens is not None]
        return cls(
            len(seen),
            sum(prompt) if len(prompt) == len(seen) else None,
            sum(cached) if len(cached) == len(seen) else None,
        )


def analyze_image_run(
    *,
    previous_analysis: Mapping[str, Any],
    baseline: SnapshotTexts,
    after: SnapshotTexts,
    service: ServiceConfig,
    status: Status,
    usage: ServerUsage | None = None,
    runtime: Mapping[str, Any] | None = None,
    facts: RunFacts | None = None,
) -> dict[str, Any]:
    """The counters between two looks, in the keys of ``analysis.json`` (without its digest).

    ``run`` hands in its ``runtime``, its ``facts`` and the server's ``usage``; ``analyze`` leaves them out, and what an
    earlier run left in ``previous_analysis`` is kept.

    Raises:
        SnapshotError: the texts cannot be compared.
        ArtifactError: ``previous_analysis`` holds what no run writes.
    """
    known = known_run(previous_analysis, runtime, facts)
    if usage is None and known.per_request is not None:
        usage = restored(ServerUsage.from_json, known.per_request, USAGE_KEY)
    measured = measure(baseline, after, service, known.facts)
    delta = measured.delta
    results: dict[str, Any] = {"actual": {**counted_section(delta, measured.after), "mm_cache": _mm_cache(delta)}}
    if usage is not None:
        results[USAGE_KEY] = asdict(usage)
    warnings = _queries_mismatch(delta, usage)
    return finish_document(previous_analysis, status, known, measured, results, warnings, [_no_theory(delta)])


def _mm_cache(delta: CounterDelta) -> dict[str, Any] | None:
    """Images looked up and found in the cache of processed images; None where the server shows no such counters."""
    queries, hits = delta.total(lambda counted: counted.mm_queries), delta.total(lambda counted: counted.mm_hits)
    if queries is None or hits is None:
        return None
    return {"queries": queries, "hits": hits, "hit_rate": hits / queries if queries else None}


def _queries_mismatch(delta: CounterDelta, usage: ServerUsage | None) -> list[dict[str, Any]]:
    """The server's counter against its own answers: the one thing that can be checked without a theory."""
    if usage is None or usage.prompt_tokens is None or delta.queries_source == "blocks":
        return []
    difference_tokens = delta.queries - usage.prompt_tokens
    if not difference_tokens:
        return []
    return [
        {
            "code": Code.QUERIES_MISMATCH.value,
            "message": f"the server counted {delta.queries} prompt tokens, its answers to this run add up to "
            f"{usage.prompt_tokens}: {abs(difference_tokens)} too {'many' if difference_tokens > 0 else 'few'}; "
            "another client may use the server",
            "expected_queries": usage.prompt_tokens,
            "counted_queries": delta.queries,
            "difference": difference_tokens,
        }
    ]


def _no_theory(delta: CounterDelta) -> Finding:
    return Finding(
        code=Code.NO_THEORY,
        severity="note",
        message=f"{delta.hits} of {delta.queries} prompt tokens were found in the prefix cache; there is no theory for "
        "images to compare this with. The same images stand before the text of every request, so all requests share "
        "the blocks from the chat template's beginning to the last image, and a high rate is to be expected",
        evidence={"queries": delta.queries, "hits": delta.hits, "mm_cache": _mm_cache(delta)},
        remedy="Read the counters as they are. For a hit rate that is known before the run, use a text data set.",
    )
