"""Numbers at the edge of what a machine holds, at every place of a Scenario that has a number: an answer, or a refusal.

Each is planned (``inspect``), and no answer may take long, whatever was asked for.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.doubles.hostile import SETTINGS

from ais_bench_prefix_cache.datasets.kinds import kind_named
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError
from ais_bench_prefix_cache.scenario.loading import load_scenario

Document = dict[str, Any]
WORDS = ["0", "-1", "1", "65536", str(2**31 - 1), str(2**31), str(2**53), str(2**63 - 1), str(2**63), str(10**30)]
WORDS += [
    "5e-324",
    "0.1",
    "1.5",
    "1e308",
    "-1e308",
    "1e400",
    "NaN",
    "-Infinity",
    "true",
    '"1"',
    '""',
    "null",
    "[]",
    "{}",
]
SECONDS = 60
FIXED = {"mode": "fixed", "value": 50}
UNIFORM = {"mode": "uniform", "min": 50, "max": 90}
NORMAL = {"mode": "truncated_normal", "min": 40, "max": 99, "mean": 60, "std": 9}
RANGES = {"mode": "range", "ranges": [{"min": 50, "max": 90, "count": 4}]}


def documents() -> dict[str, tuple[str, Document]]:
    """Scenarios that between them have every number: the kind of their data set, and the document."""
    common: Document = {
        "run": {"run_id": "a", "output_dir": "./out", "random_seed": 5},
        "tokenizer": {"path": "./tokenizer", "block_size": 16},
        "corpus": {"path": "./corpus.jsonl"},
        "service": {
            "dp_size": 2,
            "kv_cache_blocks": 100,
            "engine_label_map": {"0": 0},
            "timeout_seconds": 5,
            "poll_interval_seconds": 1,
        },
        "validation": {"target_warning_pp": 1, "actual_warning_pp": 1, "slo": {"ttft_ms": 5, "tpot_ms": 5}},
        "aisbench": {
            "model": {"max_out_len": 5, "retry": 1, "batch_size": 3, "request_rate": 5.0},
            "load": {"senders": 1, "generators": 1},
        },
    }
    warmup = {"mode": "warmup", "target_hit_rate": 0.3, "seed_blocks": 1, "minimum_non_shared_length": 16}
    override = {"input_length": NORMAL, "corpus_selection": {"mode": "indices", "values": [1, 2]}}
    zipf = {"mode": "zipf", "exponent": 1.2}
    sections: dict[str, tuple[str, Document]] = {
        "fixed": (
            "text",
            {
                "requests": {"count": 4, "input_length": FIXED, "output_length": FIXED},
                "prefix_cache": {**warmup, "groups": {"count": 2, "overrides": {"group-1": override}}},
            },
        ),
        "explicit": (
            "text",
            {
                "requests": {
                    "count": 4,
                    "input_length": {"mode": "explicit", "values": [50, 60, 70, 80]},
                    "output_length": UNIFORM,
                },
                "prefix_cache": {**warmup, "mode": "cold", "groups": {"count": 2, "assignment": zipf}},
            },
        ),
        "ranges": (
            "text",
            {
                "requests": {"count": 4, "input_length": RANGES, "output_length": NORMAL},
                "prefix_cache": {
                    **warmup,
                    "mode": "cold",
                    "groups": {"count": 2, "assignment": {"mode": "weights", "weights": [1, 2]}},
                },
            },
        ),
        "conversations": (
            "conversation",
            {
                "conversation": {
                    "count": 3,
                    "turns": {**UNIFORM, "min": 2, "max": 3},
                    "system_prompts": {"count": 2, "assignment": zipf, "length": FIXED},
                    "first_message_length": NORMAL,
                    "message_length": FIXED,
                    "answer_length": UNIFORM,
                    "think_time_ms": UNIFORM,
                }
            },
        ),
        "images": (
            "mm",
            {
                "requests": {"count": 4, "input_length": FIXED, "output_length": FIXED},
                "multimodal": {"mmmu_parquet_dir": "./MMMU", "scenarios": ["single_1080p"]},
                "service": {**common["service"], "inference_url": "http://127.0.0.1:1/v1/chat/completions"},
            },
        ),
    }
    return {name: (kind, {**common, **section}) for name, (kind, section) in sections.items()}


def numbers(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers stand."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from numbers(value[key], (*place, key))
    elif isinstance(value, (int, float)):
        yield place


@SETTINGS
@given(data=st.data())
@pytest.mark.parametrize("name", documents())
def test_a_number_of_a_scenario(name: str, data: st.DataObject, tmp_path: Path) -> None:
    kind, document = documents()[name]
    (tmp_path / "tokenizer").mkdir(exist_ok=True)
    (tmp_path / "MMMU").mkdir(exist_ok=True)
    changed = copy.deepcopy(document)
    *way, last = data.draw(st.sampled_from(list(numbers(document))))
    place = changed
    for key in way:
        place = place[key]
    place[last] = "@"
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(changed).replace('"@"', data.draw(st.sampled_from(WORDS))))
    begin = time.monotonic()
    try:
        kind_named(kind).inspect(load_scenario(path, rules=kind_named(kind).scenario_rules, environment={}))
    except PrefixCacheError as error:
        assert error.problems
    assert time.monotonic() - begin < SECONDS
