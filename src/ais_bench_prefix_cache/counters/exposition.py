"""Prometheus text to samples: only the wanted names, whole names, every line checked.

A server with 64 engines answers ``/metrics`` with about 2.5 MB of which some hundred lines matter, so a line is looked
at closely only when its metric name, as a whole, is wanted. The grammar is the text format 0.0.4 (which vLLM sends as
``version=1.0.0``) with what is met in the wild: OpenMetrics exemplars and ``# EOF``, time stamps, CRLF, a byte-order
mark. The tests hold it against ``prometheus_client``'s parser, which reads the same samples ten times more slowly.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, SnapshotError

_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
_QUOTED = r'"([^"\\\n]*(?:\\.[^"\\\n]*)*)"'
_LABEL = re.compile(rf"([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*{_QUOTED}")
_LABELS = re.compile(rf"((?:[ \t]*[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*{_QUOTED}[ \t]*(?:,|(?=\}})))*)[ \t]*\}}")
# A value, perhaps a time stamp, perhaps an exemplar.
_VALUE = re.compile(
    r"[ \t]*([+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[Ii]nf|[Nn]a[Nn]))"
    r"(?:[ \t]+-?[0-9.eE+]+)?[ \t]*(?:#.*)?$"
)
_PLAIN_VALUE = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_SHOWN = 60


class Sample(NamedTuple):
    """One sample line. ``value`` may be NaN or infinite; ``line`` counts from 1."""

    name: str
    labels: Mapping[str, str]
    value: float
    line: int


@dataclass(frozen=True)
class Exposition:
    """What one text holds: the samples of the wanted names, their help sentences, and the names of all samples."""

    samples: Mapping[str, tuple[Sample, ...]]
    helps: Mapping[str, str]
    names: frozenset[str]


def decode_exposition(data: bytes, where: str) -> str:
    """The text of a saved ``/metrics`` answer: UTF-8, or UTF-16 with its mark, as some shells redirect it.

    Raises SnapshotError where the bytes are neither.
    """
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


def parse_exposition(text: str, wanted: Container[str], where: str) -> Exposition:
    """Read the samples whose whole name is in ``wanted``.

    ``where`` names the text in problems. Raises SnapshotError, with every problem, for a text that is empty, is not an
    exposition (an HTML error page), is cut off, has a malformed line of a wanted name, or gives one series twice with
    different values.
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
    known_labels: dict[str, Mapping[str, str]] = {}
    lines = text.split("\n")
    unwanted = "\n"
    for number, line in enumerate(lines, 1):
        if line.startswith(unwanted):
            continue  # as the line before
        head = line.partition("{")[0]
        if head in names:
            unwanted = head + "{"
            continue
        if head not in wanted:
            if head.startswith("#"):
                _read_help(line, wanted, helps)
                continue
            # A sample without labels, or with spaces before them.
            head = head.split(None, 1)[0] if head and not head.isspace() else ""
            if head not in wanted:
                names.add(head)
                continue
        sample = _repeating_sample(head, line, number, known_labels)
        if sample is None:
            sample = _parse_sample(line.rstrip("\r"), number, known_labels)
        if sample is not None:
            samples.setdefault(head, []).append(sample)
        elif number < len(lines):
            problems.append(Problem(Code.SNAPSHOT_LINE, f"{where} line {number}", f"not a sample line: {_shown(line)}"))
    names.discard("")

    if not samples and not problems and not any(_parse_sample(line.rstrip("\r"), 0, known_labels) for line in lines):
        raise SnapshotError.of(
            Code.SNAPSHOT_NOT_METRICS,
            where,
            f"not a Prometheus text: it begins with {_shown(text.lstrip())}",
            hint="check the metrics URL; an error page of a proxy looks like this",
        )
    last = lines[-1].rstrip("\r")
    if last.strip() and not last.startswith("#") and _parse_sample(last, 0, known_labels) is None:
        problems.append(
            Problem(
                Code.SNAPSHOT_TRUNCATED,
                f"{where} line {len(lines)}",
                f"the text is cut off in the middle of a line: {_shown(last)}",
                hint="save the whole answer of the server's /metrics",
            )
        )
    kept = {name: _without_repeats(found, where, problems) for name, found in samples.items()}
    if problems:
        raise SnapshotError(problems)
    return Exposition(kept, helps, frozenset(names | kept.keys()))


def _read_help(line: str, wanted: Container[str], helps: dict[str, str]) -> None:
    """Keep ``# HELP name sentence``; OpenMetrics leaves out the counter's ``_total`` there."""
    if not line.startswith("# HELP "):
        return
    name, _, sentence = line[len("# HELP ") :].rstrip("\r").partition(" ")
    if name in wanted or f"{name}_total" in wanted:
        helps[name] = sentence


def _repeating_sample(
    name: str, line: str, number: int, known_labels: Mapping[str, Mapping[str, str]]
) -> Sample | None:
    """The sample of a line with a label list that is known, a plain value and nothing else; None for any other."""
    end = line.rfind("} ") + 1
    labels, value = known_labels.get(line[len(name) : end]), line[end + 1 :]
    return Sample(name, labels, float(value), number) if labels is not None and _PLAIN_VALUE.fullmatch(value) else None


def _parse_sample(line: str, number: int, known_labels: dict[str, Mapping[str, str]]) -> Sample | None:
    """None for a line that is not a sample. ``known_labels`` remembers label lists: most lines repeat one."""
    match = _NAME.match(line)
    if match is None:
        return None
    name, position = match.group(1), match.end()
    labels: Mapping[str, str] = {}
    if line.startswith("{", position):
        end = line.rfind("}") + 1
        written = line[position:end]
        if written in known_labels:
            labels, position = known_labels[written], end
        else:
            parsed = _parse_labels(line, position + 1)
            if parsed is None:
                return None
            labels, position = parsed
            known_labels[line[match.end() : position]] = labels
    elif position == match.end(1):
        return None
    value = _VALUE.match(line, position)
    return Sample(name, labels, float(value.group(1)), number) if value else None


def _parse_labels(line: str, position: int) -> tuple[dict[str, str], int] | None:
    """The labels that begin at ``position`` (after the brace), and where the closing brace ends."""
    whole = _LABELS.match(line, position)
    if whole is None:
        return None
    found = _LABEL.findall(whole.group(1))
    labels = dict(found)
    if len(labels) < len(found):
        return None
    if "\\" in whole.group(1):
        labels = {key: _ESCAPE.sub(_unescape, value) for key, value in labels.items()}
    return labels, whole.end()


def _unescape(match: re.Match[str]) -> str:
    character = match.group(1)
    return _UNESCAPED.get(character, "\\" + character)


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
