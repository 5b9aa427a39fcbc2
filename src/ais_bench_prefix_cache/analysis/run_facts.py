"""What a run found out about the server besides its counters; kept in the analysis so that ``analyze`` knows it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FACTS_KEY = "facts"
"""Where ``analysis.runtime`` keeps :meth:`RunFacts.as_json` (ours)."""


@dataclass(frozen=True)
class TokenizationFact:
    """One prompt that the server's ``/tokenize`` encodes otherwise. ``position`` is the first token that differs."""

    group_id: str
    position: int
    our_tokens: int
    server_tokens: int
    our_token_id: int | None = None
    server_token_id: int | None = None


@dataclass(frozen=True)
class ProbeFact:
    """A probe was sent to ``dp_rank``; ``moved_engine`` is whose counter moved, ``moved_rank`` its rank if known."""

    dp_rank: int
    moved_engine: str | None
    moved_rank: int | None


@dataclass(frozen=True)
class ResetFact:
    """A reset and its proof.

    ``accepted``: the server said that it worked; ``attempts`` is 0 where nobody asked it. ``hits_after`` is, per rank,
    what a prompt that had been cached before hits after the reset: 0 where the cache was emptied.
    """

    accepted: bool
    status: int | None = None
    attempts: int = 1
    hits_after: Mapping[int, int] | None = None


@dataclass(frozen=True)
class CachePrediction:
    """The hits that a least-recently-used cache of ``capacity_tokens`` per rank gives, by replaying the data set."""

    capacity_tokens: int
    hit_tokens: int
    evicted_blocks: int | None = None


@dataclass(frozen=True)
class RunFacts:
    """Everything optional: None or an empty tuple is "not looked at".

    ``aisbench_warmups`` is how many warm-up requests AISBench was told to send, ``engine_label_map`` the map from
    engine labels to ranks that probes proved.
    """

    tokenization: tuple[TokenizationFact, ...] = ()
    probes: tuple[ProbeFact, ...] = ()
    reset: ResetFact | None = None
    cache_prediction: CachePrediction | None = None
    assumed_empty: bool = False
    dropped_blocks: int = 0
    hybrid_warmup: bool = False
    retried_requests: int | None = None
    failed_requests: int | None = None
    aisbench_warmups: int | None = None
    engine_label_map: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """JSON-ready, without what was not looked at."""
        unknown = asdict(RunFacts())
        document = {key: value for key, value in asdict(self).items() if value != unknown[key]}
        for key in ("tokenization", "probes"):
            if key in document:
                document[key] = list(document[key])
        if self.reset is not None and self.reset.hits_after is not None:
            document["reset"]["hits_after"] = {str(rank): hits for rank, hits in self.reset.hits_after.items()}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RunFacts:
        """Back from :meth:`as_json`."""
        reset = document.get("reset")
        if reset is not None and reset.get("hits_after") is not None:
            reset = {**reset, "hits_after": {int(rank): hits for rank, hits in reset["hits_after"].items()}}
        prediction = document.get("cache_prediction")
        return cls(
            tokenization=tuple(TokenizationFact(**fact) for fact in document.get("tokenization", ())),
            probes=tuple(ProbeFact(**fact) for fact in document.get("probes", ())),
            reset=None if reset is None else ResetFact(**reset),
            cache_prediction=None if prediction is None else CachePrediction(**prediction),
            assumed_empty=document.get("assumed_empty", False),
            dropped_blocks=document.get("dropped_blocks", 0),
            hybrid_warmup=document.get("hybrid_warmup", False),
            retried_requests=document.get("retried_requests"),
            failed_requests=document.get("failed_requests"),
            aisbench_warmups=document.get("aisbench_warmups"),
            engine_label_map=document.get("engine_label_map", {}),
        )
