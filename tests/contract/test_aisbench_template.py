"""The template that one may copy is the one that the program uses."""

from __future__ import annotations

from pathlib import Path

from ais_bench_prefix_cache.aisbench.config_rendering import TEMPLATES


def test_the_example_template_is_the_built_in_one(project_root: Path) -> None:
    assert (project_root / "config_examples" / "prefix_cache_perf.py").read_bytes() == (
        TEMPLATES / "prefix_cache_perf.py"
    ).read_bytes()
