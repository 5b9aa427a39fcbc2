"""From a Scenario file to the frozen :class:`Scenario`: read once, check everything, report every problem at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ScenarioError
from ais_bench_prefix_cache.foundation.names import API_KEY_VARIABLE, group_name
from ais_bench_prefix_cache.foundation.strict_json import read_json_object
from ais_bench_prefix_cache.scenario.effective import effective_config, service_config, validation_config
from ais_bench_prefix_cache.scenario.field_rules import (
    API_KEY_PHRASE,
    CheckedFields,
    check_group_weights,
    check_minimum_non_shared_length,
    check_multimodal,
    check_names,
    check_override_groups,
    check_service,
    override_group,
    usable_api_key,
)
from ais_bench_prefix_cache.scenario.findings import FieldPath, Findings
from ais_bench_prefix_cache.scenario.length_rules import check_count, check_room, listed_count, read_length_rule
from ais_bench_prefix_cache.scenario.model import (
    AisbenchConfig,
    AisbenchDatasetConfig,
    AisbenchModelConfig,
    CorpusConfig,
    CorpusSelection,
    GroupAssignment,
    GroupOverride,
    GroupsConfig,
    LengthSpec,
    MultimodalConfig,
    PrefixCacheConfig,
    RequestsConfig,
    RunConfig,
    Scenario,
    ScenarioRules,
    TokenizerConfig,
)
from ais_bench_prefix_cache.scenario.schema import filled_with_defaults, scenario_schema

Place = Callable[[str], Path]


def load_scenario(
    path: Path, *, rules: ScenarioRules | None = "prefixes", environment: Mapping[str, str] = os.environ
) -> Scenario:
    """Read and check a Scenario file (and the CSV files of lengths that it names).

    ``rules`` "images" leaves out the rules of blocks and shared prefixes, which image data sets do not have, and
    adds theirs; None checks only what holds for both, where the kind is still to be learned from a manifest.
    ``environment`` supplies the API key where the Scenario has none. Raises :class:`ScenarioError` with every
    problem found.
    """
    findings = Findings(os.fsencode(path.name).decode("utf-8", "backslashreplace") or str(path))
    source = read_json_object(path, findings)
    return _checked_scenario(source.content, findings, path, source.sha256, rules, environment)


def scenario_of_document(document: Mapping[str, Any], name: str, rules: ScenarioRules) -> Scenario:
    """The Scenario of a document that comes from no file: of what a manifest recorded. It has no API key.

    Its paths must be absolute; nothing is read. ``name`` stands for the file's name in errors. Raises
    :class:`ScenarioError` with every problem found.
    """
    return _checked_scenario(document, Findings(name), Path("/", name), "", rules, {})


def _checked_scenario(
    content: Mapping[str, Any],
    findings: Findings,
    path: Path,
    sha256: str,
    rules: ScenarioRules | None,
    environment: Mapping[str, str],
) -> Scenario:
    from ais_bench_prefix_cache.scenario.schema_problems import report_schema_problems

    report_schema_problems(content, findings)
    document = filled_with_defaults(content, scenario_schema())
    document.pop("$schema", None)
    directory = _directory_of(path)

    def place(value: str) -> Path:
        return Path(os.path.normpath(directory / value))

    fields = CheckedFields(document, findings)
    check_names(fields)
    check_group_weights(fields)
    assignment = _assignment(fields)
    room = check_minimum_non_shared_length(fields) if rules == "prefixes" else None
    lengths = _length_rules(fields, assignment, place, room)
    check_override_groups(fields)
    check_service(fields)
    if rules == "images":
        check_multimodal(fields)
    api_key = _api_key(fields, environment)
    problems = findings.problems(list(content))
    if problems or assignment is None:
        raise ScenarioError(problems)
    return _scenario(path, sha256, document, lengths, assignment, place, api_key)


def _directory_of(path: Path) -> Path:
    """The absolute directory that relative paths of the Scenario start from."""
    directory = path.parent.absolute()
    try:
        str(directory).encode("utf-8")
    except UnicodeEncodeError:
        where = str(directory).encode("utf-8", "backslashreplace").decode("utf-8")
        message = "the name of the Scenario's directory is not UTF-8, so it cannot be written into JSON"
        raise ScenarioError.of(Code.WRONG_ENCODING, where, message, hint="move the Scenario") from None
    return directory


def _assignment(fields: CheckedFields) -> GroupAssignment | None:
    rule = fields.get("prefix_cache", "groups", "assignment")
    if rule is None:
        return None
    return GroupAssignment(
        mode=rule["mode"],
        exponent=float(rule.get("exponent", 1.0)),
        weights=tuple(float(weight) for weight in rule.get("weights", ())),
    )


def _length_rules(
    fields: CheckedFields,
    assignment: GroupAssignment | None,
    place: Place,
    room: int | None,
) -> dict[FieldPath, LengthSpec]:
    """Every sound length rule by its place, checked for its count and for ``room`` for the non-shared part, if any."""
    requests = fields.get("requests", "count")
    groups = fields.get("prefix_cache", "groups", "count")
    rules: dict[FieldPath, LengthSpec] = {}

    def read(path: FieldPath) -> LengthSpec | None:
        rule = read_length_rule(fields, path, place)
        if rule is not None:
            rules[path] = rule
        return rule

    def has_room(path: FieldPath, rule: LengthSpec) -> None:
        if path[-1] == "input_length" and room is not None:
            check_room(fields, path, rule, room)

    overridden = 0
    overrides: FieldPath = ("prefix_cache", "groups", "overrides")
    counts: tuple[int, ...] | None = None
    for key in fields.keys(*overrides):
        group = override_group(key)
        for kind in ("input_length", "output_length"):
            path: FieldPath = (*overrides, key, kind)
            if kind not in fields.keys(*overrides, key):
                continue
            overridden += kind == "input_length"
            rule = read(path)
            if rule is None:
                continue
            has_room(path, rule)
            if listed_count(rule) is None or group is None:
                continue
            if counts is None and requests and groups and assignment:
                counts = _group_counts(groups, assignment, requests)
            if counts is not None and group < len(counts):
                check_count(fields, path, rule, counts[group], f"the number of requests of {key} is")
    for kind in ("input_length", "output_length"):
        path = ("requests", kind)
        rule = read(path)
        if rule is None:
            continue
        if requests is not None:
            check_count(fields, path, rule, requests, "requests.count is")
        if overridden != groups:
            has_room(path, rule)
    return rules


def _group_counts(groups: int, assignment: GroupAssignment, requests: int) -> tuple[int, ...]:
    # Brings numpy, which a Scenario without overrides does not need.
    from ais_bench_prefix_cache.planning.groups import group_counts

    return tuple(group_counts(groups, assignment, requests))


def _api_key(fields: CheckedFields, environment: Mapping[str, str]) -> str:
    configured: str = fields.get("service", "api_key") or ""
    if configured:
        return configured
    from_environment = environment.get(API_KEY_VARIABLE, "")
    if not usable_api_key(from_environment):
        fields.findings.report_elsewhere(
            ("service", "api_key"),
            Problem(
                Code.WRONG_TEXT,
                f"environment variable {API_KEY_VARIABLE}",
                "the key cannot be sent in an HTTP header",
                API_KEY_PHRASE,
                hint="service.api_key is empty, so this variable is used",
            ),
        )
    return from_environment


def _scenario(
    path: Path,
    sha256: str,
    document: Mapping[str, Any],
    lengths: Mapping[FieldPath, LengthSpec],
    assignment: GroupAssignment,
    place: Place,
    api_key: str,
) -> Scenario:
    """Build the model from a document without problems."""
    run, tokenizer, corpus = document["run"], document["tokenizer"], document["corpus"]
    prefix_cache, aisbench = document["prefix_cache"], document["aisbench"]
    groups = prefix_cache["groups"]
    overrides: FieldPath = ("prefix_cache", "groups", "overrides")
    multimodal = document.get("multimodal")
    seed_tokens = prefix_cache["seed_blocks"] * tokenizer["block_size"]
    scenario = Scenario(
        path=path.absolute(),
        sha256=sha256,
        schema_version=document["schema_version"],
        run=RunConfig(run["run_id"], run["random_seed"], place(run["output_dir"]), run["overwrite"]),
        tokenizer=TokenizerConfig(
            _tokenizer_source(tokenizer["path"], place),
            tokenizer["block_size"],
            tokenizer["revision"],
            tokenizer["trust_remote_code"],
        ),
        corpus=CorpusConfig(place(corpus["path"]), corpus["field"], _selection(corpus["selection"])),
        requests=RequestsConfig(
            document["requests"]["count"],
            lengths["requests", "input_length"],
            lengths["requests", "output_length"],
        ),
        output_key=document["output"]["output_key"],
        prefix_cache=PrefixCacheConfig(
            mode=prefix_cache["mode"],
            target_hit_rate=float(prefix_cache["target_hit_rate"]),
            seed_blocks=prefix_cache["seed_blocks"],
            minimum_non_shared_length=prefix_cache.get("minimum_non_shared_length", seed_tokens),
            groups=GroupsConfig(
                count=groups["count"],
                assignment=assignment,
                overrides={
                    group: GroupOverride(
                        lengths.get((*overrides, group_name(group), "input_length")),
                        lengths.get((*overrides, group_name(group), "output_length")),
                        _selection(rules["corpus_selection"]) if "corpus_selection" in rules else None,
                    )
                    for group, rules in _by_group(groups["overrides"]).items()
                },
            ),
            order=prefix_cache["order"]["strategy"],
        ),
        service=service_config(document["service"], api_key),
        validation=validation_config(document["validation"]),
        aisbench=AisbenchConfig(
            config=None if aisbench["config"] is None else place(aisbench["config"]),
            work_dir=place(aisbench["work_dir"]),
            extra_args=aisbench["extra_args"],
            dataset=AisbenchDatasetConfig(
                **{**aisbench["dataset"], "input_columns": tuple(aisbench["dataset"]["input_columns"])}
            ),
            model=AisbenchModelConfig(**aisbench["model"]),
        ),
        multimodal=None if multimodal is None else _multimodal(multimodal, place),
        effective={},
    )
    return replace(scenario, effective=effective_config(scenario, document))


def _by_group(overrides: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    numbered = {override_group(name): rules for name, rules in overrides.items()}
    return {group: numbered[group] for group in sorted(number for number in numbered if number is not None)}


def _selection(rule: Mapping[str, Any]) -> CorpusSelection:
    mode = rule["mode"]
    if mode in ("indices", "question_sha256"):
        values = rule.get("values", rule.get(mode))
        return CorpusSelection(mode, **{mode: _selected(mode, values)})
    return CorpusSelection(
        mode,
        _selected("indices", rule.get("indices", ())),
        _selected("question_sha256", rule.get("question_sha256", ())),
    )


def _selected(kind: str, values: Any) -> tuple[Any, ...]:
    return tuple(value.lower() for value in values) if kind == "question_sha256" else tuple(values)


def _tokenizer_source(value: str, place: Place) -> str:
    """An absolute path for anything that is or looks like a path, else the hub model name as it was written."""
    looks_like_path = value in (".", "..") or value.startswith(("./", "../", "/"))
    path = place(value)
    return str(path) if looks_like_path or _is_directory(path) else value


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long for a file
        return False


def _multimodal(section: Mapping[str, Any], place: Place) -> MultimodalConfig:
    directory = section["mmmu_parquet_dir"]
    return MultimodalConfig(None if directory is None else place(directory), tuple(section["scenarios"]))
