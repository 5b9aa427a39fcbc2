"""Whatever a file holds, the answer is a result or an error of our own tree. ``make fuzz EXAMPLES=20000`` goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ais_bench_prefix_cache.calculators.model_file import read_model_config
from ais_bench_prefix_cache.counters.ranks import read_snapshot
from ais_bench_prefix_cache.exact_text.corpus import load_corpus
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError
from ais_bench_prefix_cache.scenario.loading import load_scenario

EXAMPLES = int(os.environ.get("AISBENCH_PREFIX_CACHE_FUZZ_EXAMPLES", "60"))
SETTINGS = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NUMBERS = st.integers(-(2**70), 2**70) | st.floats()
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
SECTIONS = st.sampled_from(
    ["run", "tokenizer", "corpus", "requests", "prefix_cache", "service", "aisbench", "multimodal"]
)
TEXTS = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode())


@SETTINGS
@given(content=TEXTS | st.dictionaries(SECTIONS, JSON, max_size=4).map(lambda value: json.dumps(value).encode()))
def test_scenarios(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    path.write_bytes(content)
    try:
        load_scenario(path, environment={})
    except PrefixCacheError as error:
        assert error.problems


PROM = [path.read_bytes() for path in sorted((Path(__file__).parents[1] / "data" / "prom").glob("[012]*"))]


@SETTINGS
@given(data=st.data())
def test_metric_texts(data: st.DataObject) -> None:
    content = data.draw(st.sampled_from(PROM))
    at = data.draw(st.integers(0, len(content)))
    text = (content[:at] + data.draw(st.binary(max_size=30)) + content[at + data.draw(st.integers(0, 30)) :]).decode(
        "utf-8", "replace"
    )
    try:
        read_snapshot([text], dp_size=data.draw(st.integers(1, 3)))
    except PrefixCacheError as error:
        assert error.problems


@SETTINGS
@given(content=TEXTS)
@pytest.mark.parametrize("kind", ["corpus", "model config"])
def test_corpora_and_model_configurations(kind: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    try:
        load_corpus(path, "question") if kind == "corpus" else read_model_config(path)
    except PrefixCacheError as error:
        assert error.problems
