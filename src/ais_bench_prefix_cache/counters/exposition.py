"""Prometheus text to samples: only the wanted names, whole names, every such line checked.

A server with 64 engines answers ``/metrics`` with about 2.5 MB of which some hundred lines matter, so only lines whose
metric name, as a whole, is wanted go to ``prometheus_client``'s parser: one line at a time, so that a problem names its
line. That parser reads the text format 0.0.4 (which vLLM sends as ``version=1.0.0``), quoted UTF-8 names, and what is
met in the wild: exemplars, time stamps, CRLF.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from ais_bench_prefix_cache.counters.names import says_which_server
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, SnapshotError

LARGEST_TEXT_BYTES = 64 * 1024 * 1024
"""More than twenty times what a server of 64 engines says."""

_NAME = re.compile(r'[ \t]*(?:\{[ \t]*"((?:[^"\\]|\\.)*)"|([^\s{"#]+))')
_HELP = re.compile(r"#[ \t]+HELP[ \t]+(\S+)[ \t]+(.*)")
_MOST_LINES_TRIED = 1000
_SHOWN = 60


class Sample(NamedTuple):
    """One sample line. ``name`` is as written, ``value`` may be NaN or infinite; ``line`` counts from 1."""

    name: str
    labels: Mapping[str, str]
    value: float
    line: int


@dataclass(frozen=True)
class Exposition:
    """What one text holds: the samples of the wanted names in their order, and their help sentences.

    ``names`` are the names that say which server this is, wanted or not.
    """

    samples: Mapping[str, tuple[Sample, ...]]
    helps: Mapping[str, str]
    names: frozenset[str]


def decode_exposition(data: bytes, where: str) -> str:
    """The text of a saved ``/metrics`` answer: UTF-8, or UTF-16 with its mark, as some shells redirect it.

    Raises:
        SnapshotError: the bytes are neither, or more than :data:`LARGEST_TEXT_BYTES`.
    """
    if len(data) > LARGEST_TEXT_BYTES:
        raise SnapshotError.of(
            Code.FILE_TOO_LARGE,
            where,
            f"the text has {len(data)} bytes",
            allowed=f"at most {LARGEST_TEXT_BYTES}",
            hint="save one answer of the server's /metrics in each file",
        )
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise SnapshotError.of(
            Code.SNAPSHOT_ENCODING,
            where,
            f"byte {error.start} is not {error.encoding.upper()} text",
            hint="save the answer of /metrics as it comes (with curl a compressed answer needs --compressed)",
        ) from None


def parse_exposition(text: str, is_wanted: Callable[[str], bool], where: str) -> Exposition:
    """Read the samples whose whole name ``is_wanted``; ``where`` names the text in problems.

    A wanted sample in the last line without a line end may be a number cut in two, so it is refused.

    Raises:
        SnapshotError: with every problem, for a text that is empty, is not an exposition (an HTML error page), is cut
            off, has a malformed line of a wanted name, or gives one series twice with different values.
    """
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise SnapshotError.of(
            Code.SNAPSHOT_EMPTY, where, "the text is empty", hint="save the whole answer of the server's /metrics"
        )
    problems: list[Problem] = []
    samples: dict[str, list[Sample]] = {}
    helps: dict[str, str] = {}
    names: set[str] = set()
    number, line = 0, ""
    for number, line in enumerate(io.StringIO(text, newline="\n"), 1):
        match = _NAME.match(line)
        if match is None:
            help_line = _HELP.match(line)
            if help_line is not None and (is_wanted(help_line[1]) or is_wanted(f"{help_line[1]}_total")):
                # OpenMetrics leaves out the counter's _total there.
                helps[help_line[1]] = help_line[2].rstrip("\r\n")
            continue
        name = match[1] or match[2]
        if says_which_server(name):
            names.add(name)
        if not is_wanted(name):
            continue
        sample = _sample(name, line, number)
        if sample is not None:
            samples.setdefault(name, []).append(sample)
        elif line.endswith("\n"):
            problems.append(Problem(Code.SNAPSHOT_LINE, f"{where} line {number}", f"not a sample line: {_shown(line)}"))

    if not samples and not problems and not _holds_samples(text):
        raise SnapshotError.of(
            Code.SNAPSHOT_NOT_METRICS,
            where,
            f"not a Prometheus text: it begins with {_shown(text.lstrip())}",
            hint="check the metrics URL; an error page of a proxy looks like this",
        )
    if not line.endswith("\n") and _may_be_cut(line, is_wanted):
        problems.append(
            Problem(
                Code.SNAPSHOT_TRUNCATED,
                f"{where} line {number}",
                f"the text is cut off in the middle of a line: {_shown(line)}",
                hint="save the whole answer of the server's /metrics",
            )
        )
    kept = {name: _without_repeats(found, where, problems) for name, found in samples.items()}
    if problems:
        raise SnapshotError(problems)
    return Exposition(kept, helps, frozenset(names))


def _sample(name: str, line: str, number: int) -> Sample | None:
    """The sample of a line whose name is known; None where the line is malformed."""
    match = _NAME.match(line)
    if match is not None and match[2] is not None:
        # Dots stand in names only between quotes, and what an exporter makes of a colon is not the parser's concern.
        line = "x" + line[match.end() :]
    try:
        (family,) = text_string_to_metric_families(line)
        (read,) = family.samples
        return Sample(name, read.labels, float(read.value), number)
    except (ValueError, OverflowError):
        return None


def _holds_samples(text: str) -> bool:
    for tried, line in enumerate(io.StringIO(text, newline="\n")):
        match = _NAME.match(line)
        if match is not None and _sample(match[1] or match[2], line, tried) is not None:
            return True
        if tried > _MOST_LINES_TRIED:
            break
    return False


def _may_be_cut(line: str, is_wanted: Callable[[str], bool]) -> bool:
    """Whether a last line without an end lacks something that matters: a sample that counts, or one broken off."""
    match = _NAME.match(line)
    if match is None:
        return not line.startswith("#") and bool(line.strip())
    name = match[1] or match[2]
    return is_wanted(name) or _sample(name, line, 0) is None


def _without_repeats(found: list[Sample], where: str, problems: list[Problem]) -> tuple[Sample, ...]:
    """Drop exact repeats of a series; two different values for one series are a problem."""
    first: dict[frozenset[tuple[str, str]], Sample] = {}
    for sample in found:
        known = first.setdefault(frozenset(sample.labels.items()), sample)
        if known is not sample and repr(known.value) != repr(sample.value):
            problems.append(
                Problem(
                    Code.SNAPSHOT_DUPLICATE_SERIES,
                    f"{where} line {sample.line}",
                    f"{sample.name} has the value {sample.value:.17g} here and {known.value:.17g} in line "
                    f"{known.line}, with the same labels",
                    hint="two answers may have been written into one file; save one answer a file",
                )
            )
    return tuple(first.values())


def _shown(text: str) -> str:
    line = text.partition("\n")[0].rstrip("\r")
    return repr(line if len(line) <= _SHOWN else line[:_SHOWN] + "…")
