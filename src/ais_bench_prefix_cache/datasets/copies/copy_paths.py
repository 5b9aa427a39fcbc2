"""Where the files of a parent-copying data set lie: beside each other, under a name that the user gave."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ais_bench_prefix_cache.datasets.format.paths import MANIFEST_SUFFIX, RunPaths
from ais_bench_prefix_cache.datasets.format.writing import PARTIAL_SUFFIX
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Problem

MOST_NUMBERED_NAMES = 1_000_000


@dataclass(frozen=True)
class CopyPaths(RunPaths):
    """``run_id`` is the main file's name without ``.jsonl``; all files lie in ``directory``.

    ``main_file`` is its whole name, where it is not ``run_id.jsonl``.
    """

    main_file: str | None = None

    @classmethod
    def of_requests(cls, requests: Path) -> CopyPaths:
        """The files of a data set whose main file is ``requests``, ``NAME.jsonl``."""
        return cls(requests.parent, requests.name.removesuffix(".jsonl"), requests.name)

    @classmethod
    def of_manifest(cls, manifest: Path) -> CopyPaths:
        """The files beside ``NAME.manifest.json``. Raises :class:`ArtifactError` for another name."""
        if not manifest.name.removesuffix(MANIFEST_SUFFIX) or not manifest.name.endswith(MANIFEST_SUFFIX):
            raise ArtifactError(
                Problem(
                    Code.MANIFEST_NAME,
                    str(manifest),
                    "this is not where a manifest lies",
                    allowed="NAME.manifest.json, with NAME.jsonl and NAME.prefixes.jsonl beside it",
                )
            )
        return cls(manifest.parent, manifest.name.removesuffix(MANIFEST_SUFFIX))

    @property
    def result_dir(self) -> Path:
        return self.directory

    @property
    def requests(self) -> Path:
        return self.directory / (self.main_file or f"{self.run_id}.jsonl")

    @property
    def origins(self) -> Path:
        """The audit file."""
        return self.directory / f"{self.run_id}.prefixes.jsonl"


def claim_names(wanted: Path) -> CopyPaths:
    """The first of ``name``, ``name_1``, ``name_2`` … of which none of the three files exists.

    The temporary file of the main one is made at once, so that two commands never take the same name; leaving the
    :class:`FileSet` that writes it removes it.
    """
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        for number in range(MOST_NUMBERED_NAMES):
            stem = wanted.name.removesuffix(wanted.suffix)
            paths = CopyPaths.of_requests(wanted.with_name(f"{stem}_{number}{wanted.suffix}") if number else wanted)
            if any(path.exists() for path in (paths.requests, paths.origins, paths.manifest)):
                continue
            partial = paths.requests.with_name(f".{paths.requests.name}{PARTIAL_SUFFIX}")
            # Held until this process ends; one that nobody holds was left by a killed command.
            descriptor = os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last holder may just have given the file its final name.
                if partial.stat().st_ino == os.fstat(descriptor).st_ino and not paths.requests.exists():
                    return paths
            os.close(descriptor)
    except OSError as error:
        raise ArtifactError(
            Problem(Code.CANNOT_WRITE, str(wanted), f"it cannot be written: {error.strerror or error}")
        ) from None
    raise ArtifactError(Problem(Code.NO_FREE_NAME, str(wanted), "a million numbered names are taken"))
