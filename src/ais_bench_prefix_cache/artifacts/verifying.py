"""Proves that the files of a data set are what ``prepare`` wrote and that they agree with each other.

Everything is walked, everything that is wrong is collected, and one :class:`ArtifactError` is raised with all of it:

1. the manifest's bytes, digest, keys and types;
2. size and SHA-256 of ``full.jsonl``, ``requests.jsonl`` and (before a run) ``analysis.json``;
3. every row: keys, order, types, sequence, lanes, lengths, hits, uniqueness, and its partner in the other file;
4. what the manifest and the analysis claim, against what the rows add up to.

The last two hold even where somebody edited a file and then made all digests fit again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ais_bench_prefix_cache.artifacts import manifest as manifest_format
from ais_bench_prefix_cache.artifacts.documents import (
    canonical_sha256,
    digest_problems,
    is_count,
    is_sha256,
    read_document,
)
from ais_bench_prefix_cache.artifacts.findings import Findings, shown
from ais_bench_prefix_cache.artifacts.paths import RunPaths
from ais_bench_prefix_cache.artifacts.row_checks import RowRules, check_rows
from ais_bench_prefix_cache.artifacts.theory import (
    Theory,
    analysis_document,
    divergence_section,
    prefix_cache_section,
    warmup_section,
)
from ais_bench_prefix_cache.errors import ArtifactError, Problem
from ais_bench_prefix_cache.group_names import group_name

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


READ_BYTES = 1 << 20
LARGEST_COUNT = 1_000_000
"""A configured number above this is not believed."""
_ROW_FILE_KEYS = ("name", "path", "rows", "bytes", "sha256")
ANALYSIS_STATUSES = ("prepared", "complete", "analyzed")
CAPACITY_WARNING = "CACHE_TOO_SMALL"


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


def verify_data_set(manifest_path: Path) -> VerifiedDataSet:
    """Verify the data set of a prepared manifest, wherever its directory lies now.

    Raises :class:`ArtifactError` with everything that is wrong.
    """
    paths = RunPaths.of_manifest(manifest_path)
    manifest, content = read_document(paths.manifest, what="manifest")
    problems = manifest_format.identity_problems(paths.manifest, manifest) or _kind_problems(paths, manifest)
    if problems:
        raise ArtifactError(problems)
    if manifest["benchmark_mode"] == "mm":
        from ais_bench_prefix_cache.multimodal.verifying import verify_image_data_set

        return verify_image_data_set(paths, manifest, content)
    findings = Findings()
    findings.extend(digest_problems(paths.manifest, manifest, content, what="manifest"))
    check_manifest_form(paths, manifest, manifest_format.PREPARED_KEYS, findings)
    files = {"full": paths.full, "requests": paths.requests}
    hashes = FileHashes(files)
    rules = _row_rules(paths, manifest, findings)
    theory, rows = None, 0
    if rules is not None:
        theory, rows = _check_row_files(paths, rules, findings)
    check_artifacts_section(paths, manifest, files, hashes.results(findings), rows if theory else None, findings)
    if rules is not None and theory is not None:
        _check_claims(paths, manifest, rules, theory, findings)
    analysis = _check_analysis(paths, manifest, theory, findings)
    findings.raise_if_any()
    return VerifiedDataSet(manifest, analysis, paths, rows)


def _kind_problems(paths: RunPaths, manifest: Mapping[str, Any]) -> list[Problem]:
    where = str(paths.manifest)
    if manifest["status"] == "inspected":
        return [
            Problem(
                "NOT_PREPARED",
                where,
                "this manifest only holds a plan (status inspected); there is no data set yet",
                hint="Run prepare with the same Scenario.",
            )
        ]
    mode = manifest.get("benchmark_mode")
    if mode == "distribution":
        message = "this is a data set of the command distribution; it has no ranks, warm-up or analysis"
        return [Problem("DISTRIBUTION", where, message, hint="Of this kind, validate checks the files.")]
    if mode == "trace":
        return [
            Problem(
                "TRACE",
                where,
                "this data set was made from a trace",
                hint="Only validate reads it; send its requests with a client that keeps the times of full.jsonl.",
            )
        ]
    if mode not in ("text", "mm"):
        return [Problem("WRONG_VALUE", f"{where}: benchmark_mode", f"it says {shown(mode)}", allowed="'text' or 'mm'")]
    return []


def check_manifest_form(
    paths: RunPaths, manifest: Mapping[str, Any], expected: tuple[str, ...], findings: Findings
) -> None:
    """The ``expected`` keys, and everything that rows cannot prove: names, digests, the configuration's own digest."""
    where = paths.manifest.name
    if tuple(manifest) != expected:
        missing = [key for key in expected if key not in manifest]
        unknown = [key for key in manifest if key not in expected]
        if missing:
            findings.add("MISSING_KEY", where, f"it lacks {', '.join(missing)}")
        if unknown:
            findings.add("UNKNOWN_KEY", where, f"it has unknown keys: {shown(', '.join(unknown))}")
        if not missing and not unknown:
            findings.add("KEY_ORDER", where, "its keys are not in their order")
    config = manifest["effective_config"]
    if manifest.get("effective_config_sha256") != canonical_sha256(config):
        findings.add("CONFIG_EDITED", f"{where}: effective_config_sha256", "it is not the digest of effective_config")
    if manifest["run_id"] != paths.run_id:
        findings.add("WRONG_VALUE", f"{where}: run_id", f"it says {shown(manifest['run_id'])}", allowed=paths.run_id)
    for key in ("scenario_sha256", "corpus_sha256"):
        if not is_sha256(manifest.get(key)):
            findings.add("WRONG_TYPE", f"{where}: {key}", "it is not a SHA-256 in hexadecimal digits")
    if not isinstance(manifest.get("plugin_version"), str):
        findings.add("WRONG_TYPE", f"{where}: plugin_version", "it is not a string")
    tokenizer = manifest.get("tokenizer")
    keys = manifest_format.tokenizer_keys(manifest["benchmark_mode"])
    if not isinstance(tokenizer, dict) or tuple(tokenizer) != keys:
        findings.add("MISSING_KEY", f"{where}: tokenizer", "it does not have its keys", allowed=", ".join(keys))
        return
    if not is_sha256(tokenizer["fingerprint_sha256"]):
        findings.add("WRONG_TYPE", f"{where}: tokenizer.fingerprint_sha256", "it is not a SHA-256")
    if not isinstance(tokenizer["class"], str):
        findings.add("WRONG_TYPE", f"{where}: tokenizer.class", "it is not a string")
    if not is_count(tokenizer["vocab_size"]):
        findings.add("WRONG_TYPE", f"{where}: tokenizer.vocab_size", "it is not a whole number")
    configured = config.get("tokenizer")
    configured = configured if isinstance(configured, dict) else {}
    for key in ("path", "revision", "block_size") if "block_size" in keys else ("path", "revision"):
        compare_exactly(configured.get(key), tokenizer[key], f"{where}: tokenizer.{key}", findings)


def _row_rules(paths: RunPaths, manifest: Mapping[str, Any], findings: Findings) -> RowRules | None:
    """What the configuration says about rows; None, with findings, where it has no usable values."""
    where = f"{paths.manifest.name}: effective_config"
    config = ConfigReader(manifest["effective_config"], where, findings)
    mode = config.choice("prefix_cache.mode", ("warmup", "cold"))
    block_size = config.count("tokenizer.block_size", 1)
    seed_blocks = config.count("prefix_cache.seed_blocks", 1)
    minimum = config.count("prefix_cache.minimum_non_shared_length", 1)
    dp_size = config.count("service.dp_size", 1)
    groups = config.count("prefix_cache.groups.count", 1)
    target = config.number("prefix_cache.target_hit_rate", 0, 1)
    config.number("validation.target_warning_pp", 0, float("inf"))
    output_key = config.choice("output.output_key", (None, "max_tokens", "output_tokens"))
    for path in ("corpus.path", "tokenizer.path"):
        config.text(path)
    config.choice("tokenizer.trust_remote_code", (True, False))
    prefixes = _canonical_prefixes(paths, manifest, groups, findings) if config.sound else None
    if not config.sound or prefixes is None:
        return None
    return RowRules(
        mode=mode,
        block_size=block_size,
        seed_tokens=seed_blocks * block_size,
        minimum_non_shared_tokens=minimum,
        dp_size=dp_size,
        requested_target_hit_rate=target,
        output_key=output_key,
        canonical_prefixes=prefixes,
    )


def _canonical_prefixes(
    paths: RunPaths, manifest: Mapping[str, Any], count: int, findings: Findings
) -> list[tuple[str, int]] | None:
    where = f"{paths.manifest.name}: groups"
    groups = manifest.get("groups")
    if not isinstance(groups, dict) or len(groups) != count or list(groups) != [group_name(n) for n in range(count)]:
        findings.add(
            "WRONG_VALUE", where, "it does not hold the configured groups", allowed=f"group-0 … group-{count - 1}"
        )
        return None
    prefixes = []
    for name, group in groups.items():
        section = group if isinstance(group, dict) else {}
        digest, tokens = section.get("canonical_prefix_sha256"), section.get("canonical_prefix_tokens")
        indices, hashes = section.get("gsm_indices"), section.get("gsm_question_sha256")
        if not is_sha256(digest) or not is_count(tokens):
            findings.add("WRONG_TYPE", f"{where}.{name}", "its canonical prefix has no digest or no length")
            return None
        if (
            not isinstance(indices, list)
            or not isinstance(hashes, list)
            or not all(map(is_count, indices))
            or not all(map(is_sha256, hashes))
            or len(indices) != len(hashes)
        ):
            findings.add(
                "WRONG_TYPE", f"{where}.{name}", "gsm_indices and gsm_question_sha256 are not lists that match"
            )
            return None
        prefixes.append((digest, tokens))
    return prefixes


def _check_row_files(paths: RunPaths, rules: RowRules, findings: Findings) -> tuple[Theory | None, int]:
    try:
        with paths.full.open("rb", buffering=READ_BYTES) as full, paths.requests.open("rb", READ_BYTES) as requests:
            return check_rows(full, requests, (paths.full.name, paths.requests.name), rules, findings)
    except OSError:
        return None, 0  # the file's hash reports it


def check_artifacts_section(
    paths: RunPaths,
    manifest: Mapping[str, Any],
    row_files: Mapping[str, Path],
    hashes: Mapping[str, tuple[int, str]],
    rows: int | None,
    findings: Findings,
) -> None:
    """Names, sizes and digests that the manifest records against the files. ``rows`` is None where nobody counted."""
    where = f"{paths.manifest.name}: artifacts"
    files = {**row_files, "analysis": paths.analysis}
    artifacts = manifest.get("artifacts")
    if not isinstance(artifacts, dict) or tuple(artifacts) != tuple(files):
        findings.add("MISSING_KEY", where, "it does not have its keys", allowed=", ".join(files))
        return
    for key, path in files.items():
        entry, place = artifacts[key], f"{where}.{key}"
        keys = ("name", "path", "bytes", "sha256_at_prepare") if key == "analysis" else _ROW_FILE_KEYS
        if not isinstance(entry, dict) or tuple(entry) != keys:
            findings.add("MISSING_KEY", place, "it does not have its keys", allowed=", ".join(keys))
            continue
        compare_exactly(path.name, entry["name"], f"{place}.name", findings)
        if not isinstance(entry["path"], str) or Path(entry["path"]).name != path.name:
            findings.add("WRONG_VALUE", f"{place}.path", f"it says {shown(entry['path'])}", allowed=f"…/{path.name}")
        if key == "analysis":
            if not is_count(entry["bytes"]) or not is_sha256(entry["sha256_at_prepare"]):
                findings.add("WRONG_TYPE", place, "its size or digest is none")
            continue
        size, digest = hashes.get(key, (None, None))
        recorded = (("ROW_COUNT", "rows", rows), ("FILE_SIZE", "bytes", size), ("FILE_HASH", "sha256", digest))
        for code, name, found in recorded:
            if found is not None and (entry[name] != found or type(entry[name]) is not type(found)):
                message = f"the file's {name} is {found}, the manifest says {shown(entry[name])}"
                findings.add(code, path.name, message)


def _check_claims(
    paths: RunPaths, manifest: Mapping[str, Any], rules: RowRules, theory: Theory, findings: Findings
) -> None:
    """The manifest's figures against the rows."""
    where = paths.manifest.name
    config = manifest["effective_config"]
    compare_exactly(value_in(config, "requests.count"), theory.requests, f"{paths.full.name}: number of rows", findings)
    if not theory.requests:
        return
    trajectory = _trajectory(manifest)
    if trajectory is None:
        findings.add("WRONG_TYPE", f"{where}: prefix_cache.trajectory", "it is not a trajectory")
        return
    expected: dict[str, Any] = {
        "requests": manifest_format.requests_section(theory),
        "prefix_cache": prefix_cache_section(theory, trajectory, config["validation"]["target_warning_pp"]),
        "groups": manifest_format.groups_section(theory, list(manifest["groups"].values())),
        "dp": manifest_format.dp_section(rules.mode, rules.dp_size),
        "divergence": divergence_section(theory.requests),
    }
    warmup_prompts = _warmup_prompts(manifest, rules) if rules.mode == "warmup" else []
    if warmup_prompts is None:
        findings.add(
            "WRONG_VALUE",
            f"{where}: warmup.plan",
            "it does not hold one prompt for each rank and group with a shared prefix",
        )
    else:
        expected["warmup"] = warmup_section(rules.mode, rules.dp_size, warmup_prompts)
    for key, section in expected.items():
        compare_exactly(section, manifest.get(key), f"{where}: {key}", findings)


def _trajectory(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    section = manifest.get("prefix_cache")
    trajectory = section.get("trajectory") if isinstance(section, dict) else None
    if (
        not isinstance(trajectory, dict)
        or trajectory.get("status") not in ("PASS", "BEST_EFFORT")
        or not is_count(trajectory.get("issue_count"))
    ):
        return None
    return trajectory


def _warmup_prompts(manifest: Mapping[str, Any], rules: RowRules) -> list[tuple[int, str, int, int]] | None:
    """(group, text, tokens, prefix tokens) of each warm-up, from the plan's entry for its rank 0.

    A group whose requests share nothing has nothing to warm and no entry.
    """
    section = manifest.get("warmup")
    plan = section.get("plan") if isinstance(section, dict) else None
    shared = [(group, tokens) for group, (_, tokens) in enumerate(rules.canonical_prefixes) if tokens]
    if not isinstance(plan, list) or len(plan) != len(shared) * rules.dp_size:
        return None
    prompts = []
    for (group, prefix_tokens), entry in zip(shared, plan[:: rules.dp_size], strict=True):
        text, tokens = (entry.get("prompt"), entry.get("input_tokens")) if isinstance(entry, dict) else (None, None)
        if not isinstance(text, str) or not is_count(tokens) or tokens < prefix_tokens:
            return None
        prompts.append((group, text, tokens, prefix_tokens))
    return prompts


def _check_analysis(
    paths: RunPaths, manifest: Mapping[str, Any], theory: Theory | None, findings: Findings
) -> dict[str, Any]:
    """The analysis against its own digest, against the manifest, and its theory against the rows."""
    where = paths.analysis.name
    analysis = check_analysis_form(paths, manifest, findings)
    trajectory = _trajectory(manifest)
    if theory is None or not theory.requests or trajectory is None or not analysis:
        return analysis
    warning_pp = manifest["effective_config"]["validation"]["target_warning_pp"]
    # Whether a cache of the configured size holds the data set takes a replay: `validate` makes it.
    expected = analysis_document(paths.run_id, theory, trajectory, warning_pp, capacity_warnings_of(analysis))
    check_analysis_claims(expected, analysis, where, findings)
    return analysis


def capacity_warnings_of(analysis: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The warnings of an analysis that speak of ``service.kv_cache_blocks``."""
    warnings = analysis.get("warnings")
    found = warnings if isinstance(warnings, list) else []
    return [each for each in found if isinstance(each, dict) and each.get("code") == CAPACITY_WARNING]


def check_analysis_form(paths: RunPaths, manifest: Mapping[str, Any], findings: Findings) -> dict[str, Any]:
    """The analysis against its own digest and against the manifest's; empty where it cannot be read."""
    where = paths.analysis.name
    try:
        analysis, content = read_document(paths.analysis, what="analysis")
    except ArtifactError as error:
        findings.extend(list(error.problems))
        return {}
    findings.extend(digest_problems(paths.analysis, analysis, content, what="analysis"))
    status = analysis.get("status")
    if status not in ANALYSIS_STATUSES:
        findings.add(
            "WRONG_VALUE", f"{where}: status", f"it says {shown(status)}", allowed=", ".join(ANALYSIS_STATUSES)
        )
    entry = manifest["artifacts"].get("analysis") if isinstance(manifest.get("artifacts"), dict) else None
    if status == "prepared" and isinstance(entry, dict):
        digest = hashlib.sha256(content).hexdigest()
        if entry.get("sha256_at_prepare") != digest or entry.get("bytes") != len(content):
            message = f"its SHA-256 is {digest}, the manifest says {shown(entry.get('sha256_at_prepare'))}"
            findings.add("FILE_HASH", where, message)
    return analysis


def check_analysis_claims(
    expected: Mapping[str, Any], analysis: Mapping[str, Any], where: str, findings: Findings
) -> None:
    """What ``prepare`` must have written, ``expected``, against an analysis of any status."""
    status = analysis.get("status")
    found = {key: value for key, value in analysis.items() if key != "content_sha256"}
    if status != "prepared":
        # run and analyze add keys and warnings; what prepare said must still be there.
        found = {key: found[key] for key in expected if key in found}
        found["status"] = expected["status"]
        found["validation"] = _only(found.get("validation"), expected["validation"])
        if isinstance(found["validation"], dict) and found["validation"].get("status") == "PASS_WITH_WARNING":
            found["validation"]["status"] = expected["validation"]["status"]
        if isinstance(found.get("warnings"), list):
            found["warnings"] = [warning for warning in found["warnings"] if warning in expected["warnings"]]
    compare_exactly(dict(expected), found, where, findings)


def _only(value: Any, keys: Mapping[str, Any]) -> Any:
    return {key: value[key] for key in keys if key in value} if isinstance(value, dict) else value


def compare_exactly(expected: Any, found: Any, where: str, findings: Findings) -> None:
    """Report every place in which ``found`` is not exactly ``expected``, types included."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            place = f"{where}.{key}" if ":" in where else f"{where}: {key}"
            if key not in found:
                findings.add("MISSING_KEY", place, "it is missing", allowed=shown(value))
            else:
                compare_exactly(value, found[key], place, findings)
        for key in found:
            if key not in expected:
                place = f"{where}.{key}" if ":" in where else f"{where}: {key}"
                findings.add("UNKNOWN_KEY", place, f"it should not be there: {shown(found[key])}")
        if expected.keys() == found.keys() and list(expected) != list(found):
            findings.add("KEY_ORDER", where, "its keys are not in their order", allowed=", ".join(expected))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (value, claimed) in enumerate(zip(expected, found, strict=True)):
            compare_exactly(value, claimed, f"{where}[{index}]", findings)
    elif type(expected) is not type(found) or expected != found:
        findings.add("WRONG_VALUE", where, f"it says {shown(found)}", allowed=shown(expected))


class FileHashes:
    """Sizes and SHA-256 of the row files; large ones are hashed beside the check of their rows, in a thread."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._results: dict[str, tuple[int, str]] = {}
        self._errors: list[Problem] = []
        self._thread = None
        if sum(map(_size, files.values())) > READ_BYTES:
            from threading import Thread

            self._thread = Thread(target=self._run, args=(dict(files),), daemon=True)
            self._thread.start()
        else:
            self._run(files)

    def results(self, findings: Findings) -> dict[str, tuple[int, str]]:
        """Size and digest under each file's key; a file that cannot be read is reported and left out."""
        if self._thread is not None:
            self._thread.join()
        findings.extend(self._errors)
        return self._results

    def _run(self, files: Mapping[str, Path]) -> None:
        for key, path in files.items():
            try:
                self._results[key] = size_and_sha256(path)
            except FileNotFoundError:
                self._errors.append(Problem("MISSING_FILE", str(path), "the file does not exist"))
            except OSError as error:
                reason = error.strerror or str(error)
                self._errors.append(Problem("UNREADABLE_FILE", str(path), f"it cannot be read: {reason}"))


def _size(path: Path) -> int:
    """Bytes of a file; none where it cannot be told, which reading it then reports."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def size_and_sha256(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return size, digest.hexdigest()


class ConfigReader:
    """Reads values out of the effective configuration; ``sound`` turns False at the first unusable one."""

    def __init__(self, config: Mapping[str, Any], where: str, findings: Findings) -> None:
        self._config = config
        self._where = where
        self._findings = findings
        self.sound = True

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
        self.sound = False
        self._findings.add("WRONG_TYPE", f"{self._where}.{path}", f"it says {shown(value)}", allowed=allowed)


def value_in(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
