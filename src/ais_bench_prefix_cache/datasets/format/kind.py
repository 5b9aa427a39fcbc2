"""What a kind of data set has to say of itself; :mod:`.engine` writes, verifies and verifies deeply by it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ais_bench_prefix_cache.datasets.format.manifest import SCHEMA_VERSION, TOKENIZER_KEYS
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.rows import LineBatch, Row
from ais_bench_prefix_cache.datasets.format.writing import FileRecord
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import Findings
from ais_bench_prefix_cache.foundation.telling import ProgressBar, no_bar
from ais_bench_prefix_cache.scenario.model import Scenario, ScenarioRules

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

JsonRow = Mapping[str, Any]
Warnings = Sequence[Mapping[str, Any]]


class Ledger(ABC):
    """What the rows of one data set must be, and what they add up to; the same when it is written and verified."""

    count: int | None = None
    """The number of rows where it is known beforehand."""

    @abstractmethod
    def expected(self, index: int, row: JsonRow) -> Row:
        """The only row that may stand at ``index`` with the free values of ``row``. Keys and free values are sound."""

    def companions(self, index: int, row: JsonRow) -> tuple[JsonRow, ...]:
        """The rows of the other files, in the files' order, that belong to ``row``."""
        return ()

    def add(self, index: int, row: JsonRow, where: str, findings: Findings) -> None:
        """Take in a row that has been compared; it may be wrong, but its keys and free values are sound."""
        return

    def finish(self, name: str, findings: Findings) -> None:
        """Say what only all rows together show. ``name`` is the first file's."""
        return

    @abstractmethod
    def sections(self, artifacts: Mapping[str, Any]) -> dict[str, Any]:
        """The manifest's sections of this kind. ``artifacts`` is the manifest's own section of files."""

    def analysis(self, run_id: str, recorded: Warnings | None) -> dict[str, Any] | None:
        """``analysis.json`` as ``prepare`` writes it, without its digest; None for kinds that have none.

        ``recorded`` is None while it is written, later the warnings that a file has: those that only making the data
        set shows are believed.
        """
        return None


@dataclass(frozen=True)
class Sources:
    """What texts are made from, and how many processes may make them again."""

    corpus: Corpus
    tokenizer: PromptTokenizer
    workers: int = 1


@dataclass(frozen=True)
class Preparation:
    """One call to make a data set's content: its Scenario, and what the command line said besides.

    ``load`` loads corpus and tokenizer of the Scenario and calls what it is given, and raises the problems of all
    of them at once. ``check_whole`` asks for every prompt to be encoded whole, whatever has been proven.
    ``workers`` is how many processes may make the rows, ``ray`` the address of a Ray cluster that may.
    """

    scenario: Scenario
    load: Callable[..., Sources]
    check_whole: bool = False
    workers: int = 1
    ray: str | None = None
    trace: Path | None = None
    trace_block_size: int | None = None


@dataclass(frozen=True)
class Content:
    """A data set that can be written or compared: its rows are made while they are read."""

    rows: Iterable[Row]
    count: int
    ledger: Ledger
    notes: tuple[str, ...] = ()
    """What the log says of its making."""
    batches: Iterable[LineBatch] | None = None
    """The lines of the rows, where making them needs no rows one by one."""
    one_process: str | None = "only text data sets and those of traces are made by several"
    """Why several processes cannot make it; None where they can."""


@dataclass(frozen=True)
class Inspection:
    """A plan that nothing was made of: what ``inspect`` prints, what it warns of, and its line of the log.

    ``theoretical_hit_rate`` is a fraction of 1; None where only the server knows the tokens.
    """

    summary: Mapping[str, Any]
    warnings: Warnings
    note: str
    requests: int
    theoretical_hit_rate: float | None


class DeepCheck(ABC):
    """Judges the tokens of every text of a data set."""

    special_tokens: bool = True
    """Whether texts are encoded with the special tokens that the endpoint adds."""

    @abstractmethod
    def texts(self) -> Iterator[tuple[str, Callable[[Sequence[int]], None]]]:
        """Each text with what judges its token ids."""

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """What was counted, after every text has been judged."""


class DataSetKind(ABC):
    """One kind of data set. Its instances have no state."""

    name: ClassVar[str]
    """``benchmark_mode`` of its manifests."""
    schema_version: ClassVar[Any] = SCHEMA_VERSION
    manifest_keys: ClassVar[tuple[str, ...]]
    tokenizer_keys: ClassVar[tuple[str, ...]] = TOKENIZER_KEYS
    row_type: ClassVar[type[Row]]
    """The rows of the first file; those of the others follow from them."""

    has_analysis: ClassVar[bool] = True

    scenario_rules: ClassVar[ScenarioRules] = "prefixes"
    """Which sections of its Scenario count."""
    run_refusal: ClassVar[tuple[Code, str, str] | None] = None
    """Code, message and hint for those who want to run it; None where it can be run."""
    hits_are_known: ClassVar[bool] = True
    """Whether there is a theory that counters can be compared with."""
    answer_length_key: ClassVar[str] = "max_tokens"
    """Where a row says how many tokens its answer has."""
    aisbench_template: ClassVar[str] = "prefix_cache_perf.py"
    """The built-in AISBench configuration that sends it."""
    takes_template: ClassVar[bool] = True
    """Whether a user's own AISBench configuration can send it."""

    def paths(self, manifest: Path) -> RunPaths:
        """Where its files lie, wherever they have been moved to. Raises :class:`ArtifactError`."""
        return RunPaths.of_manifest(manifest)

    def inspect(self, scenario: Scenario, bar: ProgressBar = no_bar) -> Inspection:
        """The plan of a Scenario; ``bar`` may show how far a long one is. Raises :class:`PrefixCacheError`."""
        raise NotImplementedError(f"data sets of the kind {self.name} have no plan")

    def prepare(self, preparation: Preparation) -> Content:
        """What ``prepare --mode`` writes, as far as it can be refused: rows are made while they are written.

        Raises :class:`PrefixCacheError`.
        """
        raise NotImplementedError(f"prepare does not make data sets of the kind {self.name}")

    def report(self, paths: RunPaths, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """What ``prepare`` prints before the paths of manifest, analysis and log."""
        files = self.row_files(paths, manifest)
        return {key: str(path) for key, path in (files or {}).items()}

    @abstractmethod
    def row_files(self, paths: RunPaths, manifest: Mapping[str, Any]) -> dict[str, Path] | None:
        """The files of rows under their keys in ``artifacts``, that of :attr:`row_type` first.

        None where the manifest is too damaged to tell.
        """

    @abstractmethod
    def ledger(
        self, paths: RunPaths, manifest: Mapping[str, Any], records: Mapping[str, FileRecord], findings: Findings
    ) -> Ledger | None:
        """What the rows of ``manifest`` must be; None, with findings, where its configuration cannot say.

        ``records`` has the files of rows as they are, without those that cannot be read.
        """

    def planned_elsewhere(self, manifest: Mapping[str, Any]) -> list[str]:
        """What nothing proves of a data set that this version's plan cannot give; empty for all others."""
        return []

    def verify_recorded(self, path: Path, manifest: dict[str, Any], content: bytes) -> VerifiedDataSet:
        """Verify what such a data set says of itself. Raises :class:`ArtifactError` with all that is wrong."""
        raise NotImplementedError(f"data sets of the kind {self.name} are all planned by their own version")

    def not_proven(self, manifest: Mapping[str, Any]) -> list[str]:
        """What of a verified data set nothing proves, not even making it again."""
        return []

    def corpus_fields(self, manifest: Mapping[str, Any]) -> tuple[str, ...]:
        """The fields of corpus rows that hold its text, in the order of preference."""
        return (manifest["effective_config"]["corpus"]["field"],)

    @abstractmethod
    def rebuild(
        self, paths: RunPaths, manifest: Mapping[str, Any], sources: Sources, trace: Path | None
    ) -> Content | None:
        """A verified data set made again from its recorded configuration; None where something for it is missing.

        ``sources`` are those that it was made from. Raises :class:`PrefixCacheError`.
        """

    @abstractmethod
    def deep_check(
        self, paths: RunPaths, manifest: Mapping[str, Any], tokenizer: PromptTokenizer, findings: Findings
    ) -> DeepCheck:
        """The judge of a verified data set's tokens."""
