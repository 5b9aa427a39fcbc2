"""The kinds of data sets: one line each. Everything else that is said of a kind stands in its own file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Problem

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
    from ais_bench_prefix_cache.datasets.format.kind import DataSetKind
    from ais_bench_prefix_cache.scenario.model import Scenario

# ``benchmark_mode``, the module whose KIND it is, and whether ``prepare --mode`` makes it. Command lines list the names
# before anything else is imported.
KINDS: dict[str, tuple[str, bool]] = {
    "text": ("text.kind", True),
    "mm": ("images.kind", True),
    "trace": ("traces.kind", True),
    "conversation": ("conversations.kind", True),
    "distribution": ("copies.kind", False),
}
PREPARED_KINDS = tuple(name for name, (_, prepared) in KINDS.items() if prepared)


@cache
def kind_named(name: str) -> DataSetKind:
    """The kind that manifests call ``name``. Raises :class:`KeyError`."""
    module, _ = KINDS[name]
    kind: DataSetKind = import_module(f"{__package__}.{module}").KIND
    return kind


def sent_kinds(scenario: Scenario) -> tuple[str, ...]:
    """The names of the kinds that ``run`` can send for a Scenario; one that asks for conversations wants no other."""
    if scenario.conversation is not None:
        return ("conversation",)
    return tuple(name for name in KINDS if kind_named(name).run_refusal is None)


def verify(manifest_path: Path) -> VerifiedDataSet:
    """Verify a data set by the rules of its kind, wherever its files lie now.

    Raises :class:`ArtifactError` with everything that is wrong.
    """
    from ais_bench_prefix_cache.datasets.format.documents import read_document
    from ais_bench_prefix_cache.datasets.format.engine import verify_files

    manifest, content = read_document(manifest_path, what="manifest")
    kind = _kind_of(manifest_path, manifest)
    if kind.planned_elsewhere(manifest):
        return kind.verify_recorded(manifest_path, manifest, content)
    return verify_files(kind, manifest_path, manifest, content)


def verify_data_set(manifest_path: Path) -> VerifiedDataSet:
    """Verify a data set that ``run`` can send. Raises :class:`ArtifactError`, for other kinds with what to do."""
    from ais_bench_prefix_cache.datasets.format.documents import read_document

    manifest, _ = read_document(manifest_path, what="manifest")
    refusal = _kind_of(manifest_path, manifest).run_refusal
    if refusal is not None:
        code, message, hint = refusal
        raise ArtifactError(Problem(code, str(manifest_path), message, hint=hint))
    return verify(manifest_path)


def planned_here(data_set: VerifiedDataSet) -> VerifiedDataSet:
    """The data set, if this version's plan of its configuration gives it. Raises :class:`ArtifactError` otherwise."""
    lacking = data_set.planned_elsewhere
    if lacking:
        message = "nothing proves " + "; ".join(lacking)
        hint = "It can be validated and analyzed; to run, prepare it with this version."
        raise ArtifactError.of(Code.NOT_PROVEN, str(data_set.paths.manifest), message, hint=hint)
    return data_set


def _kind_of(path: Path, manifest: Mapping[str, Any]) -> DataSetKind:
    """The kind that a manifest says it is of. Raises :class:`ArtifactError`."""
    from ais_bench_prefix_cache.datasets.format.manifest import identity_problems
    from ais_bench_prefix_cache.foundation.findings import shown

    name = manifest.get("benchmark_mode", "text")
    kind = kind_named(name) if isinstance(name, str) and name in KINDS else None
    is_a_plan = manifest.get("status") == "inspected"
    if kind is None or kind.schema_version != manifest.get("schema_version") or is_a_plan:
        problems = identity_problems(path, manifest)
        if not problems and is_a_plan:
            message = "this manifest only holds a plan (status inspected); there is no data set yet"
            problems = [Problem(Code.NOT_PREPARED, str(path), message, hint="Run prepare with the same Scenario.")]
        allowed = ", ".join(map(repr, KINDS))
        wrong = Problem(Code.WRONG_VALUE, f"{path}: benchmark_mode", f"it says {shown(name)}", allowed=allowed)
        raise ArtifactError(problems or [wrong])
    return kind
