"""``--set FIELD=VALUE``: fields that are given on the command line, checked as if they stood in the Scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ScenarioError
from ais_bench_prefix_cache.foundation.names import API_KEY_VARIABLE
from ais_bench_prefix_cache.foundation.strict_json import FieldPath, JsonError, parse_json
from ais_bench_prefix_cache.scenario.findings import SECRET_FIELD


@dataclass(frozen=True)
class Setting:
    """One field and its value. ``path`` is the field's keys from the top of the Scenario."""

    path: FieldPath
    value: Any


def parse_settings(texts: Sequence[str]) -> tuple[Setting, ...]:
    """``requests.count=200`` …; a value is JSON, or, where it is none, the text itself.

    Raises:
        ScenarioError: with every text that has no field or no value.
    """
    settings: list[Setting] = []
    problems: list[Problem] = []
    for text in texts:
        field, equals, value = text.partition("=")
        keys = field.strip().split(".")
        if not equals or not all(keys):
            allowed = "FIELD=VALUE, as in requests.count=200"
            problems.append(Problem(Code.WRONG_OPTION, "--set", f"{text!r} is no field and value", allowed))
            continue
        if tuple(keys) == SECRET_FIELD:
            hint = f"Other users see command lines; put it into the environment variable {API_KEY_VARIABLE}."
            problems.append(Problem(Code.WRONG_OPTION, "--set", "service.api_key is a secret", hint=hint))
            continue
        settings.append(Setting(tuple(keys), _value(value)))
    if problems:
        raise ScenarioError(problems)
    return tuple(settings)


def _value(text: str) -> Any:
    try:
        return parse_json(text.encode("utf-8", "surrogatepass"))
    except JsonError:
        return text


def apply_settings(document: dict[str, Any], settings: Sequence[Setting]) -> None:
    """Put the values into a Scenario's document; a section that is not there, or no object, becomes one."""
    for setting in settings:
        section = document
        for key in setting.path[:-1]:
            if not isinstance(section.get(str(key)), dict):
                section[str(key)] = {}
            section = section[str(key)]
        section[str(setting.path[-1])] = setting.value
