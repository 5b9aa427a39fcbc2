"""Prefix-cache benchmarks for LLM servers whose hit rate is known, to the token, before they run.

The functions and records of ``__all__`` are the public Python API (docs/python.md). They are imported when they are
first used: ``--help`` and lower rooms need none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ais_bench_prefix_cache.api.data_sets import DataSet as DataSet
    from ais_bench_prefix_cache.api.data_sets import load_data_set as load_data_set
    from ais_bench_prefix_cache.api.data_sets import prepare as prepare
    from ais_bench_prefix_cache.api.runs import Analysis as Analysis
    from ais_bench_prefix_cache.api.runs import Run as Run
    from ais_bench_prefix_cache.api.runs import analyze as analyze
    from ais_bench_prefix_cache.api.runs import load_run as load_run
    from ais_bench_prefix_cache.api.runs import run as run
    from ais_bench_prefix_cache.api.scenarios import PlannedDataSet as PlannedDataSet
    from ais_bench_prefix_cache.api.scenarios import load_scenario as load_scenario
    from ais_bench_prefix_cache.api.scenarios import plan as plan
    from ais_bench_prefix_cache.comparisons.comparing import Comparison as Comparison
    from ais_bench_prefix_cache.comparisons.comparing import compare as compare
    from ais_bench_prefix_cache.foundation.errors import PrefixCacheError as PrefixCacheError
    from ais_bench_prefix_cache.scenario.model import Scenario as Scenario
    from ais_bench_prefix_cache.sweeps.results import Sweep as Sweep
    from ais_bench_prefix_cache.sweeps.results import read_sweep as read_sweep
    from ais_bench_prefix_cache.sweeps.sweep_sequence import resume_sweep as resume_sweep
    from ais_bench_prefix_cache.sweeps.sweep_sequence import sweep as sweep

__version__ = "0.2.0"

_HOMES = {
    "api.scenarios": ("PlannedDataSet", "load_scenario", "plan"),
    "api.data_sets": ("DataSet", "load_data_set", "prepare"),
    "api.runs": ("Analysis", "Run", "analyze", "load_run", "run"),
    "sweeps.sweep_sequence": ("resume_sweep", "sweep"),
    "sweeps.results": ("Sweep", "read_sweep"),
    "comparisons.comparing": ("Comparison", "compare"),
    "foundation.errors": ("PrefixCacheError",),
    "scenario.model": ("Scenario",),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
