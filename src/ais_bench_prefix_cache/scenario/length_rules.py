"""Length rules of the requests: reading them, their counts, and whether each leaves room for the non-shared part."""

from __future__ import annotations

from pathlib import Path

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem
from ais_bench_prefix_cache.foundation.findings import MOST_PROBLEMS
from ais_bench_prefix_cache.foundation.strict_json import FieldPath
from ais_bench_prefix_cache.scenario.building import build
from ais_bench_prefix_cache.scenario.csv_lengths import INPUT_COLUMNS, OUTPUT_COLUMNS, read_csv_lengths
from ais_bench_prefix_cache.scenario.field_rules import CheckedFields
from ais_bench_prefix_cache.scenario.model import (
    LENGTH_RULES,
    CsvLengths,
    ExplicitLengths,
    FixedLength,
    LengthSpec,
    RangeLengths,
    TruncatedNormalLength,
    UniformLength,
)

CSV_COLUMNS = {
    "output_length": OUTPUT_COLUMNS,
    "answer_length": OUTPUT_COLUMNS,
    "turns": ("turns",),
    "think_time_ms": ("think_time_ms",),
    "time_ms": ("time_ms",),
}
"""Where a file of lengths has them, by the field that names it; elsewhere they are inputs."""


def read_length_rule(fields: CheckedFields, path: FieldPath) -> LengthSpec | None:
    """The rule at ``path``, a CSV file of lengths read; None where it is not sound."""
    rule = fields.get(*path)
    if rule is None:
        return None
    mode = rule["mode"]
    if mode == "csv":
        file = Path(rule["path"])
        columns = CSV_COLUMNS.get(str(path[-1]), INPUT_COLUMNS)

        def report(problem: Problem) -> None:
            fields.findings.report_elsewhere((*path, "path"), problem)

        values = read_csv_lengths(file, columns, report)
        return CsvLengths(file, values) if fields.findings.sound(path) else None
    intervals = [((*path, "ranges", n), item) for n, item in enumerate(rule.get("ranges", ()))] or [(path, rule)]
    unordered = [item for place, item in intervals if "min" in item and not _ordered(fields, place, item)]
    if unordered:
        return None
    if mode == "truncated_normal":
        low, high = rule["min"], rule["max"]
        rule = {"mean": (low + high) / 2, "std": default_std(low, high), **rule}
    return build(LENGTH_RULES[mode], rule)


def default_std(low: int, high: int) -> float:
    """A sixth of the interval's width, at least 1: the interval spans three deviations to each side."""
    return max(1.0, (high - low) / 6)


def _ordered(fields: CheckedFields, path: FieldPath, bounds: dict[str, int]) -> bool:
    if bounds["min"] <= bounds["max"]:
        return True
    fields.findings.report(
        (*path, "max"),
        Code.OUT_OF_RANGE,
        f"max {bounds['max']} is less than min {bounds['min']}",
        allowed=f"{bounds['min']} or more",
    )
    return False


def listed_count(rule: LengthSpec) -> int | None:
    """How many requests a rule is made for; None for a rule that fits any number."""
    if isinstance(rule, (ExplicitLengths, CsvLengths)):
        return len(rule.values)
    if isinstance(rule, RangeLengths):
        return sum(item.count for item in rule.ranges)
    return None


def check_count(fields: CheckedFields, path: FieldPath, rule: LengthSpec, requests: int, whose: str) -> None:
    """A rule that lists its requests must list exactly as many as there are."""
    listed = listed_count(rule)
    if listed is None or listed == requests:
        return
    if isinstance(rule, RangeLengths):
        at: FieldPath = (*path, "ranges")
        found = f"the counts of the intervals add up to {listed}"
    elif isinstance(rule, CsvLengths):
        at = (*path, "path")
        found = f"{rule.path.name} has {listed} rows of lengths"
    else:
        at = (*path, "values")
        found = f"{listed} lengths are listed"
    fields.findings.report(at, Code.COUNT_MISMATCH, f"{found}, but {whose} {requests}", allowed=f"exactly {requests}")


def check_room(fields: CheckedFields, path: FieldPath, rule: LengthSpec, needed: int) -> None:
    """Every length that a rule can give must hold the ``needed`` tokens that are never shared."""
    allowed = f"{needed} or more"
    hint = f"prefix_cache.minimum_non_shared_length is {needed}"
    short: list[tuple[FieldPath, str | None, int]] = []
    if isinstance(rule, FixedLength):
        short = [((*path, "value"), None, rule.value)]
    elif isinstance(rule, (UniformLength, TruncatedNormalLength)):
        short = [((*path, "min"), None, rule.min)]
    elif isinstance(rule, RangeLengths):
        short = [((*path, "ranges", n, "min"), None, item.min) for n, item in enumerate(rule.ranges)]
    elif min(rule.values, default=needed) < needed:
        is_list = isinstance(rule, ExplicitLengths)
        for n, value in enumerate(rule.values):
            at = (*path, "values", n) if is_list else (*path, "path")
            short.append((at, None if is_list else f"row {n + 1}", value))
    short = [item for item in short if item[2] < needed]
    for at, row, value in short[:MOST_PROBLEMS]:
        subject = f"{row} has length {value}, which" if row else str(value)
        fields.findings.report(
            at,
            Code.TOO_SHORT,
            f"{subject} cannot hold the {needed} tokens that are never shared",
            allowed=allowed,
            hint=hint,
        )
    if len(short) > MOST_PROBLEMS:
        fields.findings.report(path, Code.MORE_PROBLEMS, f"{len(short) - MOST_PROBLEMS} more lengths are too short")
