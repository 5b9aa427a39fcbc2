"""Proves that the files of a data set are what ``prepare`` wrote and that they agree with each other.

Everything is walked, everything that is wrong is collected, and one :class:`ArtifactError` is raised with all of it:

1. the manifest's bytes, digest, keys and types;
2. size and SHA-256 of ``full.jsonl``, ``requests.jsonl`` and (before a run) ``analysis.json``;
3. every row: keys, order, types, sequence, lanes, lengths, hits, uniqueness, and its partner in the other file;
4. what the manifest and the analysis claim, against what the rows add up to.

The last two hold even where somebody edited a file and then made all digests fit again.
"""

from __future__ import annotations

from collections.abc import Mapping

from ais_bench_prefix_cache.datasets.format.document_checks import (
    ConfigReader,
    capacity_warnings_of,
    check_analysis_claims,
    check_analysis_form,
    check_artifacts_section,
    check_manifest_form,
    compare_exactly,
    value_in,
)
from ais_bench_prefix_cache.datasets.format.documents import digest_problems, is_count, is_sha256
from ais_bench_prefix_cache.datasets.format.file_hashes import READ_BYTES, FileHashes
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.verified_data_set import VerifiedDataSet
from ais_bench_prefix_cache.datasets.text import manifest as manifest_format
from ais_bench_prefix_cache.datasets.text.row_checks import RowRules, check_rows
from ais_bench_prefix_cache.datasets.text.theory import (
    Theory,
    analysis_document,
    divergence_section,
    prefix_cache_section,
    warmup_section,
)
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import Findings
from ais_bench_prefix_cache.foundation.names import BEST_EFFORT, PASS, group_name

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any


def verify_text_data_set(paths: RunPaths, manifest: dict[str, Any], content: bytes) -> VerifiedDataSet:
    """Verify the data set of a manifest whose identity is known to be sound.

    Raises :class:`~ais_bench_prefix_cache.foundation.errors.ArtifactError` with everything that is wrong.
    """
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
            Code.WRONG_VALUE, where, "it does not hold the configured groups", allowed=f"group-0 … group-{count - 1}"
        )
        return None
    prefixes = []
    for name, group in groups.items():
        section = group if isinstance(group, dict) else {}
        digest, tokens = section.get("canonical_prefix_sha256"), section.get("canonical_prefix_tokens")
        indices, hashes = section.get("gsm_indices"), section.get("gsm_question_sha256")
        if not is_sha256(digest) or not is_count(tokens):
            findings.add(Code.WRONG_TYPE, f"{where}.{name}", "its canonical prefix has no digest or no length")
            return None
        if (
            not isinstance(indices, list)
            or not isinstance(hashes, list)
            or not all(map(is_count, indices))
            or not all(map(is_sha256, hashes))
            or len(indices) != len(hashes)
        ):
            findings.add(
                Code.WRONG_TYPE, f"{where}.{name}", "gsm_indices and gsm_question_sha256 are not lists that match"
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
        findings.add(Code.WRONG_TYPE, f"{where}: prefix_cache.trajectory", "it is not a trajectory")
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
            Code.WRONG_VALUE,
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
        or trajectory.get("status") not in (PASS, BEST_EFFORT)
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
