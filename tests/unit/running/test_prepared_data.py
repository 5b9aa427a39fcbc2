"""Which data set a run sends: the newest that fits and can be sent; a new one only where none fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.doubles.scenarios import scenario_file

from ais_bench_prefix_cache.datasets.preparing import prepare_data_set
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.running.prepared_data import find_or_prepare, find_prepared
from ais_bench_prefix_cache.scenario.loading import load_scenario


@pytest.fixture
def scenario(tmp_path: Path, qwen3_tokenizer_dir: Path, gsm8k_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_bytes(gsm8k_path.read_bytes())
    return scenario_file(
        tmp_path, tokenizer=qwen3_tokenizer_dir, corpus={"path": "./rows.jsonl"}, requests={"count": 8}
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [{"timestamp": n, "input_length": 64, "output_length": 2, "hash_ids": [0, 1, 2, n + 3]} for n in range(3)]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_one_is_made_where_none_fits_and_only_then(scenario: Path) -> None:
    said: list[str] = []
    made = find_or_prepare(scenario, note=said.append)
    assert said == ["note: no data set fits; one is prepared now"]
    assert find_or_prepare(scenario, settings=["aisbench.model.batch_size=3"], note=said.append) == made
    other = find_or_prepare(scenario, settings=["requests.count=5"], note=said.append)
    assert said[1:] == ["note: no data set fits (the newest one differs in requests); one is prepared now"]
    assert other.document["run_id"] != made.document["run_id"]


def test_one_that_can_be_sent_comes_before_a_newer_one_that_cannot(scenario: Path, trace: Path) -> None:
    text = prepare_data_set(scenario)
    of_trace = prepare_data_set(scenario, trace=trace, mode="trace", trace_block_size=16)
    assert of_trace.paths.directory.name > text.paths.directory.name
    assert find_or_prepare(scenario).paths == text.paths


def test_one_that_cannot_be_sent_is_found_rather_than_replaced(scenario: Path, trace: Path) -> None:
    of_trace = prepare_data_set(scenario, trace=trace, mode="trace", trace_block_size=16)
    assert find_or_prepare(scenario).paths == of_trace.paths


def test_damaged_newer_ones_are_named(scenario: Path) -> None:
    older, newer = prepare_data_set(scenario), prepare_data_set(scenario)
    newer.paths.manifest.write_text("{")
    said: list[str] = []
    assert find_prepared(load_scenario(scenario, rules=None), said.append).paths == older.paths
    assert len(said) == 1
    assert said[0].startswith(f"note: passed over {newer.paths.manifest}: ")


def test_nothing_prepared_is_an_error_that_names_the_difference(scenario: Path, tmp_path: Path) -> None:
    prepare_data_set(scenario)
    with pytest.raises(ArtifactError) as caught:
        find_prepared(load_scenario(scenario, rules=None, settings=["requests.count=9"]))
    assert str(caught.value) == (
        f"{scenario}: no prepared data set of this Scenario lies beside {tmp_path / 'out'} (the newest one differs in "
        "requests)\n    Run prepare with this Scenario first."
    )


def test_a_scenario_of_conversations_sends_no_text(scenario: Path) -> None:
    text = prepare_data_set(scenario)
    document = json.loads(scenario.read_text())
    document["conversation"] = {"count": 2, "system_prompts": {"count": 0}}
    scenario.write_text(json.dumps(document))
    said: list[str] = []
    talk = find_or_prepare(scenario, note=said.append)
    assert talk.document["benchmark_mode"] == "conversation"
    assert said[-1] == "note: no data set fits; one is prepared now"
    assert find_or_prepare(scenario).paths == talk.paths
    del document["conversation"]
    scenario.write_text(json.dumps(document))
    assert find_or_prepare(scenario).paths == text.paths
