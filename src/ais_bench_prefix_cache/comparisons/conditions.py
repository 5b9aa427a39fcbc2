"""``--fail-if 'ttft_p99 > +5%'``: what a pipeline must not let through."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ais_bench_prefix_cache.analysis.metric import metric_named
from ais_bench_prefix_cache.comparisons.difference import Difference
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError, PrefixCacheError, Problem
from ais_bench_prefix_cache.foundation.findings import quoted

ConditionState = Literal["met", "not met", "not judged"]
_CONDITION = re.compile(r"\s*([\w.]+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*%\s*")
ALLOWED = "FIGURE > +N% or FIGURE < -N%, as in 'ttft_p99 > +5%' or 'requests_per_s < -5%'"


@dataclass(frozen=True)
class Condition:
    """``change`` is candidate / baseline - 1; ``above`` says which side of it is meant."""

    text: str
    metric: str
    above: bool
    change: float

    def state(self, differences: Sequence[Difference]) -> ConditionState:
        """Met where a whole interval lies beyond the bound; not judged where none could be and one has too few data."""
        own = [each for each in differences if each.metric == self.metric]
        if any(self._beyond(each) for each in own):
            return "met"
        return "not judged" if not own or any(each.low is None for each in own) else "not met"

    def _beyond(self, each: Difference) -> bool:
        if each.low is None or each.high is None:
            return False
        return each.low > self.change if self.above else each.high < self.change


def parse_conditions(texts: Sequence[str]) -> tuple[Condition, ...]:
    """Raises CalculationError with every text that is no condition."""
    conditions: list[Condition] = []
    problems: list[Problem] = []
    for text in texts:
        matched = _CONDITION.fullmatch(text)
        if matched is None:
            problems.append(Problem(Code.WRONG_OPTION, "--fail-if", f"{quoted(text)} is no condition", ALLOWED))
            continue
        try:
            metric = metric_named(matched[1])
        except PrefixCacheError as error:
            problems.extend(error.problems)
            continue
        conditions.append(Condition(text.strip(), metric.name, matched[2] == ">", float(matched[3]) / 100))
    if problems:
        raise CalculationError(problems)
    return tuple(conditions)
