"""The schema's verdict in our own words: jsonschema finds what is wrong, this module says it.

Where it differs from JSON Schema's own reading: ``1.0`` is not an integer, NaN is not a number; a tagged union is
checked against the branch that its ``mode`` names; long lists of numbers are checked without a validator per item.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import MOST_PROBLEMS, nearest, quoted
from ais_bench_prefix_cache.foundation.strict_json import FieldPath
from ais_bench_prefix_cache.scenario.findings import SECRET_FIELD, FieldFindings
from ais_bench_prefix_cache.scenario.schema import (
    Schema,
    branches_by_mode,
    default_mode,
    resolved,
    scenario_schema,
    schema_fields,
)

_PLAIN_ITEM_KEYWORDS = {"type", "minimum", "maximum"}
_TYPE_PHRASES = {
    "object": "an object",
    "array": "a list",
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


def report_schema_problems(
    document: Any, findings: FieldFindings, *, section: FieldPath = (), schema: Schema | None = None
) -> None:
    """Report everything in ``document`` that the schema (or the part of it given) refuses.

    ``section`` is the place of ``document`` in the Scenario. Fields that already have a problem are left out.
    """
    validator = _validator()
    if schema is not None:
        # Without the key $schema: jsonschema would choose its own class by it and leave ours.
        validator = validator.evolve(schema={"$defs": scenario_schema()["$defs"], **schema})
    already = {path for path, _ in findings}
    for error in validator.iter_errors(document):
        path = (*section, *error.absolute_path)
        if path in already:
            continue
        sentence = _SECRET_SENTENCE if path == SECRET_FIELD else _SENTENCES[error.validator](error)
        if sentence:
            findings.report(path, sentence.code, sentence.message, allowed=sentence.allowed, hint=sentence.hint)


@cache
def _validator() -> Any:
    strict = extend(  # type: ignore[no-untyped-call]
        Draft202012Validator,
        validators={
            "oneOf": _tagged_union,
            "items": _items,
            "additionalProperties": _no_unknown_keys,
            "propertyNames": _key_pattern,
            "required": _required,
        },
        type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
            {"integer": lambda _, value: _is_integer(value), "number": lambda _, value: _is_number(value)}
        ),
    )
    return strict(scenario_schema())


def _is_number(value: object) -> bool:
    # Manifests reach this check, too, and Python's own parser lets NaN and integers of any size into them.
    return _is_integer(value) or (type(value) is float and math.isfinite(value))


def _is_integer(value: object) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _tagged_union(validator: Any, _: Any, value: Any, schema: Schema) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    branches = branches_by_mode(schema)
    mode = value.get("mode", default_mode(branches))
    if not isinstance(mode, str) or mode not in branches:
        yield ValidationError("", validator="enum", validator_value=list(branches), instance=mode, path=["mode"])
    else:
        for error in validator.descend(value, branches[mode]):
            if error.validator == "additionalProperties" and len(error.path) == 1:
                owners = [name for name, branch in branches.items() if error.path[0] in branch["properties"]]
                if owners:
                    error.validator = "mode"
                    error.validator_value = (mode, owners)
            yield error


def _items(validator: Any, items: Schema, value: Any, schema: Schema) -> Iterator[ValidationError]:
    if not isinstance(value, list):
        return
    wrong_items = 0
    for n in _suspects(value, resolved(items)):
        if wrong_items < MOST_PROBLEMS or not _is_plain(resolved(items)):
            errors = list(validator.descend(value[n], items, path=n))
            wrong_items += bool(errors)
            if wrong_items <= MOST_PROBLEMS:
                yield from errors
        else:
            wrong_items += 1
    if wrong_items > MOST_PROBLEMS:
        more = f"{wrong_items - MOST_PROBLEMS} more entries of this list are wrong"
        yield ValidationError("", validator="more", validator_value=more)


def _is_plain(rule: Schema) -> bool:
    """Whether a rule is nothing but a number between two bounds."""
    return set(rule) == _PLAIN_ITEM_KEYWORDS and rule["type"] in ("integer", "number")


def _suspects(value: list[Any], rule: Schema) -> Iterable[int]:
    """The positions worth a validator: for plain numbers only the wrong ones, otherwise all."""
    if not _is_plain(rule):
        return range(len(value))
    is_right = _is_integer if rule["type"] == "integer" else _is_number
    low, high = rule["minimum"], rule["maximum"]
    return (n for n, item in enumerate(value) if not is_right(item) or not low <= item <= high)


def _no_unknown_keys(validator: Any, rule: Any, value: Any, schema: Schema) -> Iterator[ValidationError]:
    if rule is not False:
        yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, rule, value, schema)
    elif isinstance(value, dict):
        patterns = list(schema.get("patternProperties", ()))
        known = schema.get("properties", ())
        unknown = [key for key in value if key not in known and not any(re.search(each, key) for each in patterns)]
        for key in unknown[:MOST_PROBLEMS]:
            yield ValidationError("", path=[key], instance=value, schema=schema)
        if len(unknown) > MOST_PROBLEMS:
            more = f"{len(unknown) - MOST_PROBLEMS} more keys of this object are unknown"
            yield ValidationError("", validator="more", validator_value=more)


def _key_pattern(validator: Any, rule: Schema, value: Any, schema: Schema) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for key in value:
            if not re.search(rule["pattern"], key):
                yield ValidationError("", path=[key])


def _required(validator: Any, required: list[str], value: Any, schema: Schema) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        missing = [key for key in required if key not in value]
        if missing:
            yield ValidationError("", validator_value=missing)


@dataclass(frozen=True)
class _Sentence:
    code: Code
    message: str
    allowed: str | None = None
    hint: str | None = None


def _wrong_type(error: Any) -> _Sentence:
    schema: Schema = error.schema
    value = error.instance
    wanted = [error.validator_value] if isinstance(error.validator_value, str) else list(error.validator_value)
    if type(value) is float and "integer" in wanted:
        whole = f"write {int(value)}" if value.is_integer() else None
        return _Sentence(Code.WRONG_TYPE, f"{value!r} is a decimal number, not an integer", _allowed(schema), whole)
    hint = None
    percent = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *%", value) if isinstance(value, str) else None
    if percent and "number" in wanted:
        hint = f"write {float(percent[1]) / 100:g}"
    elif isinstance(value, str) and {"integer", "number"} & set(wanted) and re.fullmatch(r"[0-9.]+", value):
        hint = "write the number without quotes"
    elif isinstance(value, list) and schema.get("propertyNames", {}).get("pattern") == "^-":
        hint = f"the list form became an object; write {_arguments_as_object(value)}"
    return _Sentence(Code.WRONG_TYPE, f"{_kind(value)} cannot stand here", _allowed(schema), hint)


def _not_allowed(error: Any) -> _Sentence:
    choices = error.validator_value if error.validator == "enum" else [error.validator_value]
    value = error.instance
    hint = None
    if isinstance(value, str):
        shown = quoted(value)
        near = nearest(value, [choice for choice in choices if isinstance(choice, str)]) if len(choices) > 1 else None
        hint = f"did you mean {quoted(near)}?" if near else None
    elif value is None or isinstance(value, (bool, int, float)):
        shown = json.dumps(value)
    else:
        shown = _kind(value)
    return _Sentence(Code.NOT_ALLOWED, f"{shown} is not allowed", _choices(choices), hint)


def _out_of_range(error: Any) -> _Sentence:
    side = "small" if "inimum" in error.validator else "large"
    is_percent = error.validator == "maximum" and error.validator_value == 1 and error.instance <= 100
    hint = f"it is a fraction: write {error.instance / 100:g} for {error.instance:g} %" if is_percent else None
    return _Sentence(Code.OUT_OF_RANGE, f"{json.dumps(error.instance)} is too {side}", _allowed(error.schema), hint)


def _wrong_size(error: Any) -> _Sentence:
    thing = "text" if isinstance(error.instance, str) else "list"
    if not error.instance:
        return _Sentence(Code.EMPTY, f"the {thing} is empty", f"a {thing} that is not empty")
    unit = "characters" if thing == "text" else "entries"
    found = f"the {thing} has {len(error.instance)} {unit}"
    return _Sentence(Code.WRONG_SIZE, found, f"at most {error.validator_value}")


def _wrong_text(error: Any) -> _Sentence:
    return _Sentence(Code.WRONG_TEXT, f"{quoted(error.instance)} is not allowed", error.schema.get("x-allowed"))


def _wrong_key(error: Any) -> _Sentence:
    return _Sentence(Code.WRONG_KEY, "an argument's name begins with -", hint=f"write {quoted(f'--{error.path[-1]}')}")


def _unknown_key(error: Any) -> _Sentence:
    key = str(error.path[-1])
    known = list(error.schema.get("properties", ()))
    if "patternProperties" in error.schema:
        numbered = re.fullmatch(r"group[-_ ]?0*([0-9]{1,7})", key, re.IGNORECASE)
        hint = f'write "group-{int(numbered[1])}"' if numbered else None
        return _Sentence(Code.UNKNOWN_KEY, "this is not the id of a group", '"group-0", "group-1", …', hint)
    near = nearest(key, known)
    elsewhere = [
        path
        for path, field in schema_fields()
        if path.rpartition(".")[2] == key or key.lower() in field.get("x-also-called", ())
    ]
    if near and not elsewhere:
        return _Sentence(Code.UNKNOWN_KEY, "there is no such key", hint=f"did you mean {quoted(near)}?")
    hint = f"{' and '.join(elsewhere[:3])} would be the right place" if elsewhere else None
    return _Sentence(Code.UNKNOWN_KEY, "there is no such key", ", ".join(map(quoted, known)) or "no keys", hint)


def _key_of_other_mode(error: Any) -> _Sentence:
    mode, owners = error.validator_value
    names = " and ".join(map(quoted, owners))
    hint = f'it belongs to mode {names}; set "mode" or remove the key'
    return _Sentence(Code.KEY_OF_OTHER_MODE, f"this key does not belong to mode {quoted(mode)}", hint=hint)


def _missing_keys(error: Any) -> _Sentence | None:
    missing = [key for key in error.validator_value if key != "mode"]
    if not missing:
        return None
    mode = error.schema["properties"].get("mode", {}).get("const")
    subject = f"mode {quoted(mode)}" if mode else "an interval"
    return _Sentence(Code.MISSING_KEY, f"{subject} needs {' and '.join(map(quoted, missing))}")


def _selection_without_values(error: Any) -> _Sentence:
    return _Sentence(Code.MISSING_KEY, f'mode {quoted(error.instance["mode"])} needs "values"')


def _selection_twice(error: Any) -> _Sentence | None:
    mode = error.instance["mode"]
    if not {"values", mode} <= set(error.instance):
        return None
    return _Sentence(Code.DUPLICATE_KEY, f'"values" and {quoted(mode)} mean the same', hint="keep one of them")


def _mixed_without_values(error: Any) -> _Sentence:
    return _Sentence(Code.EMPTY, 'mode "mixed" needs "indices" or "question_sha256"; both are empty')


_SECRET_SENTENCE = _Sentence(Code.WRONG_TYPE, "the key is not a string", "a string")
_SENTENCES: Mapping[Any, Callable[[Any], _Sentence | None]] = {
    "type": _wrong_type,
    "enum": _not_allowed,
    "const": _not_allowed,
    "minimum": _out_of_range,
    "maximum": _out_of_range,
    "exclusiveMinimum": _out_of_range,
    "minLength": _wrong_size,
    "maxLength": _wrong_size,
    "minItems": _wrong_size,
    "maxItems": _wrong_size,
    "pattern": _wrong_text,
    "propertyNames": _wrong_key,
    "additionalProperties": _unknown_key,
    "mode": _key_of_other_mode,
    "required": _missing_keys,
    "minProperties": _selection_without_values,
    "maxProperties": _selection_twice,
    "anyOf": _mixed_without_values,
    "more": lambda error: _Sentence(Code.MORE_PROBLEMS, error.validator_value),
}
"""One sentence per keyword that the schema uses; ``mode`` and ``more`` are errors of this module's own."""


def _kind(value: Any) -> str:
    """What the value is; never the value of a text, which could be a secret in the wrong place."""
    if type(value) is int and not _is_integer(value):
        return "an integer of more than 64 bits"
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"


def _allowed(schema: Schema) -> str:
    """The values that a field may have, as a phrase."""
    if "x-allowed" in schema:
        return str(schema["x-allowed"])
    if "const" in schema or "enum" in schema:
        return _choices(schema.get("enum") or [schema["const"]])
    types = [schema["type"]] if isinstance(schema["type"], str) else list(schema["type"])
    return " or ".join(_type_phrase(name, schema) for name in types)


def _type_phrase(name: str, schema: Schema) -> str:
    if name in ("integer", "number"):
        bounds = []
        if "exclusiveMinimum" in schema:
            bounds.append(f"above {schema['exclusiveMinimum']}")
        if "minimum" in schema:
            bounds.append(f"from {schema['minimum']}")
        if "maximum" in schema:
            bounds.append(f"up to {schema['maximum']}")
        return " ".join([_TYPE_PHRASES[name], *bounds])
    if (name == "string" and schema.get("minLength")) or (name == "array" and schema.get("minItems")):
        return _TYPE_PHRASES[name] + " that is not empty"
    return _TYPE_PHRASES[name]


def _choices(choices: Iterable[Any]) -> str:
    return " or ".join(json.dumps(choice) for choice in choices)


def _arguments_as_object(arguments: list[Any]) -> str:
    """The object form of a list of command-line arguments, as JSON text."""
    converted: dict[str, Any] = {}
    key = ""
    for argument in arguments:
        text = argument if isinstance(argument, str) else json.dumps(argument)
        if re.match(r"-[^0-9.]", text):
            key, equals, value = text.partition("=")
            converted[key] = _argument_value(value) if equals else True
        elif key:
            value_so_far = converted[key]
            value = _argument_value(text)
            if value_so_far is True:
                converted[key] = value
            else:
                earlier = value_so_far if isinstance(value_so_far, list) else [value_so_far]
                converted[key] = [*earlier, value]
    text = json.dumps(converted)
    return text if len(text) <= 300 else '{"--name": value, …}'


def _argument_value(text: str) -> Any:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text
