"""Where a run's files lie: one time-stamped directory with ``log/`` and ``result/``.

``output_dir`` ``./outputs/a`` and run id ``a`` at 12:34:56 on 25 August 2026 give::

    ./outputs/a_20260825_123456/log/a_20260825_123456.<command>.log
    ./outputs/a_20260825_123456/result/a_20260825_123456.{full.jsonl,requests.jsonl,manifest.json,analysis.json}

A kind of data set may have other files of rows there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Problem

TIMESTAMP_FORMAT = "%Y%m%d_%H%M%S"
_TIMESTAMP = re.compile(r"\d{8}_\d{6}", re.ASCII)
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
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        for seconds in range(LATEST_ADVANCE_SECONDS):
            timestamp = (now + timedelta(seconds=seconds)).strftime(TIMESTAMP_FORMAT)
            directory = output_dir.with_name(f"{output_dir.name}_{timestamp}")
            try:
                directory.mkdir()
            except FileExistsError:
                continue
            paths = cls(directory, f"{base_run_id}_{timestamp}")
            paths.log_dir.mkdir()
            paths.result_dir.mkdir()
            return paths
        raise ArtifactError(
            Problem(
                Code.NO_FREE_DIRECTORY,
                str(output_dir),
                f"every time stamp of the next {LATEST_ADVANCE_SECONDS} seconds is taken",
                hint="Set another run.output_dir, or move old directories away.",
            )
        )

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
            raise ArtifactError(
                Problem(
                    Code.MANIFEST_NAME,
                    str(manifest),
                    "this is not where a manifest lies",
                    allowed="…/result/<run_id>_<YYYYMMDD_HHMMSS>.manifest.json, with its data files beside it",
                )
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
    def full(self) -> Path:
        return self.result_dir / f"{self.run_id}.full.jsonl"

    @property
    def requests(self) -> Path:
        return self.result_dir / f"{self.run_id}.requests.jsonl"

    def data_files(self) -> list[Path]:
        """Every finished file of the run that lies beside its manifest."""
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


def split_timestamp(name: str) -> tuple[str, str, str]:
    """``stem_YYYYMMDD_HHMMSS`` → (stem, ``_``, time stamp); empty strings where ``name`` has no such end."""
    stem, separator, timestamp = name[:-16], name[-16:-15], name[-15:]
    if not stem or separator != "_" or _TIMESTAMP.fullmatch(timestamp) is None:
        return "", "", ""
    try:
        datetime.strptime(timestamp, TIMESTAMP_FORMAT)
    except ValueError:
        return "", "", ""
    return stem, separator, timestamp
