"""What the data set is, in the numbers that a comparison needs: taken from manifest, analysis and the rows' columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ais_bench_prefix_cache.datasets.conversations.plan_replay import TurnLinks
from ais_bench_prefix_cache.foundation.names import NO_RANK
from ais_bench_prefix_cache.foundation.token_share import TokenShare

_FIRST_REQUESTS = 64


@dataclass(frozen=True)
class RequestColumns:
    """The rows of ``full.jsonl`` as columns in send order, all of one length.

    ``shared_prefix_tokens`` and ``max_tokens`` may be empty: only the prediction of evictions needs them. Where the
    requests are turns of conversations, ``lane_sequences`` are the turns, and ``links`` say which they continue.
    """

    group_ids: Sequence[str]
    dp_ranks: Sequence[int]
    lane_sequences: Sequence[int]
    input_tokens: Sequence[int]
    hit_tokens: Sequence[int]
    shared_prefix_tokens: Sequence[int] = ()
    max_tokens: Sequence[int] = ()
    links: Sequence[TurnLinks] = ()

    def __len__(self) -> int:
        return len(self.input_tokens)

    @property
    def are_turns(self) -> bool:
        """Whether the requests are turns of conversations."""
        return bool(self.links)

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> RequestColumns:
        """The columns of rows of ``full.jsonl``.

        Read are ``group_id``, ``dp_rank``, ``lane_sequence``, ``actual_input_tokens``, ``theoretical_hit_tokens``,
        ``shared_prefix_tokens`` and ``max_tokens``; of conversations ``turn`` for the third, and :class:`TurnLinks`.
        """
        group_ids: list[str] = []
        dp_ranks: list[int] = []
        lane_sequences: list[int] = []
        input_tokens: list[int] = []
        hit_tokens: list[int] = []
        shared_prefix_tokens: list[int] = []
        max_tokens: list[int] = []
        links: list[TurnLinks] = []
        for row in rows:
            are_turns = "turn" in row
            if are_turns:
                links.append(TurnLinks(row["branch"], row["continues"], row["repeats"], row["think_ms"]))
            group_ids.append(row["group_id"])
            dp_ranks.append(NO_RANK if row["dp_rank"] is None else row["dp_rank"])
            lane_sequence = row["turn"] if are_turns else row["lane_sequence"]
            lane_sequences.append(NO_RANK if lane_sequence is None else lane_sequence)
            input_tokens.append(row["actual_input_tokens"])
            hit_tokens.append(row["theoretical_hit_tokens"])
            shared_prefix_tokens.append(row["shared_prefix_tokens"])
            max_tokens.append(row["max_tokens"])
        return cls(
            group_ids,
            dp_ranks,
            lane_sequences,
            input_tokens,
            hit_tokens,
            shared_prefix_tokens,
            max_tokens,
            links,
        )


@dataclass(frozen=True)
class PlannedTraffic:
    """Theory of a data set.

    ``tokens`` are those of all prompts, and how many of them hit; ``by_rank`` is empty where no ranks are planned, as
    in warm-up mode. ``least_hits`` and ``most_hits`` are what any routing gives, where theory is that of one of them.
    ``requests_with_hits`` and ``first_input_tokens`` (of the first 64 requests) are known where the rows are.
    """

    mode: str
    block_size: int
    dp_size: int
    requests: int
    tokens: TokenShare
    by_rank: Mapping[int, TokenShare] = field(default_factory=dict)
    canonical_prefix_tokens: Mapping[str, int] = field(default_factory=dict)
    requests_with_hits: int | None = None
    first_input_tokens: tuple[int, ...] = ()
    least_hits: int | None = None
    most_hits: int | None = None

    def hits_short(self, counted: int) -> int:
        """Hits that theory promises beyond those counted; negative where there are more, 0 within its range."""
        least = self.tokens.shared if self.least_hits is None else self.least_hits
        most = self.tokens.shared if self.most_hits is None else self.most_hits
        return max(0, least - counted) + min(0, most - counted)

    def as_told(self, by_rank: Mapping[int, TokenShare]) -> PlannedTraffic:
        """The law on the server's own numbers in place of the plan's."""
        of_ranks = {rank: share for rank, share in by_rank.items() if rank != NO_RANK}
        total = sum(by_rank.values(), TokenShare())
        return replace(self, tokens=total, by_rank=of_ranks if self.by_rank else {}, least_hits=None, most_hits=None)

    @classmethod
    def from_documents(
        cls, manifest: Mapping[str, Any], analysis: Mapping[str, Any], columns: RequestColumns | None = None
    ) -> PlannedTraffic:
        """From a prepared manifest, its analysis and, where they were read, the rows."""
        theory = analysis["theory"]
        return cls(
            mode=manifest["prefix_cache"]["mode"],
            block_size=manifest["tokenizer"]["block_size"],
            dp_size=manifest["dp"]["size"],
            requests=manifest["requests"]["count"],
            tokens=_share(theory),
            by_rank={int(rank): _share(section) for rank, section in theory.get("dp", {}).items()},
            canonical_prefix_tokens={
                group: entry["canonical_prefix_tokens"] for group, entry in manifest["groups"].items()
            },
            requests_with_hits=None if columns is None else sum(hits > 0 for hits in columns.hit_tokens),
            first_input_tokens=() if columns is None else tuple(columns.input_tokens[:_FIRST_REQUESTS]),
            least_hits=theory.get("range", {}).get("least_hit_tokens"),
            most_hits=theory.get("range", {}).get("most_hit_tokens"),
        )


def _share(section: Mapping[str, Any]) -> TokenShare:
    return TokenShare(section["input_tokens"], section["hit_tokens"])
