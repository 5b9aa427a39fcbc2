"""Names of the environment variables between this program, a template and the adapters inside AISBench."""

from __future__ import annotations

SCENARIO_VARIABLE = "AISBENCH_PREFIX_CACHE_SCENARIO"
MANIFEST_VARIABLE = "AISBENCH_PREFIX_CACHE_MANIFEST"
WORK_DIR_VARIABLE = "AISBENCH_PREFIX_CACHE_WORK_DIR"
"""The three that a template may read; the contract names them."""

HEARTBEAT_VARIABLE = "AISBENCH_PREFIX_CACHE_HEARTBEAT"
"""A file: its modification time is the last sign of life from the server, its text the number of finished requests."""

SUPERVISOR_VARIABLE = "AISBENCH_PREFIX_CACHE_SUPERVISOR"
"""A file that this program keeps locked: when the lock is gone, nothing may go on sending."""

RUN_MARK_VARIABLE = "AISBENCH_PREFIX_CACHE_RUN_MARK"
"""A random word that every process of one run inherits, by which stray ones are found."""
