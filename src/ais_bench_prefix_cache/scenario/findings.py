"""Collecting every problem of a Scenario with its place, so that all of them are reported at once."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem

FieldPath = tuple[str | int, ...]
"""Keys and list positions from the top of the document; ``()`` is the document itself."""

SECRET_FIELD: FieldPath = ("service", "api_key")

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_$-]+")
_LONGEST_SHOWN = 60


def quoted(text: str) -> str:
    """The text as a JSON string, short enough for a sentence and printable everywhere."""
    shown = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
    try:
        shown.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(shown)
    return json.dumps(shown, ensure_ascii=False)


def field_path_text(path: FieldPath) -> str:
    """``requests.input_length.values[3]``; keys that are not plain words are quoted in brackets."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step) and len(step) <= _LONGEST_SHOWN:
            text += f".{step}" if text else step
        else:
            text += f"[{quoted(step)}]"
    return text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` is most likely a misspelling of."""
    # Matching is quadratic: nobody misspells a key into something this long.
    if len(word) > 100:
        return None
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


class Findings:
    """Problems of one document, in the order in which they were found."""

    def __init__(self, document_name: str) -> None:
        self.document_name = document_name
        self._found: list[tuple[FieldPath, Problem]] = []

    def report(
        self, path: FieldPath, code: Code, message: str, *, allowed: str | None = None, hint: str | None = None
    ) -> None:
        """Add a problem at a field of the document."""
        text = field_path_text(path)
        where = f"{self.document_name}: {text}" if text else self.document_name
        self._found.append((path, Problem(code, where, message, allowed, hint)))

    def report_elsewhere(self, path: FieldPath, problem: Problem) -> None:
        """Add a problem of another file that the field at ``path`` names."""
        hint = problem.hint or f"{field_path_text(path)} names it"
        self._found.append((path, Problem(problem.code, problem.where, problem.message, problem.allowed, hint)))

    def sound(self, path: FieldPath) -> bool:
        """Whether nothing is wrong at ``path``, below it or with something that contains it."""
        return not any(
            found[: len(path)] == path or (found and path[: len(found)] == found) for found, _ in self._found
        )

    def problems(self, sections: Sequence[str] = ()) -> tuple[Problem, ...]:
        """All problems so far, those of one section together, in the order of ``sections``."""
        order = {section: n for n, section in enumerate(sections)}

        def position(found: tuple[FieldPath, Problem]) -> int:
            path, _ = found
            return order.get(str(path[0]), len(order)) if path else -1

        return tuple(problem for _, problem in sorted(self._found, key=position))

    def __iter__(self) -> Iterator[tuple[FieldPath, Problem]]:
        return iter(self._found)


def value_at(document: Any, path: FieldPath) -> Any:
    """The value at ``path``; raises ``LookupError`` or ``TypeError`` where there is none."""
    for step in path:
        document = document[step]
    return document
