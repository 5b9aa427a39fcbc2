"""What a run found out about the server besides its counters; kept in the analysis so that ``analyze`` knows it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ais_bench_prefix_cache.foundation.token_share import TokenShare

FACTS_KEY = "facts"
"""Where ``analysis.runtime`` keeps :meth:`RunFacts.as_json` (ours)."""


@dataclass(frozen=True)
class ResetFact:
    """A reset and its proof.

    ``accepted``: the server said that it worked; ``attempts`` is 0 where nobody asked it. ``hits_after`` is, per rank,
    what a prompt that had been cached before hits after the reset: 0 where the cache was emptied.
    """

    accepted: bool
    attempts: int = 1
    hits_after: Mapping[int, int] | None = None


@dataclass(frozen=True)
class CachePrediction:
    """The hits that a least-recently-used cache of ``capacity_tokens`` per rank gives, by replaying the data set."""

    capacity_tokens: int
    hit_tokens: int
    evicted_blocks: int | None = None


@dataclass(frozen=True)
class HistoryFact:
    """What conversations lost whose histories were sent as messages, by the law of hits on the server's own numbers.

    ``by_rank`` has the prompt tokens and the hits that the law gives, of all requests. Of ``turns`` that continue
    others, ``lost_turns`` hit ``lost_tokens`` fewer. ``first`` is the first of these: its ``sequence_index``, ``turn``
    (from 1), ``input_tokens``, ``history_tokens`` (what was computed of it), ``prompt_tokens_before``, and the place in
    its prompt where it first differs from what was computed: ``differs_from`` up to, and without, ``differs_before``.
    """

    by_rank: Mapping[str, Sequence[int]]
    turns: int
    lost_turns: int
    lost_tokens: int
    first: Mapping[str, int] | None = None

    def shares(self) -> dict[int, TokenShare]:
        """Prompt tokens and hits by rank."""
        return {int(rank): TokenShare(tokens, hits) for rank, (tokens, hits) in self.by_rank.items()}


@dataclass(frozen=True)
class RunFacts:
    """Everything optional: None is "not looked at".

    ``probed_block_size`` is the block size that the probes showed, ``aisbench_warmups`` how many warm-up requests
    AISBench was told to send, ``engine_label_map`` the map from engine labels to ranks that probes proved. ``senders``
    is how many processes shared the requests, ``busiest_sender`` the share of one core that the busiest of them used.
    """

    reset: ResetFact | None = None
    cache_prediction: CachePrediction | None = None
    assumed_empty: bool = False
    probed_block_size: int | None = None
    dropped_blocks: int = 0
    hybrid_warmup: bool = False
    retried_requests: int | None = None
    failed_requests: int | None = None
    aisbench_warmups: int | None = None
    engine_label_map: Mapping[str, int] = field(default_factory=dict)
    senders: int | None = None
    busiest_sender: float | None = None
    history: HistoryFact | None = None

    def as_json(self) -> dict[str, Any]:
        """JSON-ready, without what was not looked at."""
        unknown = asdict(RunFacts())
        document = {key: value for key, value in asdict(self).items() if value != unknown[key]}
        if self.reset is not None and self.reset.hits_after is not None:
            document["reset"]["hits_after"] = {str(rank): hits for rank, hits in self.reset.hits_after.items()}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RunFacts:
        """Back from :meth:`as_json`."""
        known = {each.name: document[each.name] for each in fields(cls) if each.name in document}
        if known.get("reset") is not None:
            reset = known["reset"]
            after = reset.get("hits_after")
            hits_after = None if after is None else {int(rank): hits for rank, hits in after.items()}
            known["reset"] = ResetFact(reset["accepted"], reset["attempts"], hits_after)
        if known.get("cache_prediction") is not None:
            known["cache_prediction"] = CachePrediction(**known["cache_prediction"])
        if known.get("history") is not None:
            known["history"] = HistoryFact(**known["history"])
            known["history"].shares()
        return cls(**known)
