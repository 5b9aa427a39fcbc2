"""Checks of manifest and analysis that every kind of data set shares, whatever its rows are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.datasets.format.documents import (
    DIGEST_KEY,
    digest_problems,
    is_count,
    is_sha256,
    read_document,
)
from ais_bench_prefix_cache.datasets.format.manifest import ANALYSIS_FILE_KEYS, ROW_FILE_KEYS
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.writing import FileRecord
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.foundation.strict_json import canonical_sha256

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.format.kind import DataSetKind

LARGEST_COUNT = 1_000_000
"""A configured number above this is not believed."""
MEASURED_STATUSES = ("complete", "analyzed")
ANALYSIS_STATUSES = ("prepared", *MEASURED_STATUSES)

_FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "plugin_version": (lambda value: isinstance(value, str), "a string"),
    "scenario_path": (lambda value: isinstance(value, str), "a string"),
    "scenario_sha256": (is_sha256, "a SHA-256 in hexadecimal digits"),
    "corpus_sha256": (is_sha256, "a SHA-256 in hexadecimal digits"),
    "effective_config": (lambda value: isinstance(value, dict), "an object"),
}


def check_manifest_form(kind: DataSetKind, paths: RunPaths, manifest: Mapping[str, Any], findings: Findings) -> None:
    """The keys of its kind, and everything that rows cannot prove: names, digests, the configuration's own digest."""
    where, expected = paths.manifest.name, kind.manifest_keys
    missing = [key for key in expected if key not in manifest]
    unknown = [key for key in manifest if key not in expected]
    if missing:
        findings.add(Code.MISSING_KEY, where, f"it lacks {', '.join(missing)}")
    if unknown:
        findings.add(Code.UNKNOWN_KEY, where, f"it has unknown keys: {shown(', '.join(unknown))}")
    if not missing and not unknown and tuple(manifest) != expected:
        findings.add(Code.KEY_ORDER, where, "its keys are not in their order")
    exactly = {
        "schema_version": kind.schema_version,
        "status": "prepared",
        "benchmark_mode": kind.name,
        "run_id": paths.run_id,
    }
    if "effective_config_sha256" in expected:
        digest = canonical_sha256(manifest.get("effective_config"))
        if manifest.get("effective_config_sha256") != digest:
            place = f"{where}: effective_config_sha256"
            findings.add(Code.CONFIG_EDITED, place, "it is not the digest of effective_config")
    for key in expected:
        if key in exactly and key in manifest:
            compare_exactly(exactly[key], manifest[key], f"{where}: {key}", findings)
        if key in _FORMS and key in manifest:
            holds, allowed = _FORMS[key]
            if not holds(manifest[key]):
                findings.add(Code.WRONG_TYPE, f"{where}: {key}", f"it says {shown(manifest[key])}", allowed=allowed)
    check_tokenizer_section(manifest, kind.tokenizer_keys, where, findings)


def check_tokenizer_section(manifest: Mapping[str, Any], keys: tuple[str, ...], where: str, findings: Findings) -> None:
    """The ``keys`` of the manifest's tokenizer, their types, and what the configuration says of it, too."""
    tokenizer = manifest.get("tokenizer")
    if not isinstance(tokenizer, dict) or tuple(tokenizer) != keys:
        findings.add(Code.MISSING_KEY, f"{where}: tokenizer", "it does not have its keys", allowed=", ".join(keys))
        return
    if not is_sha256(tokenizer["fingerprint_sha256"]):
        findings.add(Code.WRONG_TYPE, f"{where}: tokenizer.fingerprint_sha256", "it is not a SHA-256")
    if not isinstance(tokenizer["class"], str):
        findings.add(Code.WRONG_TYPE, f"{where}: tokenizer.class", "it is not a string")
    if not is_count(tokenizer["vocab_size"]):
        findings.add(Code.WRONG_TYPE, f"{where}: tokenizer.vocab_size", "it is not a whole number")
    configured = value_in(manifest, "effective_config.tokenizer")
    configured = configured if isinstance(configured, dict) else {}
    for key in ("path", "revision", "block_size") if "block_size" in keys else ("path", "revision"):
        compare_exactly(configured.get(key), tokenizer[key], f"{where}: tokenizer.{key}", findings)


def check_artifacts_section(
    kind: DataSetKind,
    paths: RunPaths,
    manifest: Mapping[str, Any],
    row_files: Mapping[str, Path],
    records: Mapping[str, FileRecord],
    findings: Findings,
) -> None:
    """Names, sizes and digests that the manifest records against the files, as far as these could be read."""
    where = f"{paths.manifest.name}: artifacts"
    files = {**row_files, "analysis": paths.analysis} if kind.has_analysis else row_files
    artifacts = manifest.get("artifacts")
    if not isinstance(artifacts, dict) or tuple(artifacts) != tuple(files):
        findings.add(Code.MISSING_KEY, where, "it does not have its keys", allowed=", ".join(files))
        return
    for key, path in files.items():
        entry, place = artifacts[key], f"{where}.{key}"
        keys = ANALYSIS_FILE_KEYS if key == "analysis" else ROW_FILE_KEYS
        if not isinstance(entry, dict) or tuple(entry) != keys:
            findings.add(Code.MISSING_KEY, place, "it does not have its keys", allowed=", ".join(keys))
            continue
        compare_exactly(path.name, entry["name"], f"{place}.name", findings)
        if not isinstance(entry["path"], str) or Path(entry["path"]).name != path.name:
            findings.add(Code.WRONG_VALUE, f"{place}.path", f"it says {shown(entry['path'])}", allowed=f"…/{path.name}")
        if key == "analysis":
            if not is_count(entry["bytes"]) or not is_sha256(entry["sha256_at_prepare"]):
                findings.add(Code.WRONG_TYPE, place, "its size or digest is none")
        elif key in records:
            record = records[key]
            facts = (
                (Code.ROW_COUNT, "rows", record.rows),
                (Code.FILE_SIZE, "bytes", record.bytes),
                (Code.FILE_HASH, "sha256", record.sha256),
            )
            for code, name, found in facts:
                if entry[name] != found or type(entry[name]) is not type(found):
                    message = f"the file's {name} is {found}, the manifest says {shown(entry[name])}"
                    findings.add(code, path.name, message)


def check_analysis_form(
    kind: DataSetKind, paths: RunPaths, manifest: Mapping[str, Any], findings: Findings
) -> dict[str, Any]:
    """The analysis against its own digest and against the manifest's; empty where it cannot be read."""
    where = paths.analysis.name
    try:
        analysis, content = read_document(paths.analysis, what="analysis")
    except ArtifactError as error:
        findings.extend(list(error.problems))
        return {}
    findings.extend(digest_problems(paths.analysis, analysis, content, what="analysis"))
    status = analysis.get("status")
    statuses = ANALYSIS_STATUSES if kind.run_refusal is None else ANALYSIS_STATUSES[:1]
    if status not in statuses:
        findings.add(Code.WRONG_VALUE, f"{where}: status", f"it says {shown(status)}", allowed=", ".join(statuses))
    entry = manifest["artifacts"].get("analysis") if isinstance(manifest.get("artifacts"), dict) else None
    if status == "prepared" and isinstance(entry, dict):
        digest = hashlib.sha256(content).hexdigest()
        if entry.get("sha256_at_prepare") != digest or entry.get("bytes") != len(content):
            message = f"its SHA-256 is {digest}, the manifest says {shown(entry.get('sha256_at_prepare'))}"
            findings.add(Code.FILE_HASH, where, message)
    return analysis


def check_analysis_claims(
    expected: Mapping[str, Any], analysis: Mapping[str, Any], where: str, findings: Findings
) -> None:
    """What ``prepare`` must have written, ``expected``, against an analysis of any status."""
    status = analysis.get("status")
    found = {key: value for key, value in analysis.items() if key != DIGEST_KEY}
    if status != "prepared":
        # run and analyze add keys and warnings; what prepare said must still be there.
        found = {key: found[key] for key in expected if key in found}
        found["status"] = expected["status"]
        if "validation" in expected:
            found["validation"] = _only(found.get("validation"), expected["validation"])
            if isinstance(found["validation"], dict) and found["validation"].get("status") == "PASS_WITH_WARNING":
                found["validation"]["status"] = expected["validation"]["status"]
        if isinstance(found.get("warnings"), list):
            found["warnings"] = [warning for warning in found["warnings"] if warning in expected["warnings"]]
    compare_exactly(dict(expected), found, where, findings)


def compare_exactly(expected: Any, found: Any, where: str, findings: Findings) -> None:
    """Report every place in which ``found`` is not exactly ``expected``, types included."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            place = f"{where}.{key}" if ":" in where else f"{where}: {key}"
            if key not in found:
                findings.add(Code.MISSING_KEY, place, "it is missing", allowed=shown(value))
            else:
                compare_exactly(value, found[key], place, findings)
        for key in found:
            if key not in expected:
                place = f"{where}.{key}" if ":" in where else f"{where}: {key}"
                findings.add(Code.UNKNOWN_KEY, place, f"it should not be there: {shown(found[key])}")
        if expected.keys() == found.keys() and list(expected) != list(found):
            findings.add(Code.KEY_ORDER, where, "its keys are not in their order", allowed=", ".join(expected))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (value, claimed) in enumerate(zip(expected, found, strict=True)):
            compare_exactly(value, claimed, f"{where}[{index}]", findings)
    elif type(expected) is not type(found) or expected != found:
        code = Code.WRONG_VALUE if type(expected) is type(found) else Code.WRONG_TYPE
        findings.add(code, where, f"it says {shown(found)}", allowed=shown(expected))


class ConfigReader:
    """Reads values out of the effective configuration; :meth:`is_sound` says whether all could be used."""

    def __init__(self, config: Mapping[str, Any], where: str, findings: Findings) -> None:
        self._config = config
        self._where = where
        self._findings = findings
        self._sound = True

    def is_sound(self) -> bool:
        """Whether every value so far could be used."""
        return self._sound

    def count(self, path: str, minimum: int) -> int:
        value = value_in(self._config, path)
        if is_count(value) and minimum <= value <= LARGEST_COUNT:
            return value
        self._unusable(path, value, f"a whole number from {minimum} to {LARGEST_COUNT}")
        return 0

    def number(self, path: str, low: float, high: float) -> float:
        value = value_in(self._config, path)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        self._unusable(path, value, f"a number from {low} to {high}")
        return 0.0

    def text(self, path: str) -> None:
        value = value_in(self._config, path)
        if not isinstance(value, str):
            self._unusable(path, value, "a string")

    def choice(self, path: str, allowed: tuple[Any, ...]) -> Any:
        value = value_in(self._config, path)
        if any(value is choice or (isinstance(value, str) and value == choice) for choice in allowed):
            return value
        self._unusable(path, value, ", ".join(map(repr, allowed)))
        return None

    def _unusable(self, path: str, value: object, allowed: str) -> None:
        self._sound = False
        self._findings.add(Code.WRONG_TYPE, f"{self._where}.{path}", f"it says {shown(value)}", allowed=allowed)


def value_in(config: Mapping[str, Any], path: str) -> Any:
    """The value at ``path`` (keys with dots between), None where there is none."""
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _only(value: Any, keys: Mapping[str, Any]) -> Any:
    return {key: value[key] for key in keys if key in value} if isinstance(value, dict) else value
