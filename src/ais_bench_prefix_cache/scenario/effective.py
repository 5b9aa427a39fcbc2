"""The effective configuration: what a Scenario means, JSON-ready, as the manifest records it; and back again."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.scenario.field_rules import CheckedFields, check_service
from ais_bench_prefix_cache.scenario.findings import Findings
from ais_bench_prefix_cache.scenario.model import (
    CorpusSelection,
    CsvLengths,
    LengthSpec,
    Scenario,
    ServiceConfig,
    TruncatedNormalLength,
    ValidationConfig,
)
from ais_bench_prefix_cache.scenario.schema import Schema, filled_with_defaults, scenario_schema

EFFECTIVE_CONFIG = "effective_config"


def effective_config(scenario: Scenario, document: Mapping[str, Any]) -> dict[str, Any]:
    """``document`` (defaults already filled in) with what loading added: paths, computed values, no secret."""
    effective: dict[str, Any] = copy.deepcopy(dict(document))
    effective["run"]["output_dir"] = str(scenario.run.output_dir)
    effective["tokenizer"]["path"] = scenario.tokenizer.path
    effective["corpus"]["path"] = str(scenario.corpus.path)
    effective["corpus"]["selection"] = _selection(scenario.corpus.selection)
    _settle_length(effective["requests"]["input_length"], scenario.requests.input_length)
    _settle_length(effective["requests"]["output_length"], scenario.requests.output_length)
    prefix_cache = scenario.prefix_cache
    effective["prefix_cache"]["minimum_non_shared_length"] = prefix_cache.minimum_non_shared_length
    overrides: dict[str, Any] = {}
    for group, override in prefix_cache.groups.overrides.items():
        rules = effective["prefix_cache"]["groups"]["overrides"][group_name(group)]
        overrides[group_name(group)] = rules
        if override.input_length is not None:
            _settle_length(rules["input_length"], override.input_length)
        if override.output_length is not None:
            _settle_length(rules["output_length"], override.output_length)
        if override.corpus_selection is not None:
            rules["corpus_selection"] = _selection(override.corpus_selection)
    effective["prefix_cache"]["groups"]["overrides"] = overrides
    service = effective["service"]
    del service["api_key"]
    service["api_key_configured"] = bool(scenario.service.api_key)
    service["reset_url"] = service["reset_url"] or None
    aisbench = scenario.aisbench
    effective["aisbench"]["config"] = None if aisbench.config is None else str(aisbench.config)
    effective["aisbench"]["work_dir"] = str(aisbench.work_dir)
    if scenario.multimodal is not None and scenario.multimodal.mmmu_parquet_dir is not None:
        effective["multimodal"]["mmmu_parquet_dir"] = str(scenario.multimodal.mmmu_parquet_dir)
    return effective


def effective_config_sha256(effective: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of an effective configuration: sorted keys, no white space, UTF-8."""
    text = json.dumps(effective, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def service_config(section: Mapping[str, Any], api_key: str) -> ServiceConfig:
    """The model of a sound ``service`` section."""
    return ServiceConfig(
        inference_urls=_urls(section["inference_url"]),
        metrics_urls=_urls(section["metrics_url"]),
        reset_urls=_urls(section["reset_url"]),
        model=section["model"],
        dp_size=section["dp_size"],
        assume_empty_cache=section["assume_empty_cache"],
        engine_label_map=dict(section["engine_label_map"]),
        timeout_seconds=float(section["timeout_seconds"]),
        poll_interval_seconds=float(section["poll_interval_seconds"]),
        api_key=api_key,
        engine=section["engine"],
        hybrid_warmup=section["hybrid_warmup"],
        kv_cache_blocks=section["kv_cache_blocks"],
    )


def validation_config(section: Mapping[str, Any]) -> ValidationConfig:
    """The model of a sound ``validation`` section."""
    return ValidationConfig(float(section["target_warning_pp"]), float(section["actual_warning_pp"]))


def service_from_effective(effective: object) -> ServiceConfig:
    """The service of a manifest's ``effective_config``, without an API key.

    Raises :class:`ArtifactError` with the places of everything that is missing or damaged. Fields of our own may be
    missing: manifests of other origin do not have them.
    """
    section = _section(effective, "service", left_out="api_key", added="api_key_configured")
    return service_config(section, "")


def validation_from_effective(effective: object) -> ValidationConfig:
    """The warning thresholds of a manifest's ``effective_config``; raises :class:`ArtifactError` where damaged."""
    return validation_config(_section(effective, "validation"))


def _section(effective: object, name: str, *, left_out: str = "", added: str = "") -> dict[str, Any]:
    from ais_bench_prefix_cache.scenario.schema_problems import report_schema_problems

    where = f"{EFFECTIVE_CONFIG}.{name}"
    if not isinstance(effective, Mapping):
        raise ArtifactError.of(Code.DAMAGED, EFFECTIVE_CONFIG, "this is not an object", allowed="an object")
    if not isinstance(effective.get(name), dict):
        raise ArtifactError.of(Code.DAMAGED, where, "this is missing or not an object", allowed="an object")
    schema: Schema = scenario_schema()["properties"][name]
    findings = Findings(EFFECTIVE_CONFIG)
    section = {key: value for key, value in effective[name].items() if key != added}
    for key, field in schema["properties"].items():
        if key == left_out and key in section:
            findings.report((name, key), Code.DAMAGED, "a secret must not stand here", hint="remove it")
        elif key not in section and key != left_out and not field.get("x-ours"):
            findings.report((name, key), Code.MISSING_KEY, "the key is missing")
    report_schema_problems(section, findings, section=(name,), schema=schema)
    filled: dict[str, Any] = filled_with_defaults(section, schema)
    if name == "service":
        check_service(CheckedFields({name: filled}, findings))
    problems = findings.problems()
    if problems:
        raise ArtifactError(problems)
    return filled


def _urls(value: Any) -> tuple[str, ...]:
    if not value:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _settle_length(rule: dict[str, Any], length: LengthSpec) -> None:
    if isinstance(length, TruncatedNormalLength):
        rule["mean"] = length.mean
        rule["std"] = length.std
    elif isinstance(length, CsvLengths):
        rule["path"] = str(length.path)


def _selection(selection: CorpusSelection) -> dict[str, Any]:
    if selection.mode == "random":
        return {"mode": "random"}
    if selection.mode == "mixed":
        return {
            "mode": "mixed",
            "indices": list(selection.indices),
            "question_sha256": list(selection.question_sha256),
        }
    return {"mode": selection.mode, "values": list(selection.indices or selection.question_sha256)}
