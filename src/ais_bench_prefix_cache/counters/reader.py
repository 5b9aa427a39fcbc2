"""What one ``/metrics`` text says: which server, which engines, and each engine's numbers.

Series are told apart by their labels. Those that split one engine's count (processes, sources, finish reasons) add up;
of a disaggregated deployment the prefill side is read, which is where prompts are counted; every other label that
differs within one engine label makes an engine of its own, so that nothing is added up that does not belong together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

from ais_bench_prefix_cache.counters.exposition import Exposition, Sample
from ais_bench_prefix_cache.counters.names import (
    COUNTERS,
    GAUGES,
    MODEL_LABELS,
    PROCESS_START,
    PYTHON_INFO,
    RANK_LABELS,
    RESTART_COUNTERS,
    ROLE_LABELS,
    SHARD_LABELS,
    SUMMED_LABELS,
    ServerFamily,
    split_name,
)
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, SnapshotError
from ais_bench_prefix_cache.foundation.quoting import plain

CounterUnit = Literal["tokens", "blocks", "unknown"]

# SGLang counts a request by its sources or, where it does not know them, all of it under "total" (never both); versions
# before the label have none.
_LOCAL_SOURCES = frozenset({"device", "total", ""})
_LOCAL_MODE = "device_hit"
_PREFILL_ROLE = re.compile(r"prefill|producer|context|^p$", re.IGNORECASE)
_DECODE_ROLE = re.compile(r"decode|consumer|generat|^d$", re.IGNORECASE)
_DECODE_BESIDE_PREFILL = re.compile(rf"{_DECODE_ROLE.pattern}|backend", re.IGNORECASE)
"""Dynamo calls its workers ``backend``; with prefill workers beside them they decode."""
_PREFILL_NAME = re.compile(r"prefill", re.IGNORECASE)
_DECODE_NAME = re.compile(r"decode", re.IGNORECASE)
"""In a label of any name: pods and workers are called after their side."""
_INTEGER = re.compile(r"[0-9]{1,18}")


class Series(NamedTuple):
    """One time series: a metric and its whole label set, sorted."""

    name: str
    labels: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return plain(self.name + "{" + ",".join(f'{key}="{value}"' for key, value in self.labels) + "}")


@dataclass(frozen=True)
class CacheConfig:
    """What an engine tells about its cache (vLLM: ``cache_config_info``); None is what it does not tell.

    ``kv_cache_size_tokens`` is per engine, ``num_gpu_blocks`` the sum over the engines of a server, ``context_tokens``
    the longest request with its answer.
    """

    block_size: int | None = None
    prefix_caching: bool | None = None
    kv_cache_size_tokens: int | None = None
    num_gpu_blocks: int | None = None
    sliding_window: int | None = None
    mamba_block_size: int | None = None
    hit_alignment_tokens: int | None = None
    context_tokens: int | None = None


@dataclass(frozen=True)
class EngineCounters:
    """One engine's counts since its start or, as a difference, between two looks; None is what it does not show.

    Integers in the server's unit. ``external_*`` is the tier of a KV connector (or SGLang's host and storage sources),
    never a part of ``hits``; ``mm_*`` counts images and the like in the front end's own cache.
    """

    queries: int = 0
    hits: int = 0
    external_queries: int | None = None
    external_hits: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_cached: int | None = None
    preemptions: int | None = None
    requests: int | None = None
    speculative_drafts: int | None = None
    mm_queries: int | None = None
    mm_hits: int | None = None

    def __sub__(self, earlier: EngineCounters) -> EngineCounters:
        """What was counted since ``earlier``; a count that appears only in between began at 0."""
        rises: dict[str, Any] = {}
        for each in fields(self):
            late, early = getattr(self, each.name), getattr(earlier, each.name)
            rises[each.name] = None if late is None else late - (early or 0)
        return EngineCounters(**rises)

    @property
    def hit_rate(self) -> float | None:
        """A fraction of 1; None where there were no queries."""
        return self.hits / self.queries if self.queries else None


@dataclass(frozen=True)
class Engine:
    """One engine at one moment.

    ``label`` is its rank label, with what else tells it apart (``0@worker_addr=a``); ``source`` the number of the text
    that shows it. ``series`` are the values behind ``counters``, ``created`` when they began. ``hits_shown`` is False
    where the server has not shown the hits series yet and 0 stands for it. ``kv_cache_usage`` is a fraction of 1.
    """

    label: str | None
    source: int
    counters: EngineCounters
    series: Mapping[Series, int] = field(default_factory=dict)
    created: Mapping[Series, float] = field(default_factory=dict)
    hits_shown: bool = True
    kv_cache_usage: float | None = None
    running: int | None = None
    waiting: int | None = None
    asleep: bool | None = None
    config: CacheConfig | None = None


@dataclass(frozen=True)
class ReadText:
    """One text. ``unit`` is what queries and hits count; ``unknown`` where only the numbers can tell.

    ``fresh``: the server is known, and has not counted a request yet. ``server_hits`` is a count of cached tokens for
    all ranks together, beside counts per rank. ``roles`` are those that the text shows, the one read first;
    ``other_prefixes`` are beginnings of names under which counters stand that are not read.
    """

    family: ServerFamily
    prefix: str
    queries_metric: str
    hits_metric: str
    unit: CounterUnit
    engines: tuple[Engine, ...]
    model_names: tuple[str, ...]
    process_starts: tuple[float, ...]
    fresh: bool = False
    server_hits: int | None = None
    roles: tuple[str, ...] = ()
    other_prefixes: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers should know of how they were read."""
        notes = []
        if self.prefix != f"{self.family}:":
            notes.append(f"the metric names begin with {self.prefix}")
        if self.other_prefixes:
            notes.append(
                f"the counters whose names begin with {self.prefix} are read, not those that begin with "
                f"{', '.join(self.other_prefixes)}"
            )
        if self.roles:
            notes.append(
                plain(
                    f"the counters of the role {self.roles[0]} are read, which is where prompts are counted; also "
                    f"shown: {', '.join(role or '(no role)' for role in self.roles[1:])}"
                )
            )
        return tuple(notes)


def read_text(
    exposition: Exposition,
    where: str,
    *,
    source: int = 0,
    engine: str = "auto",
    model: str | None = None,
    ranks: int = 1,
) -> ReadText:
    """Read one text as one server's.

    ``engine`` is ``service.engine``, ``model`` chooses among the series of several models, ``ranks`` is how many
    data-parallel ranks the text may show: above 1 SGLang's counts per rank are read where it shows them.

    Raises:
        SnapshotError: with every problem: another server, no counters, roles that cannot be told apart, counters that
            are no whole numbers.
    """
    return _TextReader(exposition, where, source, engine, model, ranks).read()


@dataclass(frozen=True)
class EngineLoad:
    """What a server says of one engine at one moment; None: it does not say.

    ``kv_cache_usage`` is a fraction of 1, ``running`` and ``waiting`` are requests.
    """

    kv_cache_usage: float | None = None
    running: float | None = None
    waiting: float | None = None


def engine_loads(exposition: Exposition) -> dict[str | None, EngineLoad]:
    """The load by rank label; of several processes the largest figure, since idle ones write 0."""
    family, prefix, _ = _flavour(exposition)
    if family is None:
        return {}
    samples = _samples_by_name(exposition, prefix)

    def largest(*keys: str) -> dict[str | None, float]:
        found: dict[str | None, float] = {}
        for key in keys:
            for sample in samples.get(GAUGES[family].get(key, ""), ()):
                if math.isfinite(sample.value):
                    label = _rank_label(sample, family)
                    found[label] = max(found.get(label, 0.0), sample.value)
            if found:
                break
        return found

    usage, running, waiting = largest("kv_cache_usage", "gpu_cache_usage"), largest("running"), largest("waiting")
    labels = dict.fromkeys([*usage, *running, *waiting])
    return {label: EngineLoad(usage.get(label), running.get(label), waiting.get(label)) for label in labels}


@dataclass(frozen=True)
class _Identity:
    """The labels that belong to one engine alone; None: the series has no such label."""

    label: str | None
    labels: Mapping[str, str | None]

    def counts(self, sample: Sample) -> bool:
        """Whether a counter's sample is this engine's."""
        return all(sample.labels.get(key) == value for key, value in self.labels.items())

    def describes(self, sample: Sample) -> bool:
        """Whether a gauge's sample is: one without the label speaks for all engines of the text."""
        return all(sample.labels.get(key) in (None, value) for key, value in self.labels.items())


class _Split:
    """Samples by the engine that they are of. ``of_model`` leaves out those of other models."""

    def __init__(
        self,
        identities: Sequence[_Identity],
        family: ServerFamily,
        of_model: Callable[[Iterable[Sample]], list[Sample]],
    ) -> None:
        self._identities = identities
        self._of_model = of_model
        keys = [key for key in RANK_LABELS[family] if any(key in identity.labels for identity in identities)]
        self._rank_key = keys[0] if keys else ""
        self._places: dict[str | None, list[int]] = {}
        for place, identity in enumerate(identities):
            self._places.setdefault(identity.labels.get(self._rank_key), []).append(place)

    def counters(self, samples: Iterable[Sample]) -> list[list[Sample]]:
        """For each engine the samples that count for it alone."""
        return self._parts(samples, _Identity.counts)

    def gauges(self, samples: Iterable[Sample]) -> list[list[Sample]]:
        """For each engine the samples that describe it, perhaps beside others."""
        return self._parts(samples, _Identity.describes)

    def _parts(self, samples: Iterable[Sample], belongs: Callable[[_Identity, Sample], bool]) -> list[list[Sample]]:
        parts: list[list[Sample]] = [[] for _ in self._identities]
        for sample in self._of_model(samples):
            label = sample.labels.get(self._rank_key)
            # Without the label it may be of any engine; with it, of few.
            for place in range(len(parts)) if label is None else self._places.get(label, ()):
                if belongs(self._identities[place], sample):
                    parts[place].append(sample)
        return parts


class _TextReader:
    """The steps of :func:`read_text`."""

    def __init__(
        self, exposition: Exposition, where: str, source: int, engine: str, model: str | None, ranks: int
    ) -> None:
        self._exposition = exposition
        self._where = where
        self._source = source
        family, self._prefix, self._other_prefixes = _flavour(exposition)
        if family is None:
            raise SnapshotError(_no_server_problem(exposition, where))
        if engine not in ("auto", family):
            raise SnapshotError.of(
                Code.SNAPSHOT_OTHER_ENGINE,
                where,
                f"these are metrics of {family}, not of {engine}",
                hint='set service.engine to "auto", or check the metrics URL',
            )
        self._family: ServerFamily = family
        self._by_name = _samples_by_name(exposition, self._prefix)
        self._old_names = family == "vllm" and not self._counter("queries") and bool(self._counter("gpu_queries"))
        self._per_rank = self._counts_per_rank(ranks)
        self._roles: tuple[str, ...] = ()
        self._problems: list[Problem] = []
        self._model = model
        self._model_names: tuple[str, ...] = ()

    def read(self) -> ReadText:
        queries, hits = self._queries_and_hits()
        fresh = not queries
        if fresh and (self._family == "vllm" or not self._by_name):
            raise SnapshotError(self._no_counters_problem())
        known = queries or self._gauge("running")
        self._choose_model(known)
        known = self._of_model(known)
        identities = self._identities(known)
        engines = self._engines(identities, queries, hits)
        if self._problems:
            raise SnapshotError(self._problems)
        server_hits = None
        if self._per_rank:
            server_hits = self._sum(self._of_model(self._local(self._counter("hits"))))
        return ReadText(
            family=self._family,
            prefix=self._prefix,
            queries_metric=queries[0].name if queries else self._written_name("queries"),
            hits_metric=hits[0].name if hits else self._written_name("hits"),
            unit=self._unit(identities, queries),
            engines=engines,
            model_names=self._model_names,
            process_starts=tuple(
                s.value for s in self._exposition.samples.get(PROCESS_START, ()) if math.isfinite(s.value)
            ),
            fresh=fresh,
            server_hits=server_hits,
            roles=self._roles,
            other_prefixes=self._other_prefixes,
        )

    # Which series

    def _counter(self, key: str) -> Sequence[Sample]:
        """All series of a counter, by whichever of its two names is shown."""
        name = COUNTERS[self._family].get(key, "")
        return self._by_name.get(f"{name}_total") or self._by_name.get(name, ())

    def _gauge(self, key: str) -> Sequence[Sample]:
        return self._by_name.get(GAUGES[self._family].get(key, ""), ())

    def _written_name(self, key: str) -> str:
        if self._per_rank:
            key = "prefill_tokens"
        if self._old_names:
            key = f"gpu_{key}"
        counted = self._counter("queries") or self._counter("gpu_queries")
        suffix = "_total" if not counted or counted[0].name.endswith("_total") else ""
        return f"{self._prefix}{COUNTERS[self._family][key]}{suffix}"

    def _counts_per_rank(self, ranks: int) -> bool:
        """Whether SGLang's scheduler counts are to be read: the others have no rank behind one entry point."""
        if self._family != "sglang" or ranks == 1 or any(_rank_label(s, "sglang") for s in self._counter("queries")):
            return False
        shown = self._counter("prefill_tokens") or (() if self._counter("queries") else self._gauge("running"))
        return len({s.labels.get("dp_rank") for s in shown} - {None}) > 0

    def _queries_and_hits(self) -> tuple[Sequence[Sample], Sequence[Sample]]:
        if self._per_rank:
            shown = [
                s
                for s in self._counter("prefill_tokens")
                if s.labels.get("mode", "") == "input" or s.labels.get("mode", "").endswith("_hit")
            ]
            return shown, [s for s in shown if s.labels["mode"] == _LOCAL_MODE]
        if self._old_names:
            return self._counter("gpu_queries"), self._counter("gpu_hits")
        return self._counter("queries"), self._counter("hits")

    def _local(self, hits: Sequence[Sample]) -> Sequence[Sample]:
        """Without what other tiers than the device's cache served."""
        return [s for s in hits if s.labels.get("cache_source", "") in _LOCAL_SOURCES]

    def _choose_model(self, samples: Sequence[Sample]) -> None:
        names = tuple(sorted({_model(s) for s in samples} - {""}))
        if len(names) > 1:
            if self._model not in names:
                raise SnapshotError.of(
                    Code.SNAPSHOT_SEVERAL_MODELS,
                    self._where,
                    f"the counters of several models are shown ({plain(', '.join(names))})"
                    + (f", {self._model!r} is not among them" if self._model else ""),
                    hint="set service.model to one of them, or use the metrics URL of the server itself",
                )
            assert self._model is not None
            self._model_names = (self._model,)
        else:
            self._model, self._model_names = None, names

    def _of_model(self, samples: Iterable[Sample]) -> list[Sample]:
        return [s for s in samples if self._model is None or _model(s) in (self._model, "")]

    # Which engines

    def _identities(self, samples: Sequence[Sample]) -> list[_Identity]:
        """The engines that the samples of one counter are of, in their order."""
        common: dict[str, str | None] = {}
        for key in ROLE_LABELS:
            role = self._prefill_role(key, samples)
            if role is not None:
                common[key] = role
                samples = [s for s in samples if s.labels.get(key) == role]
        for key in _labels_named_after_sides(samples):
            sides = {s.labels[key]: bool(_PREFILL_NAME.search(s.labels[key])) for s in samples}
            prefill = [value for value, is_prefill in sides.items() if is_prefill]
            self._roles = (" and ".join(prefill), *(value for value in sides if value not in prefill))
            samples = [s for s in samples if s.labels[key] in prefill]
            if len(prefill) == 1:
                common[key] = prefill[0]
        by_rank: dict[str | None, list[Sample]] = {}
        for sample in samples:
            by_rank.setdefault(_rank_label(sample, self._family), []).append(sample)
        if self._per_rank:
            for sample in self._of_model(self._gauge("running")):
                by_rank.setdefault(_rank_label(sample, self._family), [])
            if len(by_rank) > 1:
                by_rank.pop(None, None)
        rank_key = _rank_key(samples or self._gauge("running"), self._family)
        identities = []
        for label, of_label in by_rank.items():
            of_rank = of_label
            labels = dict(common) if rank_key is None else {**common, rank_key: label}
            for key in SHARD_LABELS:
                # With DP attention every rank has shards of its own.
                shards = sorted({s.labels[key] for s in of_rank if key in s.labels})
                if len(shards) > 1:
                    labels[key] = shards[0]
                    of_rank = [s for s in of_rank if s.labels.get(key) == shards[0]]
            for more in _told_apart(of_rank, labels):
                shown = ",".join(f"{key}={value}" for key, value in more.items() if value is not None)
                name = label if not shown else shown if label is None else f"{label}@{shown}"
                identities.append(_Identity(name and plain(name), {**labels, **more}))
        return identities or [_Identity(None, common)]

    def _prefill_role(self, key: str, samples: Sequence[Sample]) -> str | None:
        """The value of a role label that stands for the prefill side; None where the label tells no roles."""
        roles = sorted({s.labels.get(key, "") for s in samples})
        prefill = [role for role in roles if _PREFILL_ROLE.search(role)]
        if len(roles) == 1 and _DECODE_ROLE.search(roles[0]):
            raise SnapshotError.of(
                Code.SNAPSHOT_ROLES,
                self._where,
                f'only the decode side is shown ({key}="{plain(roles[0])}"), which gets its prompts from the '
                "prefill side",
                hint="give the metrics URL of the prefill side, whose cache the prompts ask",
            )
        if len(roles) < 2 or not prefill:
            return None
        others = [role for role in roles if role not in prefill]
        if len(prefill) > 1 or not all(_DECODE_BESIDE_PREFILL.search(role) for role in others):
            raise SnapshotError.of(
                Code.SNAPSHOT_ROLES,
                self._where,
                f"the label {key} tells the roles {plain(', '.join(role or '(none)' for role in roles))}, and not "
                "which of them counts the prompts",
                allowed="one prefill side, and decode sides beside it",
                hint="give the metrics URL of the prefill side alone",
            )
        self._roles = (prefill[0], *others)
        return prefill[0]

    # Their numbers

    def _engines(
        self, identities: Sequence[_Identity], queries: Sequence[Sample], hits: Sequence[Sample]
    ) -> tuple[Engine, ...]:
        family = self._family
        counters = {"queries": queries, "hits": self._local(hits), **self._external(queries, hits)}
        for key in COUNTERS[family]:
            if key in _OPTIONAL:
                counters[key] = self._counter(key)
        split = _Split(identities, family, self._of_model)
        counted = {key: split.counters(samples) for key, samples in counters.items()}
        shown = split.counters(hits)
        created = [
            split.counters(self._by_name.get(f"{name}_created", ()))
            for key, name in COUNTERS[family].items()
            if key in RESTART_COUNTERS
        ]
        gauges = {key: split.gauges(self._gauge(key)) for key in GAUGES[family]}
        return tuple(
            self._engine(
                identity,
                {key: parts[place] for key, parts in counted.items()},
                {key: parts[place] for key, parts in gauges.items()},
                [sample for parts in created for sample in parts[place]],
                hits_shown=self._per_rank or bool(shown[place]),
            )
            for place, identity in enumerate(identities)
        )

    def _engine(
        self,
        identity: _Identity,
        counted: Mapping[str, Sequence[Sample]],
        gauges: Mapping[str, Sequence[Sample]],
        created: Sequence[Sample],
        *,
        hits_shown: bool,
    ) -> Engine:
        sums = {key: self._sum(samples) for key, samples in counted.items()}
        if self._family == "vllm" and not hits_shown and sums["queries"]:
            self._problems.append(
                Problem(
                    Code.SNAPSHOT_NO_HITS,
                    self._where,
                    f"{counted['queries'][0].name} is shown"
                    f"{'' if identity.label is None else f' for engine {identity.label}'}, "
                    f"{self._written_name('hits')} is not",
                    hint="save the whole answer of the server's /metrics",
                )
            )
        values = {key: _largest(samples) for key, samples in gauges.items()}
        running, waiting, usage = values.get("running"), values.get("waiting"), values.get("kv_cache_usage")
        return Engine(
            label=identity.label,
            source=self._source,
            counters=EngineCounters(sums.pop("queries") or 0, sums.pop("hits") or 0, **sums),
            series={_series(s): int(s.value) for samples in counted.values() for s in samples if _is_count(s)},
            created={_series(s): s.value for s in created if math.isfinite(s.value)},
            hits_shown=hits_shown,
            kv_cache_usage=values.get("gpu_cache_usage") if usage is None else usage,
            running=None if running is None else int(running),
            waiting=None if waiting is None else int(waiting),
            asleep=_asleep(gauges.get("sleep", ())),
            config=_config(gauges.get("config", ()), values),
        )

    def _external(self, queries: Sequence[Sample], hits: Sequence[Sample]) -> dict[str, Sequence[Sample]]:
        """Counts of tiers outside of the device's cache."""
        if self._family == "vllm":
            return {key: self._counter(key) for key in ("external_queries", "external_hits")}
        if self._per_rank:
            return {"external_hits": [s for s in queries if s.labels["mode"] not in ("input", _LOCAL_MODE)]}
        return {"external_hits": [s for s in hits if s.labels.get("cache_source", "") not in _LOCAL_SOURCES]}

    def _sum(self, samples: Sequence[Sample]) -> int | None:
        total = 0
        for sample in samples:
            if _is_count(sample):
                total += int(sample.value)
            else:
                self._problems.append(
                    Problem(
                        Code.SNAPSHOT_VALUE,
                        f"{self._where} line {sample.line}",
                        f"{sample.name} is {sample.value:.17g}; a token counter is a whole number of at least 0",
                    )
                )
        return total if samples else None

    def _unit(self, identities: Sequence[_Identity], queries: Sequence[Sample]) -> CounterUnit:
        """vLLM counted blocks from 0.7.3 to 0.8.5, under the names that 0.9.0 kept for tokens."""
        if not self._old_names:
            return "tokens"
        name = queries[0].name
        sentence = self._exposition.helps.get(name, self._exposition.helps.get(name.removesuffix("_total"), ""))
        if "blocks" in sentence:
            return "blocks"
        if "tokens" in sentence:
            return "tokens"
        return "blocks" if [identity.label for identity in identities] == [None] else "unknown"

    def _no_counters_problem(self) -> Problem:
        if self._gauge("hit_rate"):
            return Problem(
                Code.SNAPSHOT_GAUGE_ONLY,
                self._where,
                f"only a momentary hit-rate gauge ({self._prefix}*cache_hit_rate) is shown; no counters of queries "
                "and hits",
                allowed="vLLM V1 from 0.7.3 on, or SGLang with token counters",
                hint="a gauge cannot say what one run hit; use a server version with counters (vLLM: the V1 engine)",
            )
        return Problem(
            Code.SNAPSHOT_NO_COUNTERS,
            self._where,
            f"no {self._prefix}{COUNTERS[self._family]['queries']}_total is shown, so there is nothing to count with",
            hint="save the whole answer of /metrics; vLLM shows the counters from 0.7.3 (V1 engine) on",
        )


_OPTIONAL = frozenset(each.name for each in fields(EngineCounters)) - {
    "queries",
    "hits",
    "external_queries",
    "external_hits",
}


def in_tokens(engine: Engine, unit: CounterUnit, block_size: int) -> Engine:
    """``engine`` with counters in tokens, where vLLM 0.7.3 to 0.8.5 counted blocks of ``block_size`` tokens.

    Its queries are then its prompt tokens, which know each prompt's incomplete last block too; without these nothing
    can be said and nothing changes.
    """
    counters = engine.counters
    if unit != "blocks" or counters.prompt_tokens is None:
        return engine
    return replace(engine, counters=replace(counters, queries=counters.prompt_tokens, hits=counters.hits * block_size))


def _flavour(exposition: Exposition) -> tuple[ServerFamily | None, str, tuple[str, ...]]:
    """Which server, and how its names begin: where several do, the one with counters, then the shortest.

    Last come the beginnings of other names with counters.
    """
    counted: dict[tuple[ServerFamily, str], bool] = {}
    for name in exposition.names:
        metric = split_name(name)
        if metric is not None:
            family = COUNTERS[metric.family]
            queries = {family["queries"], family.get("gpu_queries", "")}
            flavour = (metric.family, metric.prefix)
            counts = name in exposition.samples and metric.name.removesuffix("_total") in queries
            counted[flavour] = counted.get(flavour, False) or counts
    if not counted:
        return None, "", ()
    families = list(COUNTERS)
    ordered = sorted(counted, key=lambda each: (not counted[each], families.index(each[0]), len(each[1]), each[1]))
    return (*ordered[0], tuple(prefix for family, prefix in ordered[1:] if counted[family, prefix]))


def _samples_by_name(exposition: Exposition, prefix: str) -> dict[str, Sequence[Sample]]:
    """The samples of the names with this prefix, by what follows it."""
    found: dict[str, Sequence[Sample]] = {}
    for written, samples in exposition.samples.items():
        metric = split_name(written)
        if metric is not None and metric.prefix == prefix:
            found[metric.name] = samples
    return found


def _labels_named_after_sides(samples: Sequence[Sample]) -> list[str]:
    """Labels all of whose values name one side of a disaggregated deployment, and together both."""
    keys = sorted({key for s in samples for key in s.labels} - {*ROLE_LABELS, *MODEL_LABELS, *SUMMED_LABELS})
    found = []
    for key in keys:
        values = [s.labels.get(key, "") for s in samples]
        sides = {(bool(_PREFILL_NAME.search(value)), bool(_DECODE_NAME.search(value))) for value in values}
        if sides == {(True, False), (False, True)}:
            found.append(key)
    # The first tells the sides; what it leaves has one side only.
    return found[:1]


def _rank_key(samples: Sequence[Sample], family: ServerFamily) -> str | None:
    for key in RANK_LABELS[family]:
        if any(key in s.labels for s in samples):
            return key
    return None


def _rank_label(sample: Sample, family: ServerFamily) -> str | None:
    for key in RANK_LABELS[family]:
        if key in sample.labels:
            return sample.labels[key]
    return None


def _told_apart(samples: Sequence[Sample], known: Mapping[str, str | None]) -> list[dict[str, str | None]]:
    """The values of the labels that differ among series of one rank label: one mapping for each engine."""
    ignored = SUMMED_LABELS | set(MODEL_LABELS) | known.keys()
    keys = sorted({key for s in samples for key in s.labels} - ignored)
    differing = [key for key in keys if len({s.labels.get(key) for s in samples}) > 1]
    apart = dict.fromkeys(tuple(s.labels.get(key) for key in differing) for s in samples)
    return [dict(zip(differing, values, strict=True)) for values in apart] or [{}]


def _series(sample: Sample) -> Series:
    return Series(sample.name, tuple(sorted(sample.labels.items())))


def _is_count(sample: Sample) -> bool:
    return math.isfinite(sample.value) and sample.value >= 0 and sample.value == int(sample.value)


def _largest(samples: Sequence[Sample]) -> float | None:
    return max((s.value for s in samples if math.isfinite(s.value)), default=None)


def _asleep(samples: Sequence[Sample]) -> bool | None:
    states = {s.labels.get("sleep_state"): s.value for s in samples}
    return None if "awake" not in states else states["awake"] == 0


def _config(told: Sequence[Sample], gauges: Mapping[str, float | None]) -> CacheConfig | None:
    if told:
        return _cache_config(told[0].labels)

    def size(gauge: str) -> int | None:
        value = gauges.get(gauge)
        return int(value) if value else None

    config = CacheConfig(
        block_size=size("page_size"),
        kv_cache_size_tokens=size("capacity_tokens"),
        context_tokens=size("context_tokens"),
    )
    return None if config == CacheConfig() else config


def _model(sample: Sample) -> str:
    return next((sample.labels[key] for key in MODEL_LABELS if sample.labels.get(key)), "")


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


def _no_server_problem(exposition: Exposition, where: str) -> Problem:
    return Problem(
        Code.SNAPSHOT_NO_ENGINE_METRICS,
        where,
        "no metric of vLLM, SGLang or LMDeploy is shown"
        + (" (the Python process's own are)" if PYTHON_INFO in exposition.names else ""),
        hint="start vLLM without --disable-log-stats, SGLang with --enable-metrics; or check the metrics URL",
    )
