"""The Scenario that a manifest recorded: as trustworthy as a file of the user's, and no more.

The recorded configuration is data. It must be one that loading a Scenario accepts and would record in the same words;
nothing that it names is opened, downloaded, executed or sent to on its word.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from ais_bench_prefix_cache.datasets.format.document_checks import compare_exactly
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.scenario.loading import scenario_of_document
from ais_bench_prefix_cache.scenario.model import Scenario, ScenarioRules
from ais_bench_prefix_cache.scenario.schema import scenario_schema

PLACEHOLDER_TOKENS = 1 << 20


def recorded_scenario(
    paths: RunPaths,
    manifest: Mapping[str, Any],
    rules: ScenarioRules,
    findings: Findings,
) -> Scenario | None:
    """The Scenario of a manifest's ``effective_config``; None, with findings, where it cannot be one.

    A rule of lengths that names a CSV file, which is nobody's to open here, becomes one of equal lengths.
    """
    where = f"{paths.manifest.name}: effective_config"
    effective = manifest.get("effective_config")
    sections = effective if isinstance(effective, dict) else {}
    run, service = sections.get("run"), sections.get("service")
    if not isinstance(run, dict) or not isinstance(service, dict):
        findings.add(Code.WRONG_TYPE, where, "it has no run or no service")
        return None
    has_key = service.get("api_key_configured")
    if type(has_key) is not bool or "api_key" in service:
        message = "it is not true or false, or a secret stands beside it"
        findings.add(Code.WRONG_TYPE, f"{where}.service.api_key_configured", message)
        return None
    for rule in csv_rules(sections):
        if rule.keys() != {"mode", "path"} or not isinstance(rule["path"], str):
            findings.add(Code.WRONG_TYPE, where, f"a rule of lengths says {shown(rule)}", allowed="a mode and a path")
            return None
    document = copy.deepcopy(sections)
    del document["service"]["api_key_configured"]
    document["run"]["run_id"] = paths.base_run_id
    try:
        for rule in csv_rules(document):
            rule.clear()
            rule.update(mode="fixed", value=PLACEHOLDER_TOKENS)
        scenario = scenario_of_document(document, where, rules)
    except ScenarioError as error:
        findings.extend(list(error.problems))
        return None
    expected = copy.deepcopy(dict(scenario.effective))
    expected["run"] |= {"run_id": paths.run_id, "output_dir": str(scenario.run.output_dir)}
    expected["service"]["api_key_configured"] = has_key
    expected = _as_recorded(expected, sections)
    # What earlier versions wrote lacks the fields that were added since.
    for section, fields in scenario_schema()["properties"].items():
        for key, field in fields.get("properties", {}).items():
            if field.get("x-ours") and key not in document.get(section, {key: None}):
                expected[section].pop(key, None)
    before = findings.count
    compare_exactly(expected, sections, where, findings)
    return scenario if findings.count == before else None


def csv_rules(value: Any) -> Iterator[dict[str, Any]]:
    """Every rule of lengths in a Scenario's document that names a CSV file."""
    if isinstance(value, dict):
        if value.get("mode") == "csv":
            yield value
        for inner in list(value.values()):
            yield from csv_rules(inner)


def _as_recorded(expected: Any, recorded: Any) -> Any:
    """``expected`` with keys in the order of ``recorded``, and with its rules that name a CSV file.

    Where a computed value stands among its neighbours depends on whether the Scenario had it.
    """
    if not isinstance(expected, dict) or not isinstance(recorded, dict):
        return expected
    if recorded.get("mode") == "csv":
        return recorded
    keys = [*(key for key in recorded if key in expected), *(key for key in expected if key not in recorded)]
    return {key: _as_recorded(expected[key], recorded.get(key)) for key in keys}
