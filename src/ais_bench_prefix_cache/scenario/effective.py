"""The effective configuration: what a Scenario means, JSON-ready, as the manifest records it; parts are read back."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.names import group_number
from ais_bench_prefix_cache.foundation.strict_json import FieldPath
from ais_bench_prefix_cache.scenario.building import build
from ais_bench_prefix_cache.scenario.field_rules import CheckedFields, check_service
from ais_bench_prefix_cache.scenario.findings import FieldFindings, value_at
from ais_bench_prefix_cache.scenario.model import (
    CorpusSelection,
    CsvLengths,
    LengthSpec,
    ServiceConfig,
    TruncatedNormalLength,
    ValidationConfig,
)
from ais_bench_prefix_cache.scenario.schema import Schema, filled_with_defaults, scenario_schema

EFFECTIVE_CONFIG = "effective_config"
Section = TypeVar("Section")


def effective_config(document: Mapping[str, Any], lengths: Mapping[FieldPath, LengthSpec]) -> dict[str, Any]:
    """``document`` (sound, defaults and paths filled in) with what is computed, and without the secret.

    ``lengths`` are its length rules by their places.
    """
    effective: dict[str, Any] = copy.deepcopy(dict(document))
    for path, length in lengths.items():
        if isinstance(length, TruncatedNormalLength):
            value_at(effective, path).update(mean=length.mean, std=length.std)
        elif isinstance(length, CsvLengths) and path[0] == "conversation":
            # The data set says all of its lengths itself.
            value_at(effective, path[:-1])[path[-1]] = {"mode": "explicit", "values": list(length.values)}
    corpus, prefix_cache, service = effective["corpus"], effective["prefix_cache"], effective["service"]
    corpus["selection"] = _selection_in_one_form(corpus["selection"])
    seed_tokens = prefix_cache["seed_blocks"] * effective["tokenizer"]["block_size"]
    prefix_cache.setdefault("minimum_non_shared_length", seed_tokens)
    overrides = prefix_cache["groups"]["overrides"]
    prefix_cache["groups"]["overrides"] = {key: overrides[key] for key in sorted(overrides, key=group_number)}
    for rules in overrides.values():
        if "corpus_selection" in rules:
            rules["corpus_selection"] = _selection_in_one_form(rules["corpus_selection"])
    service["api_key_configured"] = bool(service.pop("api_key"))
    service["reset_url"] = service["reset_url"] or None
    return effective


def _selection_in_one_form(rule: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` may also be called as the mode is; digests may be in capitals; ``mixed`` may have one list only."""
    mode = rule["mode"]
    if mode == "random":
        return {"mode": mode}
    if mode == "mixed":
        return {
            "mode": mode,
            "indices": list(rule.get("indices", ())),
            "question_sha256": [digest.lower() for digest in rule.get("question_sha256", ())],
        }
    values = rule.get("values", rule.get(mode))
    return {"mode": mode, "values": [value.lower() if isinstance(value, str) else value for value in values]}


def corpus_selection(rule: Mapping[str, Any]) -> CorpusSelection:
    """The model of a selection in the form that the effective configuration has."""
    lists = {rule["mode"]: rule["values"]} if "values" in rule else rule
    return CorpusSelection(rule["mode"], tuple(lists.get("indices", ())), tuple(lists.get("question_sha256", ())))


def service_with(**fields: Any) -> ServiceConfig:
    """A service of which only these fields of the section are said, the others left out. Nothing is checked."""
    return build(ServiceConfig, filled_with_defaults(fields, scenario_schema()["properties"]["service"]))


def service_from_effective(effective: object) -> ServiceConfig:
    """The service of a manifest's ``effective_config``, without an API key.

    Fields of our own may be missing: manifests of other origin do not have them.

    Raises:
        ArtifactError: with the places of everything that is missing or damaged.
    """
    return _section(effective, "service", ServiceConfig, left_out="api_key", added="api_key_configured")


def validation_from_effective(effective: object) -> ValidationConfig:
    """The warning thresholds of a manifest's ``effective_config``; raises :class:`ArtifactError` where damaged."""
    return _section(effective, "validation", ValidationConfig)


def _section(effective: object, name: str, cls: type[Section], *, left_out: str = "", added: str = "") -> Section:
    # jsonschema is slow to import, and most commands check no Scenario.
    from ais_bench_prefix_cache.scenario.schema_problems import report_schema_problems

    where = f"{EFFECTIVE_CONFIG}.{name}"
    if not isinstance(effective, Mapping):
        raise ArtifactError.of(Code.DAMAGED, EFFECTIVE_CONFIG, "this is not an object", allowed="an object")
    if not isinstance(effective.get(name), dict):
        raise ArtifactError.of(Code.DAMAGED, where, "this is missing or not an object", allowed="an object")
    schema: Schema = scenario_schema()["properties"][name]
    findings = FieldFindings(EFFECTIVE_CONFIG)
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
    return build(cls, filled)
