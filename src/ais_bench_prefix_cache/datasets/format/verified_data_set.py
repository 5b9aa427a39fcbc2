"""What a data set is after its files have been proven."""

from __future__ import annotations

from ais_bench_prefix_cache.datasets.format.paths import RunPaths

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any, Protocol

    class ProvenFiles(Protocol):
        """What every kind of verified data set can tell."""

        @property
        def manifest(self) -> dict[str, Any]: ...

        @property
        def rows(self) -> int: ...

        @property
        def run_id(self) -> str: ...


class VerifiedDataSet:
    """A data set whose files have been proven: its manifest and analysis, where they lie, and its formal requests."""

    def __init__(self, manifest: dict[str, Any], analysis: dict[str, Any], paths: RunPaths, rows: int) -> None:
        self.manifest = manifest
        self.analysis = analysis
        self.paths = paths
        self.rows = rows

    @property
    def run_id(self) -> str:
        return self.paths.run_id
