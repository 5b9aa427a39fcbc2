"""Input and output lengths of a parent-copying data set: three exclusive sources, four output modes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError, Problem
from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.foundation.regular_files import open_regular
from ais_bench_prefix_cache.planning.lengths import sample_lengths
from ais_bench_prefix_cache.planning.plan import Int64Column
from ais_bench_prefix_cache.scenario.csv_lengths import OUTPUT_COLUMNS, read_csv_lengths
from ais_bench_prefix_cache.scenario.model import (
    FixedLength,
    LengthRange,
    RangeLengths,
    TruncatedNormalLength,
    UniformLength,
)

Order = Literal["random", "increasing"]
OutputMode = Literal["fixed", "truncated-normal", "uniform", "custom"]

INPUT_COLUMN = "input_prompt_tokens"
TRUNCATED_NORMAL_SEED = 0
"""The seed of this mode is part of its definition, whatever ``--seed`` says."""
_INTERVAL = re.compile(r"(\d{1,10})\s*-\s*(\d{1,10})\s*:\s*(\d{1,10})", re.ASCII)


@dataclass(frozen=True)
class InputLengths:
    """Exactly one of ``ranges``, ``csv`` and ``fixed`` (length, prompts) is set; ``order`` acts on ranges only."""

    ranges: tuple[LengthRange, ...] = ()
    order: Order = "random"
    csv: Path | None = None
    fixed: tuple[int, int] | None = None


@dataclass(frozen=True)
class OutputLengths:
    """``fixed`` uses ``value``; ``uniform`` and ``truncated-normal`` the closed interval ``low`` … ``high``."""

    mode: OutputMode
    value: int | None = None
    low: int | None = None
    high: int | None = None


def parse_ranges(argument: str) -> tuple[LengthRange, ...]:
    """``LOW-HIGH:COUNT,…``, or the path of a .txt file that holds it (commas, line ends or both between the parts).

    Raises :class:`GenerationError` with every part that is wrong.
    """
    text, where = argument, "--distribution"
    if argument.strip().lower().endswith(".txt"):
        where = argument.strip()
        try:
            with open_regular(Path(where), follow_links=True) as stream:
                text = stream.read().decode("utf-8-sig")
        except FileNotFoundError:
            raise GenerationError.of(Code.MISSING_FILE, where, "the file does not exist") from None
        except (OSError, UnicodeDecodeError) as error:
            reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)
            raise GenerationError.of(Code.UNREADABLE_FILE, where, f"the file cannot be read: {reason}") from None
    parts = [part.strip() for part in re.split(r"[,\n]", text) if part.strip()]
    problems: list[Problem] = []
    ranges: list[LengthRange] = []
    allowed = "LOW-HIGH:COUNT with 1 <= LOW <= HIGH and COUNT >= 1, for example 3600-3800:56"
    for number, part in enumerate(parts, start=1):
        matched = _INTERVAL.fullmatch(part)
        low, high, count = map(int, matched.groups()) if matched else (0, 0, 0)
        if not 1 <= low <= high or count < 1:
            problems.append(
                Problem(Code.WRONG_INTERVAL, f"{where}, part {number}", f"{part!r} is no interval", allowed)
            )
            continue
        ranges.append(LengthRange(low, high, count))
    if not parts:
        problems.append(Problem(Code.WRONG_INTERVAL, where, "it holds no interval", allowed))
    if problems:
        raise GenerationError(problems)
    return tuple(ranges)


def input_column(source: InputLengths, seed: int) -> Int64Column:
    """The input tokens of each prompt, in file order. Raises :class:`GenerationError` for a CSV with problems."""
    if source.csv is not None:
        return np.asarray(_csv_column(source.csv, (INPUT_COLUMN,)), dtype=np.int64)
    if source.fixed is not None:
        length, prompts = source.fixed
        return np.full(prompts, length, dtype=np.int64)
    total = sum(part.count for part in source.ranges)
    lengths = sample_lengths(RangeLengths(source.ranges), total, RandomStream(seed, "lengths", "input"))
    if source.order == "increasing":
        return np.sort(lengths)
    return lengths[RandomStream(seed, "order").permutation(total)]


def output_column(output: OutputLengths, csv: Path | None, count: int, seed: int) -> Int64Column:
    """``max_tokens`` of each prompt, in file order. ``csv`` is the file of the input lengths, for ``custom``."""
    if output.mode == "custom":
        assert csv is not None
        return np.asarray(_csv_column(csv, OUTPUT_COLUMNS), dtype=np.int64)
    if output.mode == "fixed":
        assert output.value is not None
        return sample_lengths(FixedLength(output.value), count, RandomStream(seed, "lengths", "output"))
    assert output.low is not None and output.high is not None
    if output.mode == "uniform":
        return sample_lengths(UniformLength(output.low, output.high), count, RandomStream(seed, "lengths", "output"))
    # The same middle and width as a Scenario's truncated normal has by default.
    mean, std = (output.low + output.high) / 2, max((output.high - output.low) / 6, 1.0)
    spec = TruncatedNormalLength(output.low, output.high, mean, std)
    return sample_lengths(spec, count, RandomStream(TRUNCATED_NORMAL_SEED, "lengths", "output"))


def _csv_column(path: Path, columns: tuple[str, ...]) -> Sequence[int]:
    problems: list[Problem] = []
    lengths = read_csv_lengths(path, columns, problems.append)
    if problems:
        raise GenerationError(problems)
    if not lengths:
        raise GenerationError.of(Code.EMPTY_FILE, str(path), "the CSV file has a header, but no rows")
    return lengths
