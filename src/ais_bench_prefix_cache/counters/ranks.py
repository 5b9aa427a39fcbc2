"""One look at a server: the texts of all its ports, each engine at its data-parallel rank."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ais_bench_prefix_cache.counters.exposition import parse_exposition
from ais_bench_prefix_cache.counters.names import ServerFamily, is_read
from ais_bench_prefix_cache.counters.reader import CounterUnit, Engine, EngineLoad, ReadText, engine_loads, read_text
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, SnapshotError
from ais_bench_prefix_cache.foundation.names import NO_RANK

_TRAILING_DIGITS = re.compile(r"([0-9]{1,9})$")


@dataclass(frozen=True)
class MetricsSnapshot:
    """All engines of one server at one moment.

    ``by_rank`` has the ranks 0 … dp_size-1, or the one key :data:`NO_RANK` where the server counts for all its ranks
    together. ``unit`` is what the two counters count; ``unknown`` where only the numbers can tell. ``process_starts``
    are the processes' start times, sorted. ``fresh``: no request has been counted since the server started.
    ``server_hits`` is a count of cached tokens for all ranks together, beside counts per rank; ``notes`` say how the
    numbers were read where that is not obvious.
    """

    family: ServerFamily
    queries_metric: str
    hits_metric: str
    unit: CounterUnit
    by_rank: Mapping[int, Engine]
    process_starts: tuple[float, ...] = ()
    model_names: tuple[str, ...] = ()
    fresh: bool = False
    server_hits: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def whole_server(self) -> bool:
        """Whether the server counts for all its ranks together."""
        return NO_RANK in self.by_rank


def read_texts(
    texts: Sequence[str],
    *,
    dp_size: int,
    model: str | None = None,
    engine: str = "auto",
    where: Sequence[str] | None = None,
) -> list[ReadText]:
    """Each port's text read, before anyone knows the engines' ranks. All must show the same counters.

    ``dp_size`` ranks stand behind all texts, ``engine`` is ``service.engine``, ``model`` chooses among the series of
    several models, ``where`` names the texts in problems.

    Raises:
        SnapshotError: with the problems of every text.
    """
    names = _names(texts, where)
    problems: list[Problem] = []
    read: list[ReadText] = []
    ranks = max(1, dp_size // max(1, len(texts)))
    for source, (text, name) in enumerate(zip(texts, names, strict=True)):
        try:
            exposition = parse_exposition(text, is_read, name)
            read.append(read_text(exposition, name, source=source, engine=engine, model=model, ranks=ranks))
        except SnapshotError as error:
            problems.extend(error.problems)
    if problems:
        raise SnapshotError(problems)
    kinds = {each.queries_metric for each in read if not each.fresh}
    if len(kinds) > 1:
        raise SnapshotError.of(
            Code.SNAPSHOT_DIFFERENT_SERVERS,
            ", ".join(names),
            "the texts show different counters: " + "; ".join(sorted(kinds)),
            hint="all ports must run the same server version",
        )
    return read


def read_snapshot(
    texts: Sequence[str],
    *,
    dp_size: int,
    engine_label_map: Mapping[str, int] | None = None,
    model: str | None = None,
    engine: str = "auto",
    where: Sequence[str] | None = None,
) -> MetricsSnapshot:
    """:func:`read_texts`, and every engine at its rank.

    An engine's rank is what ``engine_label_map`` says of its label, else the number at the label's end; together they
    must give the ranks 0 … dp_size-1. Where they do not and each text shows as many engines, the texts' order gives the
    ranks. A single engine with ``dp_size`` 1 is rank 0 whatever its label.

    Raises:
        SnapshotError: with the problems of every text, or because the ranks cannot be told.
    """
    read = read_texts(texts, dp_size=dp_size, model=model, engine=engine, where=where)
    engines = [each for text in read for each in text.engines]
    places = [(each.label, each.source) for each in engines]
    ranks = _ranks(places, dp_size, engine_label_map)
    if not ranks and read[0].family != "vllm" and len(engines) == 1:
        ranks = [NO_RANK]
    if not ranks:
        labels = [each.label for each in engines]
        raise SnapshotError(_rank_problem(labels, _names(texts, where), dp_size, engine_label_map))
    counted = next((each for each in read if not each.fresh), read[0])
    server_hits = [each.server_hits for each in read if each.server_hits is not None]
    return MetricsSnapshot(
        family=counted.family,
        queries_metric=counted.queries_metric,
        hits_metric=counted.hits_metric,
        unit=counted.unit,
        by_rank=dict(sorted(zip(ranks, engines, strict=True), key=lambda item: item[0])),
        process_starts=tuple(sorted(start for each in read for start in each.process_starts)),
        model_names=tuple(sorted({name for each in read for name in each.model_names})),
        fresh=all(each.fresh for each in read),
        server_hits=sum(server_hits) if server_hits else None,
        notes=tuple(dict.fromkeys(note for each in read for note in each.notes)),
    )


def read_engine_loads(
    texts: Sequence[str],
    *,
    dp_size: int,
    engine_label_map: Mapping[str, int] | None = None,
    where: Sequence[str] | None = None,
) -> dict[int, EngineLoad]:
    """The load per rank, for sampling while requests run; a rank without a sample is left out.

    Needs no counters.

    Raises:
        SnapshotError: a text is not an exposition.
    """
    places: list[tuple[str | None, int]] = []
    loads: list[EngineLoad] = []
    for source, (text, name) in enumerate(zip(texts, _names(texts, where), strict=True)):
        for label, load in engine_loads(parse_exposition(text, is_read, name)).items():
            places.append((label, source))
            loads.append(load)
    ranks = _ranks(places, dp_size, engine_label_map, complete=False)
    return dict(sorted(zip(ranks, loads, strict=False), key=lambda item: item[0]))


def rank_name(rank: int) -> str:
    """How problems and findings name a rank."""
    return "server" if rank == NO_RANK else f"rank {rank}"


def _names(texts: Sequence[str], where: Sequence[str] | None) -> list[str]:
    return list(where) if where is not None else [f"metrics {number}" for number in range(len(texts))]


def _ranks(
    places: Sequence[tuple[str | None, int]],
    dp_size: int,
    engine_label_map: Mapping[str, int] | None,
    *,
    complete: bool = True,
) -> list[int]:
    """The ranks of engines given by label and text, in their order, or an empty list where they cannot be told.

    ``complete`` demands every rank; without it some may be missing.
    """
    if len(places) == 1 and dp_size == 1:
        return [0]
    by_label = [_rank_of_label(label, engine_label_map) for label, _ in places]
    known = [rank for rank in by_label if rank is not None and rank < dp_size]
    if len(known) == len(places) and len(set(known)) == len(known) and (len(known) == dp_size or not complete):
        return known
    if len(places) != dp_size:
        return []
    # The same labels in every text: each port numbers its own engines.
    texts = 1 + max(source for _, source in places)
    each = dp_size // texts
    locally = [0 if each == 1 else rank for rank in by_label]
    ranks = [source * each + rank for rank, (_, source) in zip(locally, places, strict=True) if rank is not None]
    in_range = all(rank is not None and rank < each for rank in locally)
    return ranks if in_range and sorted(ranks) == list(range(dp_size)) else []


def _rank_of_label(label: str | None, engine_label_map: Mapping[str, int] | None) -> int | None:
    if label is None:
        return None
    if engine_label_map and label in engine_label_map:
        return engine_label_map[label]
    # A label put together of several ends in no rank but in an address or a name.
    digits = None if "=" in label else _TRAILING_DIGITS.search(label)
    return int(digits.group(1)) if digits else None


def _rank_problem(
    labels: Sequence[str | None],
    names: Sequence[str],
    dp_size: int,
    engine_label_map: Mapping[str, int] | None,
) -> Problem:
    where = ", ".join(names)
    shown = ", ".join("(no label)" if label is None else label for label in labels)
    expected = f"one engine for each of the ranks 0 to {dp_size - 1}" if dp_size > 1 else "one engine"
    ranks = [_rank_of_label(label, engine_label_map) for label in labels]
    if len(labels) > dp_size:
        return Problem(
            Code.SNAPSHOT_EXTRA_ENGINES,
            where,
            f"{len(labels)} engines are shown ({shown}), service.dp_size is {dp_size}",
            allowed=expected,
            hint=f"set service.dp_size to {len(labels)}, or use the metrics URL of the server under test alone",
        )
    if None in ranks or len(set(ranks)) < len(ranks):
        return Problem(
            Code.SNAPSHOT_ENGINE_LABELS,
            where,
            f"the engine labels ({shown}) do not tell the data-parallel ranks",
            allowed=expected,
            hint='say which is which in service.engine_label_map, for example {"LABEL": 0}'
            if None not in labels
            else "the metrics need an engine label, or one metrics text for each rank, in the order of the ranks",
        )
    missing = [str(rank) for rank in range(dp_size) if rank not in ranks]
    return Problem(
        Code.SNAPSHOT_MISSING_RANKS,
        where,
        f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(missing)} of {dp_size} not found among the engine "
        f"labels ({shown})",
        allowed=expected,
        hint="with one port for each rank give one text for each; else set service.dp_size or service.engine_label_map",
    )
