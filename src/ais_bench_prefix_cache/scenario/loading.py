"""From a Scenario file to the frozen :class:`Scenario`: read once, check everything, report every problem at once."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ScenarioError
from ais_bench_prefix_cache.foundation.names import API_KEY_VARIABLE, group_number
from ais_bench_prefix_cache.foundation.strict_json import FieldPath, JsonError, parse_json_with_defects, read_file
from ais_bench_prefix_cache.scenario.building import Readers, build
from ais_bench_prefix_cache.scenario.conversation_lengths import conversation_lengths
from ais_bench_prefix_cache.scenario.effective import corpus_selection, effective_config
from ais_bench_prefix_cache.scenario.field_rules import (
    API_KEY_PHRASE,
    CheckedFields,
    check_completions_url,
    check_conversation,
    check_group_weights,
    check_minimum_non_shared_length,
    check_multimodal,
    check_names,
    check_override_groups,
    check_service,
    override_group,
    usable_api_key,
)
from ais_bench_prefix_cache.scenario.findings import FieldFindings, value_at
from ais_bench_prefix_cache.scenario.groups import group_counts
from ais_bench_prefix_cache.scenario.length_rules import check_count, check_room, listed_count, read_length_rule
from ais_bench_prefix_cache.scenario.model import (
    CorpusSelection,
    GroupAssignment,
    GroupOverride,
    LengthSpec,
    Scenario,
    ScenarioRules,
)
from ais_bench_prefix_cache.scenario.schema import filled_with_defaults, scenario_schema
from ais_bench_prefix_cache.scenario.settings import apply_settings, parse_settings

Place = Callable[[str], str]
"""Makes a path of the Scenario absolute."""


def load_scenario(
    path: Path,
    *,
    rules: ScenarioRules | None = "prefixes",
    environment: Mapping[str, str] = os.environ,
    settings: Sequence[str] = (),
) -> Scenario:
    """Read and check a Scenario file (and the CSV files of lengths that it names).

    ``rules`` "images" and "conversations" leave out the rules of blocks and shared prefixes, which those data sets do
    not have, and add theirs; None checks only what holds for all, where the kind is still to be learned from a
    manifest.
    ``environment`` supplies the API key where the Scenario has none; ``settings`` ("requests.count=200") replace fields
    of the file. Raises :class:`ScenarioError` with every problem found.
    """
    name = os.fsencode(path.name).decode("utf-8", "backslashreplace") or str(path)
    given = parse_settings(settings)
    findings = FieldFindings(name, [setting.path for setting in given])
    data = read_file(path, "the Scenario file", ScenarioError)
    source = _parsed(data, findings)
    apply_settings(source, given)
    identity = {"path": path.absolute(), "sha256": hashlib.sha256(data).hexdigest(), "settings": tuple(settings)}
    return _checked_scenario(source, findings, _directory_of(path), identity, rules, environment)


def scenario_of_document(document: Mapping[str, Any], name: str, rules: ScenarioRules) -> Scenario:
    """The Scenario of a document that comes from no file: of what a manifest recorded. It has no API key.

    Its paths must be absolute; no file is read. ``name`` stands for the file's name in errors. Raises
    :class:`ScenarioError` with every problem found.
    """
    identity = {"path": Path("/", name), "sha256": ""}
    return _checked_scenario(dict(document), FieldFindings(name), Path("/"), identity, rules, {})


def _checked_scenario(
    source: dict[str, Any],
    findings: FieldFindings,
    directory: Path,
    identity: Mapping[str, Any],
    rules: ScenarioRules | None,
    environment: Mapping[str, str],
) -> Scenario:
    from ais_bench_prefix_cache.scenario.schema_problems import report_schema_problems

    report_schema_problems(source, findings)

    def place(value: str) -> str:
        return os.path.normpath(directory / value)

    document = filled_with_defaults(source, scenario_schema(), place)
    document.pop("$schema", None)
    fields = CheckedFields(document, findings)
    check_names(fields)
    check_group_weights(fields)
    assignment = _assignment(fields)
    room = check_minimum_non_shared_length(fields) if rules == "prefixes" else None
    lengths = _length_rules(fields, assignment, room)
    check_override_groups(fields)
    check_service(fields)
    if "conversation" in document:
        check_group_weights(fields, ("conversation", "system_prompts"))
        lengths |= conversation_lengths(fields)
    if rules == "images":
        check_multimodal(fields)
    elif rules == "conversations":
        check_conversation(fields)
    elif rules == "prefixes":
        check_completions_url(fields)
    api_key = _api_key(fields, environment)
    problems = findings.problems(list(source))
    if problems or assignment is None:
        raise ScenarioError(problems)
    document["tokenizer"]["path"] = _tokenizer_source(document["tokenizer"]["path"], place)
    document["service"]["api_key"] = api_key
    effective = effective_config(document, lengths)
    content = {**copy.deepcopy(effective), **identity}
    for place_of_rule, rule in lengths.items():
        value_at(content, place_of_rule[:-1])[place_of_rule[-1]] = rule
    content["service"]["api_key"] = api_key
    return build(Scenario, {**content, "effective": effective}, READERS)


def _parsed(data: bytes, findings: FieldFindings) -> dict[str, Any]:
    """The document; what is wrong at places of it goes to ``findings``."""
    name = findings.document_name
    try:
        document, defects = parse_json_with_defects(data)
    except JsonError as error:
        hint = "an empty Scenario is written {}" if error.code is Code.EMPTY_FILE else error.hint
        raise ScenarioError.of(error.code, name, f"the Scenario file {error}", hint=hint) from None
    if not isinstance(document, dict):
        message = "the Scenario is not a JSON object"
        raise ScenarioError.of(Code.NOT_AN_OBJECT, name, message, allowed='an object: { "run": … }')
    if isinstance(document.get("effective_config"), dict):
        made_from = document.get("scenario_path")
        hint = f"name the Scenario that it was made from: {made_from}" if isinstance(made_from, str) else None
        raise ScenarioError.of(Code.WRONG_KIND, name, "this is a manifest, not a Scenario", hint=hint)
    for defect in defects:
        hint = "keep one" if defect.code is Code.DUPLICATE_KEY else None
        findings.report(defect.path, defect.code, defect.message, hint=hint)
    return document


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
    return None if rule is None else build(GroupAssignment, rule)


def _length_rules(
    fields: CheckedFields,
    assignment: GroupAssignment | None,
    room: int | None,
) -> dict[FieldPath, LengthSpec]:
    """Every sound length rule by its place, checked for its count and for ``room`` for the non-shared part, if any."""
    requests = fields.get("requests", "count")
    groups = fields.get("prefix_cache", "groups", "count")
    rules: dict[FieldPath, LengthSpec] = {}

    def read(path: FieldPath) -> LengthSpec | None:
        rule = read_length_rule(fields, path)
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
                counts = group_counts(groups, assignment, requests)
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


def _overrides(overrides: Mapping[str, Any]) -> dict[int, GroupOverride]:
    return {group_number(name): build(GroupOverride, rules, READERS) for name, rules in overrides.items()}


READERS: Readers = {
    CorpusSelection: corpus_selection,
    LengthSpec: lambda rule: rule,  # rules were read before, because they name files
    Mapping[int, GroupOverride]: _overrides,
}


def _tokenizer_source(value: str, place: Place) -> str:
    """An absolute path for anything that is or looks like a path, else the hub model name as it was written."""
    looks_like_path = value in (".", "..") or value.startswith(("./", "../", "/"))
    path = place(value)
    return path if looks_like_path or _is_directory(Path(path)) else value


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long for a file
        return False
