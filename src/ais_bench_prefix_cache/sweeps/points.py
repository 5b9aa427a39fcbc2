"""The points of a sweep, from fields and their values, and the order in which they are run. Pure."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ScenarioError
from ais_bench_prefix_cache.foundation.findings import quoted, shown
from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.foundation.strict_json import JsonError, parse_json

MOST_POINTS = 10_000
ALLOWED = "FIELD=VALUE, FIELD=A,B,C or FIELD=START:STOP:STEP, as in prefix_cache.target_hit_rate=0:0.9:0.1"
_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(f"({_NUMBER}):({_NUMBER}):({_NUMBER})")

Point = dict[str, Any]
"""Field of the Scenario → its value at this point."""


def swept_fields(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``prefix_cache.target_hit_rate=0:0.9:0.1`` … as the values of each field.

    A range holds its end. A value that is JSON by itself is one value, also where it has commas.

    Raises:
        ScenarioError: with every text that cannot be read.
    """
    fields: dict[str, list[Any]] = {}
    problems: list[Problem] = []
    for text in texts:
        field, equals, values = text.partition("=")
        field = field.strip()
        if not equals or not all(field.split(".")):
            problems.append(Problem(Code.WRONG_OPTION, "--set", f"{quoted(text)} is no field and values", ALLOWED))
        elif field in fields:
            problems.append(Problem(Code.WRONG_OPTION, "--set", f"{field} is given twice", "one list of values"))
        else:
            try:
                fields[field] = values_of(values)
            except ScenarioError as error:
                problems.extend(error.problems)
    if problems:
        raise ScenarioError(problems)
    return fields


def values_of(text: str) -> list[Any]:
    """``0:0.9:0.1``, ``1,8,32``, ``warmup,cold`` or one value. Raises ScenarioError for an impossible range."""
    try:
        return [parse_json(text.encode("utf-8", "surrogatepass"))]
    except JsonError:
        pass
    try:
        listed = parse_json(f"[{text}]".encode("utf-8", "surrogatepass"))
        if isinstance(listed, list) and listed:
            return listed
    except JsonError:
        pass
    return [value for part in text.split(",") for value in _values_of_part(part.strip())]


def _values_of_part(part: str) -> list[Any]:
    matched = _RANGE.fullmatch(part)
    if matched is None:
        try:
            return [parse_json(part.encode("utf-8", "surrogatepass"))]
        except JsonError:
            return [part]
    start, stop, step = (Decimal(number) for number in matched.groups())
    if step <= 0 or stop < start or (stop - start) / step >= MOST_POINTS:
        allowed = f"START:STOP:STEP upwards, with a step above 0 and at most {MOST_POINTS:,} values"
        raise ScenarioError.of(Code.WRONG_OPTION, "--set", f"{quoted(part)} is no range", allowed=allowed)
    steps = int((stop - start) / step)
    return [_number(start + step * number) for number in range(steps + 1)]


def _number(value: Decimal) -> int | float:
    """Decimal steps, so that 0:0.9:0.1 has 0.3 and not 0.30000000000000004."""
    return int(value) if value == value.to_integral_value() else float(value)


def points_of(fields: Mapping[str, Sequence[Any]], listed: Sequence[Mapping[str, Any]] = ({},)) -> list[Point]:
    """Every combination of the fields' values, the last field fastest, with each of the ``listed`` points.

    Raises:
        ScenarioError: a field has no value, stands in both, or the points are too many or one is there twice.
    """
    problems = [
        Problem(Code.WRONG_OPTION, "sweep", f"{field} has no value") for field, values in fields.items() if not values
    ]
    both = sorted({field for point in listed for field in point} & set(fields))
    problems += [
        Problem(Code.WRONG_OPTION, "sweep", f"{field} is set, and in the listed points, too") for field in both
    ]
    count = len(listed)
    for values in fields.values():
        count *= len(values)
    if count > MOST_POINTS:
        problems.append(Problem(Code.WRONG_OPTION, "sweep", f"{count:,} points", allowed=f"at most {MOST_POINTS:,}"))
    if problems:
        raise ScenarioError(problems)
    combinations = itertools.product(*fields.values())
    points = [{**dict(zip(fields, values, strict=True)), **point} for values in combinations for point in listed]
    known: set[str] = set()
    for point in points:
        text = json.dumps(point, sort_keys=True)
        if text in known:
            raise ScenarioError.of(Code.WRONG_OPTION, "sweep", f"the point {point_name(point)} is there twice")
        known.add(text)
    return points


def run_order(points: int, repeat: int, shuffle: int | None) -> list[tuple[int, int]]:
    """(point, repeat) in the order in which they are run: all points once, then all again.

    So a drift of the server falls on all points alike. ``shuffle`` is the seed of a random order.
    """
    order = [(point, number) for number in range(repeat) for point in range(points)]
    if shuffle is None:
        return order
    return [order[place] for place in RandomStream(shuffle, "sweep", "order").permutation(len(order)).tolist()]


def settings_of(point: Mapping[str, Any]) -> list[str]:
    """The point as ``--set`` has it."""
    return [f"{field}={json.dumps(value, ensure_ascii=False)}" for field, value in point.items()]


def point_name(point: Mapping[str, Any]) -> str:
    """``target_hit_rate=0.3 batch_size=8``; the last part of a field names it."""
    parts = (
        f"{field.rpartition('.')[2]}={value if isinstance(value, str) else shown(value)}"
        for field, value in point.items()
    )
    return " ".join(parts) or "as it stands"
