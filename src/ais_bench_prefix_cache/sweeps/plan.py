"""What a sweep does: read from a sweep file and options, and kept in the sweep's directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ScenarioError
from ais_bench_prefix_cache.foundation.findings import nearest, shown
from ais_bench_prefix_cache.foundation.strict_json import JsonError, parse_json, read_file
from ais_bench_prefix_cache.sweeps.points import Point, points_of, swept_fields, values_of

_FILE_KEYS = ("set", "points", "repeat", "shuffle")


@dataclass(frozen=True)
class SweepPlan:
    """Which runs to make of which Scenario.

    ``constant`` are fields and values that all points have in common, ``points`` those in which they differ: two sweeps
    of different servers have the same points. ``shuffle`` is the seed of a random order, or None.
    """

    scenario: Path
    scenario_sha256: str
    points: tuple[Point, ...]
    repeat: int = 1
    shuffle: int | None = None
    constant: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario: Path, sha256: str, points: Sequence[Point], repeat: int, shuffle: int | None) -> SweepPlan:
        """The plan of points that were given as a whole."""
        first = points[0]
        constant = {
            field: value
            for field, value in first.items()
            if all(field in point and point[field] == value for point in points)
        }
        varying = tuple({field: value for field, value in point.items() if field not in constant} for point in points)
        return cls(scenario, sha256, varying, repeat, shuffle, constant)

    @property
    def runs(self) -> int:
        """How many runs the whole sweep has."""
        return len(self.points) * self.repeat

    def fields(self, point: int) -> Point:
        """Every field that is set at a point."""
        return {**self.constant, **self.points[point]}

    def to_json(self) -> dict[str, Any]:
        return {
            "scenario": str(self.scenario),
            "scenario_sha256": self.scenario_sha256,
            "constant": dict(self.constant),
            "points": list(self.points),
            "repeat": self.repeat,
            "shuffle": self.shuffle,
        }

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> SweepPlan:
        """Raises KeyError or TypeError where the document is none."""
        return cls(
            Path(document["scenario"]),
            str(document["scenario_sha256"]),
            tuple(dict(point) for point in document["points"]),
            int(document["repeat"]),
            document["shuffle"],
            dict(document["constant"]),
        )


@dataclass(frozen=True)
class SweepFile:
    """What a sweep file says: ``set`` (lists or ranges by field), ``points``, ``repeat`` and ``shuffle``."""

    fields: Mapping[str, list[Any]]
    points: Sequence[Point] = ({},)
    repeat: int | None = None
    shuffle: int | None = None


def planned_points(texts: Sequence[str], file: SweepFile | None) -> tuple[Point, ...]:
    """The points of ``--set`` options and a sweep file; an option replaces what the file says of its field."""
    fields = {**({} if file is None else file.fields), **swept_fields(texts)}
    return tuple(points_of(fields, ({},) if file is None else file.points))


def read_sweep_file(path: Path) -> SweepFile:
    """A JSON object with ``set``, ``points``, ``repeat`` and ``shuffle``; each may be missing.

    Raises:
        ScenarioError: with everything that is wrong.
    """
    try:
        document = parse_json(read_file(path, "the sweep file", ScenarioError))
    except JsonError as error:
        raise ScenarioError.of(error.code, str(path), f"the sweep file {error}", hint=error.hint) from None
    if not isinstance(document, dict):
        raise ScenarioError.of(Code.NOT_AN_OBJECT, str(path), "the sweep file is not a JSON object")
    problems = []
    for key in document:
        if key not in _FILE_KEYS:
            near = nearest(key, _FILE_KEYS)
            hint = f"did you mean {near}?" if near else None
            problems.append(Problem(Code.UNKNOWN_KEY, f"{path}: {key}", "no such key", ", ".join(_FILE_KEYS), hint))
    fields, points = document.get("set", {}), document.get("points", [{}])
    repeat, shuffle = document.get("repeat"), document.get("shuffle")
    if not isinstance(fields, dict) or not all(isinstance(values, (list, str)) for values in fields.values()):
        allowed = 'an object of lists or ranges: {"aisbench.model.batch_size": [1, 8]}'
        problems.append(Problem(Code.WRONG_TYPE, f"{path}: set", shown(fields), allowed))
    if not isinstance(points, list) or not points or not all(isinstance(point, dict) for point in points):
        problems.append(Problem(Code.WRONG_TYPE, f"{path}: points", shown(points), "a list of objects"))
    for key, value, least in (("repeat", repeat, 1), ("shuffle", shuffle, 0)):
        if value is not None and not (type(value) is int and value >= least):
            problems.append(Problem(Code.WRONG_TYPE, f"{path}: {key}", shown(value), f"a whole number from {least} on"))
    if problems:
        raise ScenarioError(problems)
    lists = {field: values_of(values) if isinstance(values, str) else values for field, values in fields.items()}
    return SweepFile(lists, points, repeat, shuffle)
