"""What a manifest's recorded configuration says about the lengths of copied prompts, without any file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ais_bench_prefix_cache.datasets.copies.request_lengths import (
    InputLengths,
    OutputLengths,
    input_column,
    output_column,
)
from ais_bench_prefix_cache.datasets.format.documents import is_count
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.scenario.model import LengthRange

INPUT_KEYS = ("distribution", "order", "input_token_csv", "input_len", "num_prompts")
OUTPUT_KEYS = ("mode", "output_len", "min_output_len", "max_output_len")
LARGEST_LENGTH = (1 << 31) - 1


def recorded_columns(
    config: Mapping[str, Any], rows: int, where: str, findings: Findings
) -> tuple[list[int] | None, list[int] | None] | None:
    """The input and output tokens of each of ``rows`` prompts; None for what stood in a CSV file, which is not read.

    None in place of both, with findings, where the configuration is none or asks for another number of prompts.
    """
    inputs, outputs = _inputs(config.get("input_lengths")), _outputs(config.get("output_lengths"))
    for key, found in (("input_lengths", inputs), ("output_lengths", outputs)):
        if found is None:
            findings.add(Code.WRONG_VALUE, f"{where}.{key}", f"it says {shown(config.get(key))}")
    seed = config.get("seed")
    if type(seed) is not int:
        findings.add(Code.WRONG_TYPE, f"{where}.seed", f"it says {shown(seed)}", allowed="a whole number")
        return None
    if inputs is None or outputs is None:
        return None
    count = inputs.fixed[1] if inputs.fixed else sum(part.count for part in inputs.ranges)
    if inputs.ranges or inputs.fixed:
        if count != rows:
            findings.add(Code.ROW_COUNT, where, f"it asks for {count} prompts", allowed=f"{rows}, as the file has")
            return None
        input_tokens = input_column(inputs, seed).tolist()
    else:
        input_tokens = None
    output_tokens = None if outputs.mode == "custom" else output_column(outputs, None, rows, seed).tolist()
    return input_tokens, output_tokens


def _inputs(section: Any) -> InputLengths | None:
    if not isinstance(section, dict) or tuple(section) != INPUT_KEYS:
        return None
    parts, order, csv, length, prompts = (section[key] for key in INPUT_KEYS)
    ways = (parts is not None, csv is not None, length is not None or prompts is not None)
    if sum(ways) != 1 or (order is not None) != ways[0]:
        return None
    if csv is not None:
        return InputLengths() if isinstance(csv, str) else None
    if parts is None:
        return InputLengths(fixed=(length, prompts)) if _is_length(length) and _is_length(prompts) else None
    if order not in ("random", "increasing") or not isinstance(parts, list) or not all(map(_is_range, parts)):
        return None
    return InputLengths(tuple(LengthRange(*part) for part in parts), order)


def _outputs(section: Any) -> OutputLengths | None:
    if not isinstance(section, dict) or tuple(section) != OUTPUT_KEYS:
        return None
    mode, value, low, high = (section[key] for key in OUTPUT_KEYS)
    if mode == "custom":
        return OutputLengths(mode) if value is low is high is None else None
    if mode == "fixed":
        return OutputLengths(mode, value) if _is_length(value) and low is high is None else None
    if mode not in ("uniform", "truncated-normal") or value is not None:
        return None
    if not _is_length(low) or not _is_length(high) or low > high:
        return None
    return OutputLengths(mode, None, low, high)


def _is_length(value: object) -> bool:
    return is_count(value) and 1 <= value <= LARGEST_LENGTH


def _is_range(part: object) -> bool:
    return isinstance(part, list) and len(part) == 3 and all(map(_is_length, part)) and part[0] <= part[1]
