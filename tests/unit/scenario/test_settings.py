"""Fields on the command line are checked like those of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.settings import apply_settings, parse_settings


def scenario_file(directory: Path, document: dict[str, Any]) -> Path:
    path = directory / "s.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [("a.b=1", 1), ("a.b=0.5", 0.5), ("a.b=null", None), ('a.b={"mode": "random"}', {"mode": "random"})],
)
def test_a_value_is_json(text: str, value: Any) -> None:
    (setting,) = parse_settings([text])
    assert (setting.path, setting.value) == (("a", "b"), value)


def test_what_is_no_json_is_a_text() -> None:
    assert [setting.value for setting in parse_settings(["a=http://h:1/v1/completions", "a=x=y", "a=", "a=NaN"])] == [
        "http://h:1/v1/completions",
        "x=y",
        "",
        "NaN",
    ]


def test_sections_come_into_being() -> None:
    document: dict[str, Any] = {"run": {"run_id": "a"}, "tokenizer": 5}
    apply_settings(document, parse_settings(["run.random_seed=7", "tokenizer.path=/t", "service.dp_size=2"]))
    assert document == {
        "run": {"run_id": "a", "random_seed": 7},
        "tokenizer": {"path": "/t"},
        "service": {"dp_size": 2},
    }


def test_the_effective_configuration_has_them_and_the_file_stays(tmp_path: Path) -> None:
    path = scenario_file(tmp_path, {"aisbench": {"model": {"batch_size": 4}}})
    before = path.read_bytes()
    scenario = load_scenario(path, environment={}, settings=["aisbench.model.batch_size=16", "requests.count=7"])
    assert (scenario.aisbench.model.batch_size, scenario.requests.count) == (16, 7)
    assert scenario.effective["requests"]["count"] == 7
    assert path.read_bytes() == before


def test_problems_say_that_the_field_was_given_by_option(tmp_path: Path) -> None:
    path = scenario_file(tmp_path, {"requests": {"count": 0}})
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, environment={}, settings=["aisbench.model.batch_size=0", "aisbench.model.batchsize=1"])
    assert sorted(problem.where for problem in caught.value.problems) == [
        "--set: aisbench.model.batch_size",
        "--set: aisbench.model.batchsize",
        "s.json: requests.count",
    ]


@pytest.mark.parametrize("text", ["requests.count", "=1", "requests..count=1", "."])
def test_what_is_no_setting(text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_settings([text])
    assert (
        str(caught.value) == f"--set: {text!r} is no field and value (allowed: FIELD=VALUE, as in requests.count=200)"
    )


def test_a_secret_has_no_place_on_a_command_line() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_settings(["service.api_key=sk-1"])
    assert "sk-1" not in str(caught.value)
    assert "AISBENCH_PREFIX_CACHE_API_KEY" in str(caught.value)
