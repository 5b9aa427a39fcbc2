"""A file of requests through the caches of some ranks, for one or several block sizes in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from ais_bench_prefix_cache.calculators.simulation import ReplayedEngine, Simulation
from ais_bench_prefix_cache.datasets.format.manifest import read_manifest
from ais_bench_prefix_cache.datasets.format.writing import FileSet
from ais_bench_prefix_cache.datasets.traces.mooncake import MooncakeRows
from ais_bench_prefix_cache.datasets.traces.reading import TraceFields, TraceRow, read_trace
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.kvcache.trace_replay import RoutingRule

DEFAULT_BLOCK_SIZE = 16

Order = Literal["file", "timestamp", "random"]


@dataclass(frozen=True)
class SimulatedFile:
    """The requests and the order in which they are sent (all but ``file`` hold the whole file in memory).

    ``manifest``: of a prepared data set, whose warm-up prompts are sent first and not counted.
    """

    path: Path
    tokenizer: PromptTokenizer | None = None
    fields: TraceFields = field(default_factory=TraceFields)
    trace_block_size: int | None = None
    output_tokens: int | None = None
    order: Order = "file"
    seed: int = 0
    manifest: Path | None = None

    def rows(self) -> Iterator[TraceRow]:
        """The requests in the order in which they are sent."""
        rows = read_trace(
            self.path,
            tokenizer=self.tokenizer,
            fields=self.fields,
            trace_block_size=self.trace_block_size,
            output_tokens=self.output_tokens,
        )
        if self.order == "file":
            return rows
        held = list(rows)
        if self.order == "timestamp":
            held.sort(key=lambda row: row.timestamp_ms)
        else:
            order = RandomStream(self.seed, "simulate order").permutation(len(held))
            held = [held[index] for index in order.tolist()]
        return iter(held)

    def warmup_rows(self, ranks: int) -> Iterator[TraceRow]:
        """The warm-up plan of the manifest, each row with its rank.

        Raises:
            ArtifactError: a prompt needs a tokenizer, or its rank is not one of ``ranks``.
        """
        if self.manifest is None:
            return
        plan = read_manifest(self.manifest).get("warmup", {}).get("plan", [])
        for number, entry in enumerate(plan, start=1):
            if self.tokenizer is None:
                raise ArtifactError.of(
                    Code.TOKENIZER_NEEDED, "--manifest", "its warm-up prompts are texts", hint="Give --tokenizer."
                )
            if entry["dp_rank"] >= ranks:
                raise ArtifactError.of(
                    Code.NO_SUCH_RANK,
                    "--ranks",
                    f"the warm-up plan names rank {entry['dp_rank']}",
                    allowed=f"at least {entry['dp_rank'] + 1}",
                )
            ids = self.tokenizer.encode(entry["prompt"])
            yield TraceRow(number, ids, 1, len(ids), entry["max_tokens"], entry["group_id"], entry["dp_rank"], 0)


@dataclass(frozen=True)
class SimulatedCaches:
    """The caches, and what is measured; see :class:`~ais_bench_prefix_cache.calculators.simulation.Simulation`.

    ``block_sizes``: of its own each a simulation (none: that of the trace, else :data:`DEFAULT_BLOCK_SIZE`).
    ``routing`` ``auto``: by the rank that the first row names, where it does and there are several, else round-robin.
    ``capacity_curve``: numbers of blocks; empty for a choice of its own, None for no curve.
    """

    block_sizes: tuple[int, ...] = ()
    num_blocks: int | None = None
    ranks: int = 1
    routing: RoutingRule | Literal["auto"] = "auto"
    concurrency: int = 1
    capacity_curve: tuple[int, ...] | None = None
    per_request: bool = False
    engine: ReplayedEngine = "vllm"

    def simulations(self, first: TraceRow) -> list[Simulation]:
        """One for each block size, for requests that begin with ``first``."""
        routing = self.routing
        if routing == "auto":
            routing = "field" if first.rank is not None and self.ranks > 1 else "round-robin"
        return [
            Simulation(
                block_size=block_size,
                num_blocks=self.num_blocks,
                ranks=self.ranks,
                routing=routing,
                concurrency=self.concurrency,
                capacity_curve=self.capacity_curve is not None,
                per_request=self.per_request,
                engine=self.engine,
            )
            for block_size in self.block_sizes or [first.id_tokens if first.id_tokens > 1 else DEFAULT_BLOCK_SIZE]
        ]


@dataclass(frozen=True)
class MooncakeExport:
    """A trace to which the requests are written, too, in blocks of ``block_size`` tokens."""

    path: Path
    block_size: int = 512


def simulate_file(
    requests: SimulatedFile, caches: SimulatedCaches, export: MooncakeExport | None = None
) -> list[dict[str, Any]]:
    """The document of each block size.

    Raises:
        ArtifactError: the file holds no requests, or rows that cannot be replayed.
        CalculationError: the caches are impossible, or too small for a request.
    """
    rows = requests.rows()
    first = next(rows, None)
    if first is None:
        raise ArtifactError.of(Code.NO_REQUESTS, str(requests.path), "holds no requests")
    simulations = caches.simulations(first)
    for row in requests.warmup_rows(caches.ranks):
        for simulation in simulations:
            simulation.warm(row)
    with _exporting(export) as write:
        for row in chain([first], rows):
            write(row)
            for simulation in simulations:
                simulation.send(row)
    return [
        {"file": str(requests.path), **simulation.document(curve_sizes=caches.capacity_curve or None)}
        for simulation in simulations
    ]


@contextmanager
def _exporting(export: MooncakeExport | None) -> Iterator[Callable[[TraceRow], object]]:
    """A function that takes each request; the file appears when all have been written."""
    if export is None:
        yield lambda row: None
        return
    rows = MooncakeRows(export.block_size)
    with FileSet(replace=True) as files:
        exported = files.open(export.path)
        yield lambda row: exported.write(rows.line(row))
        files.commit()
