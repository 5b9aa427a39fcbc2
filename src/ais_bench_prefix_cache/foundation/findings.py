"""Collects everything that is wrong, without drowning in it, and words values for messages."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, PrefixCacheError, Problem

MOST_PROBLEMS = 20
"""Of each code so many problems are shown; of the others only the number is said."""

LONGEST_SHOWN = 80
LONGEST_QUOTED = 60


class Findings:
    """Problems in the order in which they were found; of each code the first twenty, then only their number."""

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        self._problems: list[Problem] = []
        self._counts: Counter[Code] = Counter()
        self.extend(problems)

    def add(self, code: Code, where: str, message: str, *, allowed: str | None = None, hint: str | None = None) -> None:
        """Note one problem."""
        self.extend([Problem(code, where, message, allowed, hint)])

    def extend(self, problems: Iterable[Problem]) -> None:
        """Note problems that were found elsewhere."""
        for problem in problems:
            self._counts[problem.code] += 1
            if self._counts[problem.code] <= MOST_PROBLEMS:
                self._problems.append(problem)

    @property
    def count(self) -> int:
        """How many problems were found, those that are not shown too."""
        return self._counts.total()

    def __bool__(self) -> bool:
        return bool(self._problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What was found, and at the end how much more of each code."""
        rest = [
            Problem(code, "", f"{count - MOST_PROBLEMS} more problems of the kind {code}")
            for code, count in self._counts.items()
            if count > MOST_PROBLEMS
        ]
        return (*self._problems, *rest)

    def raise_if_any(self, error: type[PrefixCacheError] = ArtifactError) -> None:
        """Raise one ``error`` with all problems."""
        if self._problems:
            raise error(self.problems)


def shown(value: object) -> str:
    """``value`` as Python writes it, cut to a length that a terminal bears."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def quoted(text: str) -> str:
    """The text as a JSON string, short enough for a sentence and printable everywhere."""
    cut = text if len(text) <= LONGEST_QUOTED else text[:LONGEST_QUOTED] + "…"
    try:
        cut.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(cut)
    return json.dumps(cut, ensure_ascii=False)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` is most likely a misspelling of."""
    # Matching is quadratic: nobody misspells a key into something this long.
    if len(word) > 100:
        return None
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
