"""Data sets: made, and read back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.api.scenarios import ScenarioFile, file_and_options
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.rows import read_rows
from ais_bench_prefix_cache.datasets.kinds import verify_data_set
from ais_bench_prefix_cache.datasets.preparing import prepare_data_set
from ais_bench_prefix_cache.foundation.telling import Note, no_note
from ais_bench_prefix_cache.reporting.notebook import data_frame, html_tables, remarks_of

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class DataSet:
    """A prepared data set: where its files are, and what they promise.

    ``analysis`` has the theory; after a run also what the newest run counted. ``theoretical_hit_rate`` is a fraction of
    1, None for images, of which only the server knows the tokens.
    """

    manifest_path: Path
    manifest: Mapping[str, Any] = field(repr=False)
    analysis: Mapping[str, Any] = field(repr=False)

    @property
    def directory(self) -> Path:
        return RunPaths.of_manifest(self.manifest_path).directory

    @property
    def runs(self) -> tuple[Path, ...]:
        """The directories of its runs, oldest first; :func:`load_run` reads one."""
        return tuple(run.path for run in RunPaths.of_manifest(self.manifest_path).runs())

    @property
    def theoretical_hit_rate(self) -> float | None:
        rate: float | None = self.analysis.get("theoretical_hit_rate")
        return rate

    @property
    def warnings(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.analysis.get("warnings", ()))

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as they will be sent, prompts included. Raises PrefixCacheError without pandas."""
        return data_frame(list(read_rows(verify_data_set(self.manifest_path).first_file)))

    def _repr_html_(self) -> str:
        rate = self.theoretical_hit_rate
        rows = [
            ("Kind", str(self.manifest["benchmark_mode"])),
            ("Requests", str(self.manifest["requests"]["count"])),
            ("Theoretical hit rate", "not known for images" if rate is None else f"{rate:.2%}"),
            ("Runs", str(len(self.runs))),
            ("Manifest", str(self.manifest_path)),
        ]
        title = f"Data set {self.manifest['run_id']}"
        return html_tables(title, [("prepared", ("", "Value"), rows)], remarks_of(self.warnings))


def prepare(
    scenario: ScenarioFile,
    settings: Mapping[str, Any] | None = None,
    *,
    mode: str | None = None,
    overwrite: bool = False,
    workers: int = 1,
    note: Note = no_note,
) -> DataSet:
    """Make the data set of a Scenario: prompts that are exact to the token, and the theory of every request.

    ``mode`` is that of ``prepare --mode``; without it the Scenario tells. ``overwrite`` remakes the newest in place;
    otherwise each call makes one in a directory of its own. ``note`` is called with lines for people (``note=print``).

    Raises:
        ScenarioError, GenerationError, ArtifactError: with everything that is wrong; nothing is left behind.
    """
    path, options = file_and_options(scenario, settings)
    made = prepare_data_set(path, mode=mode, settings=options, overwrite=overwrite, workers=workers, note=note)
    return load_data_set(made.paths.manifest)


def load_data_set(manifest: str | os.PathLike[str]) -> DataSet:
    """A prepared data set, by its ``manifest.json``, after every byte of it has been verified.

    Raises:
        ArtifactError: with everything that is wrong.
    """
    verified = verify_data_set(Path(manifest))
    return DataSet(verified.paths.manifest, verified.manifest, verified.analysis)
