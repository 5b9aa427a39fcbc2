"""AISBench's performance figures without those that were not measured."""

from __future__ import annotations

from typing import Any

from ais_bench.benchmark.calculators import DefaultPerfMetricCalculator

STREAM_ONLY_METRICS = ("TTFT", "TPOT", "ITL")
"""What only the moments of single tokens can tell."""


class MeasuredMetricCalculator(DefaultPerfMetricCalculator):  # type: ignore[misc]
    """AISBench's calculator, except that a figure that was not measured is left out.

    Without streaming the whole answer arrives at once: AISBench would show its arrival as TTFT. With one output token
    there is no time *between* tokens: AISBench would count it as a TPOT of 0.
    """

    def __init__(self, *, stream: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self._stream = stream

    def convert_result(self, result: dict[str, Any]) -> dict[str, Any]:
        figures: dict[str, Any] = super().convert_result(result)
        if "TPOT" in figures:
            figures["TPOT"] = [value for value in figures["TPOT"] if value > 0]
        for name in STREAM_ONLY_METRICS:
            if not self._stream or not figures.get(name):
                figures.pop(name, None)
        return figures
