"""One look at a server's counters: what its ``/metrics`` text says, per data-parallel rank.

Metric names by server and version: vLLM's own sources and releases (0.5.5 to 0.32), SGLang's and LMDeploy's metric
collectors. Whole names are matched: ``prefix_cache_hits`` is neither ``gpu_prefix_cache_hits`` nor
``external_prefix_cache_hits`` nor ``prefix_cache_hits_created``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ais_bench_prefix_cache.counters.exposition import Exposition, Sample, parse_exposition
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, SnapshotError

ServerFamily = Literal["vllm", "sglang", "lmdeploy"]
CounterUnit = Literal["tokens", "blocks", "unknown"]

WHOLE_SERVER = -1
"""Key of :attr:`MetricsSnapshot.by_rank` where a server counts for all its ranks together (SGLang)."""

_PREFIXES: Mapping[ServerFamily, tuple[str, ...]] = {
    # Ray puts its own prefix in front; exporters that do not know the colon write an underscore.
    "vllm": ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_"),
    "sglang": ("sglang:", "sglang_"),
    "lmdeploy": ("lmdeploy:", "lmdeploy_"),
}
_RANK_LABELS: Mapping[ServerFamily, tuple[str, ...]] = {
    "vllm": ("engine",),
    "sglang": ("dp_rank", "engine"),
    "lmdeploy": ("engine",),
}
# Our key -> the metric's name without prefix. Counters may end in _total or not.
_COUNTERS: Mapping[ServerFamily, Mapping[str, str]] = {
    "vllm": {
        "queries": "prefix_cache_queries",
        "hits": "prefix_cache_hits",
        "gpu_queries": "gpu_prefix_cache_queries",
        "gpu_hits": "gpu_prefix_cache_hits",
        "external_queries": "external_prefix_cache_queries",
        "external_hits": "external_prefix_cache_hits",
        "prompt_tokens": "prompt_tokens",
        "prompt_tokens_cached": "prompt_tokens_cached",
        "preemptions": "num_preemptions",
        "requests": "request_success",
        "speculative_drafts": "spec_decode_num_drafts",
        "mm_queries": "mm_cache_queries",
        "mm_hits": "mm_cache_hits",
    },
    "sglang": {"queries": "prompt_tokens", "hits": "cached_tokens", "requests": "num_requests"},
    "lmdeploy": {"queries": "prompt_tokens", "hits": "cached_tokens"},
}
_GAUGES: Mapping[ServerFamily, Mapping[str, tuple[str, ...]]] = {
    "vllm": {
        "kv_cache_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        "running": ("num_requests_running",),
        "waiting": ("num_requests_waiting",),
        "config": ("cache_config_info",),
        "sleep": ("engine_sleep_state",),
        "hit_rate": ("gpu_prefix_cache_hit_rate",),
        "created": (
            "prefix_cache_queries_created",
            "prefix_cache_hits_created",
            "gpu_prefix_cache_queries_created",
            "gpu_prefix_cache_hits_created",
        ),
    },
    "sglang": {
        "kv_cache_usage": ("token_usage",),
        "running": ("num_running_reqs",),
        "waiting": ("num_queue_reqs",),
        "hit_rate": ("cache_hit_rate",),
        "created": ("prompt_tokens_created", "cached_tokens_created"),
    },
    "lmdeploy": {"created": ("prompt_tokens_created", "cached_tokens_created")},
}
_PROCESS_START = "process_start_time_seconds"


def _all_names() -> frozenset[str]:
    names = {_PROCESS_START}
    for family, prefixes in _PREFIXES.items():
        for prefix in prefixes:
            for name in _COUNTERS[family].values():
                names.update((f"{prefix}{name}_total", f"{prefix}{name}"))
            for gauges in _GAUGES[family].values():
                names.update(prefix + gauge for gauge in gauges)
    return frozenset(names)


_WANTED = _all_names()
# SGLang counts a request by its sources or, where it does not know them, all of it under "total" (never both); versions
# before the label have none.
_LOCAL_SOURCES = frozenset({"device", "total", ""})
_INTEGER = re.compile(r"[0-9]{1,18}")
_TRAILING_DIGITS = re.compile(r"([0-9]{1,9})$")


@dataclass(frozen=True)
class CacheConfig:
    """``cache_config_info`` of one engine; None is what the server does not tell.

    ``kv_cache_size_tokens`` is per engine, ``num_gpu_blocks`` the sum over the engines of a server.
    """

    block_size: int | None = None
    prefix_caching: bool | None = None
    kv_cache_size_tokens: int | None = None
    num_gpu_blocks: int | None = None
    sliding_window: int | None = None
    mamba_block_size: int | None = None
    hit_alignment_tokens: int | None = None


@dataclass(frozen=True)
class EngineCounters:
    """One engine's numbers. Counters are integers in the server's unit; None is what the server does not show.

    ``source`` is the number of the text that shows the engine. ``hits_shown`` is False where the server has not shown
    the hits series yet and 0 stands for it. ``external_*`` is the tier of a KV connector (or SGLang's host and storage
    sources), never a part of ``hits``; ``mm_*`` counts images and the like in the front end's own cache.
    """

    rank: int
    engine: str | None
    source: int
    queries: int
    hits: int
    hits_shown: bool = True
    kv_cache_usage: float | None = None
    external_queries: int | None = None
    external_hits: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_cached: int | None = None
    preemptions: int | None = None
    requests: int | None = None
    speculative_drafts: int | None = None
    mm_queries: int | None = None
    mm_hits: int | None = None
    running: int | None = None
    waiting: int | None = None
    asleep: bool | None = None
    created: float | None = None
    config: CacheConfig | None = None
    unit: CounterUnit = "tokens"


@dataclass(frozen=True)
class MetricsSnapshot:
    """All engines of one server at one moment.

    ``by_rank`` has the ranks 0 … dp_size-1, or the one key :data:`WHOLE_SERVER`. ``unit`` is what the two counters
    count; ``unknown`` where only the numbers can tell. ``process_starts`` are the processes' start times, sorted.
    """

    family: ServerFamily
    queries_metric: str
    hits_metric: str
    unit: CounterUnit
    by_rank: Mapping[int, EngineCounters]
    process_starts: tuple[float, ...] = ()
    model_names: tuple[str, ...] = ()

    @property
    def whole_server(self) -> bool:
        """Whether the server counts for all its ranks together."""
        return WHOLE_SERVER in self.by_rank

    @property
    def engine_labels(self) -> dict[str, int]:
        """Engine label to rank, for the engines that have one."""
        return {counters.engine: rank for rank, counters in self.by_rank.items() if counters.engine is not None}


def parse_snapshot(
    text: str,
    *,
    dp_size: int,
    engine_label_map: Mapping[str, int] | None = None,
    model: str | None = None,
    engine: str = "auto",
    where: str = "metrics",
) -> MetricsSnapshot:
    """:func:`parse_snapshots` of one text."""
    return parse_snapshots(
        [text], dp_size=dp_size, engine_label_map=engine_label_map, model=model, engine=engine, where=[where]
    )


def parse_snapshots(
    texts: Sequence[str],
    *,
    dp_size: int,
    engine_label_map: Mapping[str, int] | None = None,
    model: str | None = None,
    engine: str = "auto",
    where: Sequence[str] | None = None,
) -> MetricsSnapshot:
    """Read one ``/metrics`` text, or one a port, into one snapshot.

    An engine's rank is what ``engine_label_map`` says of its label, else the number at the label's end; together they
    must give the ranks 0 … dp_size-1. Where they do not and each text shows one engine, the texts' order gives the
    ranks. A single engine with ``dp_size`` 1 is rank 0 whatever its label. ``model`` chooses among the series of
    several models. ``engine`` is ``service.engine``. ``where`` names the texts in problems.

    Raises SnapshotError with every problem found.
    """
    names = list(where) if where is not None else [f"metrics {i}" for i in range(len(texts))]
    expositions, readers = _readers(texts, names, model, engine)
    problems: list[Problem] = []

    found = [(reader, label) for reader in readers for label in reader.engine_keys]
    ranks = _ranks([label for _, label in found], [reader.source for reader, _ in found], dp_size, engine_label_map)
    if not ranks and readers[0].family != "vllm" and len(found) == 1:
        ranks = [WHOLE_SERVER]
    if not ranks:
        raise SnapshotError(_rank_problem([label for _, label in found], names, dp_size, engine_label_map))
    by_rank: dict[int, EngineCounters] = {}
    for (reader, label), rank in sorted(zip(found, ranks, strict=True), key=lambda item: item[1]):
        try:
            by_rank[rank] = reader.counters(label, rank)
        except SnapshotError as error:
            problems.extend(error.problems)
    if problems:
        raise SnapshotError(problems)
    starts = (s.value for e in expositions for s in e.samples.get(_PROCESS_START, ()) if math.isfinite(s.value))
    return MetricsSnapshot(
        family=readers[0].family,
        queries_metric=readers[0].queries_metric,
        hits_metric=readers[0].hits_metric,
        unit=readers[0].unit,
        by_rank=by_rank,
        process_starts=tuple(sorted(starts)),
        model_names=tuple(sorted({name for reader in readers for name in reader.model_names})),
    )


def read_engines(
    texts: Sequence[str], *, model: str | None = None, engine: str = "auto", where: Sequence[str] | None = None
) -> list[EngineCounters]:
    """Every engine that the texts show, before anyone knows their ranks: ``rank`` only numbers them.

    Arguments and errors as for :func:`parse_snapshots`.
    """
    names = list(where) if where is not None else [f"metrics {i}" for i in range(len(texts))]
    _, readers = _readers(texts, names, model, engine)
    found = [(reader, label) for reader in readers for label in reader.engine_keys]
    return [reader.counters(label, number) for number, (reader, label) in enumerate(found)]


def _readers(
    texts: Sequence[str], names: Sequence[str], model: str | None, engine: str
) -> tuple[list[Exposition], list[_TextReader]]:
    """Each text parsed, and read as one server's; all texts must show the same counters."""
    expositions: list[Exposition] = []
    problems: list[Problem] = []
    for text, name in zip(texts, names, strict=True):
        try:
            expositions.append(parse_exposition(text, _WANTED, name))
        except SnapshotError as error:
            problems.extend(error.problems)
    if problems:
        raise SnapshotError(problems)

    readers: list[_TextReader] = []
    for source, (exposition, name) in enumerate(zip(expositions, names, strict=True)):
        try:
            readers.append(_TextReader(exposition, name, source, engine, model))
        except SnapshotError as error:
            problems.extend(error.problems)
    if problems:
        raise SnapshotError(problems)
    kinds = {(reader.queries_metric, reader.hits_metric) for reader in readers}
    if len(kinds) > 1:
        raise SnapshotError.of(
            Code.SNAPSHOT_DIFFERENT_SERVERS,
            ", ".join(names),
            "the texts show different counters: " + "; ".join(sorted(kind[0] for kind in kinds)),
            hint="all ports must run the same server version",
        )
    return expositions, readers


def parse_kv_cache_usage(
    texts: Sequence[str],
    *,
    dp_size: int,
    engine_label_map: Mapping[str, int] | None = None,
    where: Sequence[str] | None = None,
) -> dict[int, float]:
    """Fraction of the KV cache in use per rank, for sampling while requests run; a rank without a sample is left out.

    Needs no counters. Several processes' samples of one engine: the largest (the idle ones write 0). Raises
    SnapshotError for a text that is not an exposition.
    """
    names = list(where) if where is not None else [f"metrics {i}" for i in range(len(texts))]
    usages: list[tuple[str | None, int, float]] = []
    for source, (text, name) in enumerate(zip(texts, names, strict=True)):
        exposition = parse_exposition(text, _WANTED, name)
        family, prefix = _flavour(exposition)
        if family is None:
            continue
        largest: dict[str | None, float] = {}
        for gauge in _GAUGES[family].get("kv_cache_usage", ()):
            for sample in exposition.samples.get(prefix + gauge, ()):
                if math.isfinite(sample.value):
                    key = _engine_key(sample, family)
                    largest[key] = max(largest.get(key, 0.0), sample.value)
            if largest:
                break
        usages.extend((label, source, value) for label, value in largest.items())
    ranks = _ranks([u[0] for u in usages], [u[1] for u in usages], dp_size, engine_label_map, complete=False)
    return {rank: usage[2] for rank, usage in sorted(zip(ranks, usages, strict=False))}


class _TextReader:
    """Reads one text: which server, which names, which engines, and each engine's numbers."""

    def __init__(self, exposition: Exposition, where: str, source: int, engine: str, model: str | None) -> None:
        self._exposition = exposition
        self._where = where
        self._grouped: dict[str, dict[str | None, list[Sample]]] = {}
        self.source = source
        family, self._prefix = _flavour(exposition)
        if family is None:
            raise SnapshotError(_no_server_problem(exposition, where))
        if engine not in ("auto", family):
            raise SnapshotError.of(
                Code.SNAPSHOT_OTHER_ENGINE,
                where,
                f"these are metrics of {family}, not of {engine}",
                hint='set service.engine to "auto", or check the metrics URL',
            )
        self.family: ServerFamily = family
        queries, hits = "queries", "hits"
        if not self._samples(queries) and family == "vllm" and self._samples("gpu_queries"):
            queries, hits = "gpu_queries", "gpu_hits"
        if not self._samples(queries):
            raise SnapshotError(_no_counters_problem(self, where))
        self._keys = {"queries": queries, "hits": hits}
        self.queries_metric = self._samples(queries)[0].name
        shown = self._samples(hits)
        self.hits_metric = shown[0].name if shown else self.queries_metric.replace(*self._names_of(queries, hits), 1)
        self.model_names = tuple(sorted({_model(s) for s in self._samples(queries)} - {""}))
        self._model = None
        if len(self.model_names) > 1:
            if model not in self.model_names:
                raise SnapshotError.of(
                    Code.SNAPSHOT_SEVERAL_MODELS,
                    where,
                    f"the counters of several models are shown ({', '.join(self.model_names)})"
                    + (f", {model!r} is not among them" if model else ""),
                    hint="set service.model to one of them, or use the metrics URL of the server itself",
                )
            self._model = model
            self.model_names = (model,)
        self.engine_keys: list[str | None] = list(
            dict.fromkeys(_engine_key(s, family) for s in self._samples(queries) if self._model in (None, _model(s)))
        )
        self.unit = self._unit()

    def counters(self, label: str | None, rank: int) -> EngineCounters:
        """The numbers of one engine. Raises SnapshotError for counters that are not whole numbers."""
        problems: list[Problem] = []

        def counter(key: str) -> int | None:
            return self._counter(key, label, problems)

        queries = counter(self._keys["queries"])
        hits, external_queries, external_hits = self._hits(label, problems)
        prompt_tokens = counter("prompt_tokens")
        if problems:
            raise SnapshotError(problems)
        assert queries is not None
        shown = hits is not None
        if hits is None:
            if self.family == "vllm" and queries > 0:
                raise SnapshotError.of(
                    Code.SNAPSHOT_NO_HITS,
                    self._where,
                    f"{self.queries_metric} is shown{_for_engine(label)}, {self.hits_metric} is not",
                    hint="save the whole answer of the server's /metrics",
                )
            hits = 0
        optional = {
            key: counter(key)
            for key in (
                "prompt_tokens_cached",
                "preemptions",
                "requests",
                "speculative_drafts",
                "mm_queries",
                "mm_hits",
            )
            if key in _COUNTERS[self.family]
        }
        if problems:
            raise SnapshotError(problems)
        running, waiting = self._gauge("running", label), self._gauge("waiting", label)
        return EngineCounters(
            rank=rank,
            engine=label,
            source=self.source,
            queries=queries,
            hits=hits,
            hits_shown=shown,
            kv_cache_usage=self._gauge("kv_cache_usage", label),
            external_queries=external_queries,
            external_hits=external_hits,
            prompt_tokens=prompt_tokens,
            running=None if running is None else int(running),
            waiting=None if waiting is None else int(waiting),
            asleep=self._asleep(label),
            created=self._gauge("created", label),
            config=self._config(label),
            unit=self.unit,
            **optional,
        )

    def has_gauge(self, key: str) -> bool:
        """Whether any series of this gauge is shown."""
        return any(self._exposition.samples.get(self._prefix + name) for name in _GAUGES[self.family].get(key, ()))

    @property
    def name_prefix(self) -> str:
        """``vllm:`` and the like."""
        return self._prefix

    def _names_of(self, queries: str, hits: str) -> tuple[str, str]:
        names = _COUNTERS[self.family]
        return names[queries], names[hits]

    def _samples(self, key: str) -> tuple[Sample, ...]:
        """All series of a counter, by whichever of its two names is shown."""
        name = self._prefix + _COUNTERS[self.family].get(key, "?")
        return self._exposition.samples.get(f"{name}_total") or self._exposition.samples.get(name, ())

    def _of_engine(self, samples: Sequence[Sample], label: str | None) -> Sequence[Sample]:
        """The series of one engine (and of the chosen model, where there are several)."""
        if not samples:
            return ()
        groups = self._grouped.get(samples[0].name)
        if groups is None:
            groups = self._grouped[samples[0].name] = {}
            for sample in samples:
                if self._model is None or _model(sample) in (self._model, ""):
                    groups.setdefault(_engine_key(sample, self.family), []).append(sample)
        return groups.get(label, ())

    def _sum(self, samples: Sequence[Sample], problems: list[Problem]) -> int | None:
        """The series of one engine that differ in further labels (process, finish reason) add up."""
        total = 0
        for sample in samples:
            value = sample.value
            if not math.isfinite(value) or value < 0 or value != int(value):
                problems.append(
                    Problem(
                        Code.SNAPSHOT_VALUE,
                        f"{self._where} line {sample.line}",
                        f"{sample.name} is {value:.17g}; a token counter is a whole number of at least 0",
                    )
                )
            else:
                total += int(value)
        return total if samples else None

    def _counter(self, key: str, label: str | None, problems: list[Problem]) -> int | None:
        return self._sum(self._of_engine(self._samples(key), label), problems)

    def _hits(self, label: str | None, problems: list[Problem]) -> tuple[int | None, int | None, int | None]:
        """Local hits, external queries, external hits."""
        samples = self._of_engine(self._samples(self._keys["hits"]), label)
        if self.family == "vllm":
            return (
                self._sum(samples, problems),
                self._counter("external_queries", label, problems),
                self._counter("external_hits", label, problems),
            )
        local = [s for s in samples if s.labels.get("cache_source", "") in _LOCAL_SOURCES]
        other = [s for s in samples if s.labels.get("cache_source", "") not in _LOCAL_SOURCES]
        hits = self._sum(local, problems)
        external = self._sum(other, problems)
        return (0 if hits is None and other else hits), None, external

    def _gauge(self, key: str, label: str | None) -> float | None:
        for name in _GAUGES[self.family].get(key, ()):
            samples = self._of_engine(self._exposition.samples.get(self._prefix + name, ()), label)
            values = [s.value for s in samples if math.isfinite(s.value)]
            if values:
                return max(values)
        return None

    def _asleep(self, label: str | None) -> bool | None:
        samples = self._exposition.samples.get(self._prefix + "engine_sleep_state", ())
        states = {s.labels.get("sleep_state"): s.value for s in self._of_engine(samples, label)}
        return None if "awake" not in states else states["awake"] == 0

    def _config(self, label: str | None) -> CacheConfig | None:
        samples = self._exposition.samples.get(self._prefix + "cache_config_info", ())
        # Old versions show one series without an engine label.
        for sample in self._of_engine(samples, label) or self._of_engine(samples, None):
            return _cache_config(sample.labels)
        return None

    def _unit(self) -> CounterUnit:
        """vLLM counted blocks from 0.7.3 to 0.8.5, under the names that 0.9.0 kept for tokens."""
        if self._keys["queries"] != "gpu_queries":
            return "tokens"
        name = self.queries_metric
        sentence = self._exposition.helps.get(name, self._exposition.helps.get(name.removesuffix("_total"), ""))
        if "blocks" in sentence:
            return "blocks"
        if "tokens" in sentence:
            return "tokens"
        return "blocks" if self.engine_keys == [None] else "unknown"


def _flavour(exposition: Exposition) -> tuple[ServerFamily | None, str]:
    """Which server, and which spelling of the names' prefix."""
    candidates = [(family, prefix) for family, prefixes in _PREFIXES.items() for prefix in prefixes]
    for family, prefix in candidates:
        counters = _COUNTERS[family]
        keys = ("queries", "gpu_queries") if family == "vllm" else ("queries",)
        for key in keys:
            name = prefix + counters[key]
            if name in exposition.samples or f"{name}_total" in exposition.samples:
                return family, prefix
    for family, prefix in candidates:
        if any(name.startswith(prefix) for name in exposition.names):
            return family, prefix
    return None, ""


def _engine_key(sample: Sample, family: ServerFamily) -> str | None:
    for label in _RANK_LABELS[family]:
        if label in sample.labels:
            return sample.labels[label]
    return None


def _model(sample: Sample) -> str:
    return sample.labels.get("model_name") or sample.labels.get("name") or ""


def _cache_config(labels: Mapping[str, str]) -> CacheConfig:
    def integer(name: str) -> int | None:
        text = labels.get(name, "")
        return int(text) if _INTEGER.fullmatch(text) else None

    block_size = integer("effective_attention_block_size") or integer("block_size")
    caching = labels.get("enable_prefix_caching", "").lower()
    return CacheConfig(
        block_size=block_size or None,
        prefix_caching={"true": True, "false": False}.get(caching),
        kv_cache_size_tokens=integer("kv_cache_size_tokens"),
        num_gpu_blocks=integer("num_gpu_blocks"),
        sliding_window=integer("sliding_window"),
        mamba_block_size=integer("mamba_block_size"),
        hit_alignment_tokens=integer("cache_hit_alignment_tokens"),
    )


def _ranks(
    labels: Sequence[str | None],
    sources: Sequence[int],
    dp_size: int,
    engine_label_map: Mapping[str, int] | None,
    *,
    complete: bool = True,
) -> list[int]:
    """The ranks of the engines in the order given, or an empty list where they cannot be told.

    ``complete`` demands every rank; without it some may be missing.
    """
    if len(labels) == 1 and dp_size == 1:
        return [0]
    by_label = [_rank_of_label(label, engine_label_map) for label in labels]
    known = [rank for rank in by_label if rank is not None and rank < dp_size]
    if len(known) == len(labels) and len(set(known)) == len(known) and (len(known) == dp_size or not complete):
        return known
    if len(labels) == dp_size and sorted(sources) == list(range(dp_size)):
        return list(sources)
    return []


def _rank_of_label(label: str | None, engine_label_map: Mapping[str, int] | None) -> int | None:
    if label is None:
        return None
    if engine_label_map and label in engine_label_map:
        return engine_label_map[label]
    digits = _TRAILING_DIGITS.search(label)
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


def _no_server_problem(exposition: Exposition, where: str) -> Problem:
    return Problem(
        Code.SNAPSHOT_NO_ENGINE_METRICS,
        where,
        "no metric of vLLM, SGLang or LMDeploy is shown"
        + (" (the Python process's own are)" if "python_info" in exposition.names else ""),
        hint="start vLLM without --disable-log-stats, SGLang with --enable-metrics; or check the metrics URL",
    )


def _no_counters_problem(reader: _TextReader, where: str) -> Problem:
    if reader.has_gauge("hit_rate"):
        return Problem(
            Code.SNAPSHOT_GAUGE_ONLY,
            where,
            f"only a momentary hit-rate gauge ({reader.name_prefix}*cache_hit_rate) is shown; no counters of queries "
            "and hits",
            allowed="vLLM V1 from 0.7.3 on, or SGLang with token counters",
            hint="a gauge cannot say what one run hit; use a server version with counters (vLLM: the V1 engine)",
        )
    wanted = _COUNTERS[reader.family]["queries"]
    return Problem(
        Code.SNAPSHOT_NO_COUNTERS,
        where,
        f"no {reader.name_prefix}{wanted}_total is shown, so there is nothing to count with",
        hint="save the whole answer of /metrics; vLLM shows the counters from 0.7.3 (V1 engine) on",
    )


def _for_engine(label: str | None) -> str:
    return "" if label is None else f" for engine {label}"
