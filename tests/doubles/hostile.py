"""Hypothesis strategies of the fuzz tests, and how long they go on."""

from __future__ import annotations

import json
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = os.environ.get("AISBENCH_PREFIX_CACHE_FUZZ_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # The short run of `make test` is the same each time; `make fuzz` looks for what is new.
    derandomize=EXAMPLES is None,
)

NUMBERS = st.integers(-(2**70), 2**70) | st.floats()
NASTY = st.sampled_from(
    ["", "..", "../x", "/dev/zero", "a/b", "nul\0", "\u2028", "\x1b[31m", "\ud800", "NaN", "2.0", "group-0", "group-01"]
)
SCALARS = st.none() | st.booleans() | NUMBERS | NASTY | st.text(max_size=12)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
DEEP = st.integers(1, 3000).map(lambda depth: b"[" * depth + b"]" * depth) | st.just(b'{"a":' * 100_000)
TEXTS = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()) | DEEP
