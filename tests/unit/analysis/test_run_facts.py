"""What a run found out survives the JSON of the analysis."""

from __future__ import annotations

import json

from ais_bench_prefix_cache.analysis.run_facts import CachePrediction, ResetFact, RunFacts


def test_facts_survive_their_json() -> None:
    facts = RunFacts(
        reset=ResetFact(accepted=True, attempts=2, hits_after={0: 0, 1: 64}),
        cache_prediction=CachePrediction(1280, 32, 4),
        assumed_empty=True,
        probed_block_size=16,
        dropped_blocks=1,
        hybrid_warmup=True,
        retried_requests=0,
        failed_requests=2,
        aisbench_warmups=0,
        engine_label_map={"a": 0},
    )
    assert RunFacts.from_json(json.loads(json.dumps(facts.as_json()))) == facts


def test_what_was_not_looked_at_is_left_out() -> None:
    assert RunFacts().as_json() == {}
    assert RunFacts.from_json({}) == RunFacts()
    assert RunFacts(failed_requests=0).as_json() == {"failed_requests": 0}
