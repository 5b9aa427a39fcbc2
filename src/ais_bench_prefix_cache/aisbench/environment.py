"""Names of the environment variables between this program, a template and the adapters inside AISBench."""

from __future__ import annotations

SCENARIO_VARIABLE = "AISBENCH_PREFIX_CACHE_SCENARIO"
MANIFEST_VARIABLE = "AISBENCH_PREFIX_CACHE_MANIFEST"
WORK_DIR_VARIABLE = "AISBENCH_PREFIX_CACHE_WORK_DIR"
"""The three that a template may read; the contract names them."""

CONFIG_VARIABLE = "AISBENCH_PREFIX_CACHE_CONFIG"
"""A file that a template may read, too: the effective configuration of this run as JSON, without the API key."""

SENDING_VARIABLE = "AISBENCH_PREFIX_CACHE_SENDING"
"""A file for each sender, as in ``PATH``: its
:class:`~ais_bench_prefix_cache.aisbench.sending_settings.SendingSettings`. A sender keeps its own only."""

RUN_MARK_VARIABLE = "AISBENCH_PREFIX_CACHE_RUN_MARK"
"""A random word that every process of one run inherits, by which stray ones are found."""
