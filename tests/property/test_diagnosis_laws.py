"""Causes at random, one or two at once: no finding states another cause than those, unless it names rivals."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.doubles.metric_texts import engine, vllm_text
from tests.doubles.run_evidence import between

from ais_bench_prefix_cache.analysis.diagnosis.diagnose import diagnose
from ais_bench_prefix_cache.analysis.diagnosis.evidence import Evidence
from ais_bench_prefix_cache.analysis.planned_traffic import PlannedTraffic, RequestColumns
from ais_bench_prefix_cache.analysis.request_comparison import compare_requests
from ais_bench_prefix_cache.analysis.run_facts import RunFacts
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.foundation.token_share import TokenShare

MAY_SAY = {
    "bos": {"TOKENS_ADDED"},
    "retry": {"RETRIES", "FOREIGN_TRAFFIC"},
    "missing": {"REQUESTS_MISSING"},
    "preemption": {"PREEMPTIONS"},
    "stranger": {"FOREIGN_TRAFFIC"},
    "all again": {"FOREIGN_TRAFFIC"},
    "reset": set(),
    "salt": set(),
    "eviction": set(),
}
"""What each cause may be called. Of missing and additional hits alone nothing can be said."""
OF_HITS_ALONE = {"HITS_MISSING"}


@dataclass
class Run:
    """Ten times as simple as a server: what each request counts and hits, and what is counted beside them."""

    block: int
    input_tokens: list[int]
    planned_hits: list[int]

    def __post_init__(self) -> None:
        self.queries, self.hits = list(self.input_tokens), list(self.planned_hits)
        self.attempts = [1] * len(self.queries)
        self.more_queries = self.more_hits = self.preemptions = 0
        self.finished = len(self.queries)

    def _again(self, index: int) -> None:
        self.more_queries += self.input_tokens[index]
        self.more_hits += (self.input_tokens[index] - 1) // self.block * self.block
        self.finished += 1

    def disturb(self, cause: str, dice: random.Random) -> None:
        one = dice.randrange(len(self.queries))
        if cause == "bos":
            self.queries = [tokens + 1 if tokens else 0 for tokens in self.queries]
        elif cause == "retry":
            self.attempts[one] += 1
            self._again(one)
        elif cause == "missing" and self.queries[one]:
            self.queries[one] = self.hits[one] = 0
            self.finished -= 1
        elif cause == "preemption":
            self.preemptions += 1
        elif cause == "stranger":
            self.more_queries += dice.choice([len(self.queries), 100, self.input_tokens[0], dice.randint(1, 500)])
            self.finished += 1
        elif cause == "all again":
            for index in range(len(self.queries)):
                self._again(index)
        elif cause == "reset":
            self.hits[one] = 0
        elif cause == "salt":
            self.hits = [0] * len(self.hits)
        elif cause == "eviction":
            self.hits = [dice.choice([hits, 0, hits // 2 // self.block * self.block]) for hits in self.hits]

    def evidence(self, dice: random.Random) -> Evidence | None:
        queries, hits = sum(self.queries) + self.more_queries, sum(self.hits) + self.more_hits
        if not hits <= queries or not queries:
            return None
        more = {"num_preemptions": self.preemptions}
        if dice.random() < 0.5:
            more["request_success"] = self.finished
        config = {"block_size": str(self.block), "kv_cache_size_tokens": str(self.block * 10000)}
        count = len(self.queries)
        planned = PlannedTraffic(
            mode="warmup",
            block_size=self.block,
            dp_size=1,
            requests=count,
            tokens=TokenShare(sum(self.input_tokens), sum(self.planned_hits)),
            canonical_prefix_tokens={"group-0": max(self.planned_hits)},
            requests_with_hits=sum(hits > 0 for hits in self.planned_hits),
            first_input_tokens=tuple(self.input_tokens[:64]),
        )
        known = between(
            vllm_text(engine(0, 0, **dict.fromkeys(more, 0)), config=config),
            vllm_text(engine(queries, hits, **more), config=config),
            planned,
        )
        if dice.random() < 0.5:
            return known
        columns = RequestColumns(["group-0"] * count, [-1] * count, [-1] * count, self.input_tokens, self.planned_hits)
        rows = [
            SeenRequest(index, "reported", self.hits[index], tokens, self.attempts[index])
            for index, tokens in enumerate(self.queries)
            if tokens
        ]
        facts = RunFacts(probed_block_size=dice.choice([None, self.block]), aisbench_warmups=0, failed_requests=0)
        return replace(known, requests=compare_requests(columns, rows), facts=facts)


def runs(dice: random.Random) -> Iterator[tuple[set[str], Evidence]]:
    for _ in range(3000):
        count, block = dice.choice([1, 2, 5, 10, 50, 100]), dice.choice([16, 32, 64])
        lengths = [dice.randint(70, 400) if dice.random() < 0.5 else 100 for _ in range(count)]
        run = Run(block, lengths, [min(dice.choice([1, 2, 3]) * block, (n - 1) // block * block) for n in lengths])
        causes = set(dice.sample(sorted(MAY_SAY), dice.choice([0, 1, 1, 2])))
        for cause in sorted(causes):
            run.disturb(cause, dice)
        evidence = run.evidence(dice)
        if evidence is not None:
            yield causes, evidence


def test_no_other_cause_is_stated_than_those_that_there_were() -> None:
    said: Counter[str] = Counter()
    for causes, evidence in runs(random.Random(14)):
        allowed = OF_HITS_ALONE.union(*(MAY_SAY[cause] for cause in causes))
        for finding in diagnose(evidence):
            said[finding.code] += 1
            assert finding.code in allowed or "consistent with" in finding.message, (causes, finding)
        if evidence.as_planned and not causes:
            assert diagnose(evidence) == []
    # The law is about findings that occur.
    for codes in MAY_SAY.values():
        assert all(said[code] > 20 for code in codes), said
