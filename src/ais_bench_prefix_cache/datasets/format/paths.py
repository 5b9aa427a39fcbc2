"""Where a run's files lie: one time-stamped directory with ``log/`` and ``result/``.

``output_dir`` ``./outputs/a`` and run id ``a`` at 12:34:56 on 25 August 2026 give::

    ./outputs/a_20260825_123456/log/a_20260825_123456.<command>.log
    ./outputs/a_20260825_123456/result/a_20260825_123456.{full.jsonl,requests.jsonl,manifest.json,analysis.json}

    ./outputs/a_20260825_123456/runs/20260825_130501/{run.json,analysis.json,…}

Each benchmark run of the data set has a directory of its own below ``runs``, which nothing changes afterwards;
``result/….analysis.json`` is the newest run's.

A kind of data set may have other files of rows there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError

TIMESTAMP_FORMAT = "%Y%m%d_%H%M%S"
MANIFEST_SUFFIX = ".manifest.json"
LATEST_ADVANCE_SECONDS = 3600
"""How far ahead of the clock a directory name may be when commands start faster than one a second."""


@dataclass(frozen=True)
class RunPaths:
    """The files of one run. ``run_id`` is the time-stamped one, ``directory`` the time-stamped directory."""

    directory: Path
    run_id: str

    @classmethod
    def create(cls, output_dir: Path, base_run_id: str, now: datetime) -> RunPaths:
        """Claim a new directory beside ``output_dir`` and make its ``log`` and ``result``.

        Creating the directory is the claim: of two commands in one second, one takes the next free second.
        """
        try:
            output_dir.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ArtifactError.of(
                Code.CANNOT_WRITE,
                str(output_dir.parent),
                "no directory can be made there: a part of the path is a file",
                hint="Set another run.output_dir.",
            ) from None
        directory = claim_stamped(output_dir.parent, f"{output_dir.name}_", now)
        paths = cls(directory, f"{base_run_id}_{split_timestamp(directory.name)[2]}")
        paths.log_dir.mkdir()
        paths.result_dir.mkdir()
        return paths

    @classmethod
    def of_manifest(cls, manifest: Path) -> RunPaths:
        """The files beside ``manifest``, wherever its directory has been moved to.

        Raises :class:`ArtifactError` where the name is not ``<run_id>_<time stamp>.manifest.json``, or the file does
        not lie in a ``result`` directory.
        """
        manifest = manifest.absolute()
        run_id = manifest.name.removesuffix(MANIFEST_SUFFIX)
        stem, _, _ = split_timestamp(run_id)
        if run_id == manifest.name or not stem or manifest.parent.name != "result":
            raise ArtifactError.of(
                Code.MANIFEST_NAME,
                str(manifest),
                "this is not where a manifest lies",
                allowed="…/result/<run_id>_<YYYYMMDD_HHMMSS>.manifest.json, with its data files beside it",
            )
        return cls(manifest.parent.parent, run_id)

    @property
    def timestamp(self) -> str:
        """``YYYYMMDD_HHMMSS``."""
        return split_timestamp(self.run_id)[2]

    @property
    def base_run_id(self) -> str:
        """The Scenario's ``run.run_id``."""
        return split_timestamp(self.run_id)[0]

    @property
    def log_dir(self) -> Path:
        return self.directory / "log"

    @property
    def result_dir(self) -> Path:
        return self.directory / "result"

    @property
    def runs_dir(self) -> Path:
        return self.directory / "runs"

    def runs(self) -> list[RunDirectory]:
        """The directories of this data set's benchmark runs, oldest first."""
        if not self.runs_dir.is_dir():
            return []
        stamped = (entry for entry in self.runs_dir.iterdir() if entry.is_dir() and is_timestamp(entry.name))
        return [RunDirectory(entry) for entry in sorted(stamped)]

    @property
    def full(self) -> Path:
        return self.result_dir / f"{self.run_id}.full.jsonl"

    @property
    def requests(self) -> Path:
        return self.result_dir / f"{self.run_id}.requests.jsonl"

    def data_files(self) -> list[Path]:
        """Every finished file of the data set that lies beside its manifest."""
        names = self.result_dir.glob("*") if self.result_dir.is_dir() else ()
        return [path for path in names if path.name.startswith(f"{self.run_id}.") and path != self.manifest]

    @property
    def manifest(self) -> Path:
        return self.result_dir / f"{self.run_id}{MANIFEST_SUFFIX}"

    @property
    def analysis(self) -> Path:
        return self.result_dir / f"{self.run_id}.analysis.json"

    def log(self, command: str) -> Path:
        """The log file of one command."""
        return self.log_dir / f"{self.run_id}.{command}.log"


@dataclass(frozen=True)
class RunDirectory:
    """What one benchmark run leaves, ``<data set>/runs/<time stamp>``; its files are written once and kept."""

    path: Path

    @classmethod
    def create(cls, data_set: RunPaths, now: datetime) -> RunDirectory:
        """Claim a new directory below the data set's ``runs``; of two runs in one second, one takes the next second."""
        data_set.runs_dir.mkdir(exist_ok=True)
        return cls(claim_stamped(data_set.runs_dir, "", now))

    @classmethod
    def containing(cls, path: Path) -> RunDirectory | None:
        """The run that ``path`` is: its directory, or a file in it. None where it is neither."""
        absolute = path.absolute()
        for directory in (absolute, absolute.parent):
            if is_timestamp(directory.name) and directory.parent.name == "runs":
                return cls(directory)
        return None

    @classmethod
    def named(cls, path: Path) -> RunDirectory:
        """As :meth:`containing`. Raises ArtifactError where ``path`` is no directory of a run, nor a file in one."""
        run = cls.containing(path)
        if run is None or not run.path.is_dir():
            raise ArtifactError.of(
                Code.MISSING_FILE,
                str(path),
                "this is no directory of a run",
                allowed="…/runs/<YYYYMMDD_HHMMSS>",
                hint="`runs` lists those of a Scenario.",
            )
        return run

    @classmethod
    def recorded(cls, data_set: RunPaths, analysis: Mapping[str, Any]) -> RunDirectory | None:
        """The run that an analysis names, if it lies below its data set; what it names is never another place."""
        runtime = analysis.get("runtime")
        name = runtime.get("run") if isinstance(runtime, Mapping) else None
        run = cls(data_set.runs_dir / name) if isinstance(name, str) and is_timestamp(name) else None
        return run if run is not None and run.path.is_dir() else None

    def data_set(self) -> RunPaths:
        """The data set that was run. Raises ArtifactError where its manifest is not beside the run any more."""
        result = self.data_set_directory / "result"
        manifests = sorted(result.glob(f"*{MANIFEST_SUFFIX}"))
        if len(manifests) != 1:
            found = "no manifest lies" if not manifests else f"{len(manifests)} manifests lie"
            hint = "Put the directory back."
            raise ArtifactError.of(Code.MISSING_FILE, str(result), f"{found} beside the run", hint=hint)
        return RunPaths.of_manifest(manifests[0])

    @property
    def name(self) -> str:
        """The run's time stamp, by which it is called."""
        return self.path.name

    @property
    def data_set_directory(self) -> Path:
        """The directory of the data set that was run."""
        return self.path.parent.parent

    @property
    def record(self) -> Path:
        """Who ran what, when, with which labels, and how it ended."""
        return self.path / "run.json"

    @property
    def config(self) -> Path:
        """The effective configuration of the run, without the API key."""
        return self.path / "effective_config.json"

    @property
    def analysis(self) -> Path:
        return self.path / "analysis.json"

    def metrics(self, look: str, port: int) -> Path:
        """A text of ``/metrics`` from ``look`` ("baseline", "after"); ``port`` counts ``service.metrics_url``."""
        return self.path / f"metrics.{look}.{port}.txt"

    @property
    def series(self) -> Path:
        """Samples of the caches' use and of the queues, one JSON line a sample."""
        return self.path / "series.jsonl"

    @property
    def requests(self) -> Path:
        """One JSON line a request."""
        return self.path / "requests.jsonl"

    @property
    def aisbench(self) -> Path:
        """Everything that AISBench wrote."""
        return self.path / "aisbench"

    def log(self, command: str) -> Path:
        """The log file of one command."""
        return self.path / f"{command}.log"


def claim_stamped(parent: Path, beginning: str, now: datetime) -> Path:
    """A new directory ``<beginning><time stamp>``: creating it is the claim; later seconds where one is taken."""
    for seconds in range(LATEST_ADVANCE_SECONDS):
        directory = parent / f"{beginning}{(now + timedelta(seconds=seconds)).strftime(TIMESTAMP_FORMAT)}"
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        return directory
    raise ArtifactError.of(
        Code.NO_FREE_DIRECTORY,
        str(parent / beginning),
        f"every time stamp of the next {LATEST_ADVANCE_SECONDS} seconds is taken",
        hint="Set another run.output_dir, or move old directories away.",
    )


def is_timestamp(text: str) -> bool:
    """Whether ``text`` is ``YYYYMMDD_HHMMSS`` of a day and second that exist."""
    try:
        # Only what strftime would write: strptime itself also takes 5 for 05.
        return datetime.strptime(text, TIMESTAMP_FORMAT).strftime(TIMESTAMP_FORMAT) == text
    except ValueError:
        return False


def split_timestamp(name: str) -> tuple[str, str, str]:
    """``stem_YYYYMMDD_HHMMSS`` → (stem, ``_``, time stamp); empty strings where ``name`` has no such end."""
    stem, separator, timestamp = name[:-16], name[-16:-15], name[-15:]
    return (stem, separator, timestamp) if stem and separator == "_" and is_timestamp(timestamp) else ("", "", "")
