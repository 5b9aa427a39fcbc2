"""Collects everything that is wrong with a data set, without drowning in it."""

from __future__ import annotations

from collections import Counter

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Problem

SHOWN_PER_CODE = 20
SHOWN_VALUE_CHARACTERS = 80


class Findings:
    """Problems in the order in which they were found; of each code the first twenty, then only their number."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._counts: Counter[Code] = Counter()

    def add(self, code: Code, where: str, message: str, *, allowed: str | None = None, hint: str | None = None) -> None:
        """Note one problem."""
        self.extend([Problem(code, where, message, allowed, hint)])

    def extend(self, problems: list[Problem]) -> None:
        """Note problems that were found elsewhere."""
        for problem in problems:
            self._counts[problem.code] += 1
            if self._counts[problem.code] <= SHOWN_PER_CODE:
                self._problems.append(problem)

    @property
    def count(self) -> int:
        """How many problems were found, those that are not shown too."""
        return self._counts.total()

    def __bool__(self) -> bool:
        return bool(self._problems)

    def raise_if_any(self) -> None:
        """Raise one :class:`ArtifactError` with all problems."""
        if not self._problems:
            return
        rest = [
            Problem(code, "", f"{count - SHOWN_PER_CODE} more problems of the kind {code}")
            for code, count in self._counts.items()
            if count > SHOWN_PER_CODE
        ]
        raise ArtifactError([*self._problems, *rest])


def shown(value: object) -> str:
    """``value`` for a message, cut to a length that a terminal bears."""
    text = repr(value)
    return text if len(text) <= SHOWN_VALUE_CHARACTERS else f"{text[: SHOWN_VALUE_CHARACTERS - 1]}…"
