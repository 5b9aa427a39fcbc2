"""Collecting every problem of a Scenario with its place, so that all of them are reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem
from ais_bench_prefix_cache.foundation.findings import LONGEST_QUOTED, Findings, quoted
from ais_bench_prefix_cache.foundation.strict_json import FieldPath

SECRET_FIELD: FieldPath = ("service", "api_key")

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_$-]+")


def field_path_text(path: FieldPath) -> str:
    """``requests.input_length.values[3]``; keys that are not plain words are quoted in brackets."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step) and len(step) <= LONGEST_QUOTED:
            text += f".{step}" if text else step
        else:
            text += f"[{quoted(step)}]"
    return text


class FieldFindings:
    """Problems of one document in the order in which they were found; ``from_options`` were given by ``--set``."""

    def __init__(self, document_name: str, from_options: Sequence[FieldPath] = ()) -> None:
        self.document_name = document_name
        self.from_options = from_options
        self._found: list[tuple[FieldPath, Problem]] = []

    def report(
        self, path: FieldPath, code: Code, message: str, *, allowed: str | None = None, hint: str | None = None
    ) -> None:
        """Add a problem at a field of the document."""
        text = field_path_text(path)
        name = "--set" if any(path[: len(given)] == given for given in self.from_options) else self.document_name
        where = f"{name}: {text}" if text else name
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

        return Findings(problem for _, problem in sorted(self._found, key=position)).problems

    def __iter__(self) -> Iterator[tuple[FieldPath, Problem]]:
        return iter(self._found)


def value_at(document: Any, path: FieldPath) -> Any:
    """The value at ``path``; raises ``LookupError`` or ``TypeError`` where there is none."""
    for step in path:
        document = document[step]
    return document
