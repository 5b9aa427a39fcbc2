"""Whatever a Scenario file holds, loading it succeeds or raises ScenarioError; and the schema is what decides."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.validators import extend

from ais_bench_prefix_cache.foundation.errors import ArtifactError, ScenarioError
from ais_bench_prefix_cache.scenario.effective import service_from_effective, validation_from_effective
from ais_bench_prefix_cache.scenario.findings import FieldFindings
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.schema import scenario_schema
from ais_bench_prefix_cache.scenario.schema_problems import report_schema_problems

CONFIG_EXAMPLES = Path(__file__).resolve().parents[2] / "config_examples"
EXAMPLES = sorted(path.name for path in CONFIG_EXAMPLES.glob("*.json"))
MODES = ["fixed", "explicit", "range", "uniform", "truncated_normal", "csv", "zipf", "weights", "random"]
MODES += ["indices", "question_sha256", "mixed"]
STRANGE_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 16, 100, 2**31 - 1, 2**31, 2**63 - 1, -(2**63), 2**63, 10**400, 0.5, 1.0, -0.0,
    5e-324, 1e308, "", "x", ".", "..", "/", "a/b", "\x00", "\n", "\ud800", "é" * 200, "x" * 5000, "group-01", "http://",
    "http://[::1", "http://h:99999/", "ftp://h/", "{question}", [], [0], [[]], [None], ["x"], [1, 2, 3], [1.5, -1],
    {}, {"": 0}, {"mode": "fixed"}, {"mode": []}, {"mode": "csv", "path": "."}, {"mode": "csv", "path": "missing.csv"},
    {"mode": "range", "ranges": [{}]}, {"mode": "zipf", "exponent": 1e-300}, {"group-0": None}, {"group-99999": {}},
    {"group-0": {"input_length": {"mode": "explicit", "values": [64]}}}, {"\ud800": "\ud800"}, {"a.b": {"c": [1]}},
]  # fmt: skip
STRANGE_KEYS = ["", "mode", "value", "values", "min", "max", "mean", "std", "path", "count", "group-0", "group-01"]
STRANGE_KEYS += ["overrides", "input_length", "selection", "Run", "api-key", "\ud800", "a\nb", "é", "x" * 3000]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in children:
        found += places(child, (*path, step))
    return found


def mutated(document: Any, choose: random.Random) -> Any:
    """The document after one to three random edits: delete, replace, insert, rename or duplicate."""
    document = copy.deepcopy(document)
    for _ in range(choose.choice([1, 1, 1, 2, 3])):
        *parent_path, step = choose.choice(places({"": document})[1:])
        holder = {"": document}
        parent: Any = holder
        for key in parent_path:
            parent = parent[key]
        action = choose.choice(["delete", "replace", "insert", "rename", "mode"])
        target = parent[step]
        if action == "insert" and isinstance(target, dict):
            target[choose.choice(STRANGE_KEYS)] = copy.deepcopy(choose.choice(STRANGE_VALUES))
        elif action == "insert" and isinstance(target, list):
            target.insert(choose.randint(0, len(target)), copy.deepcopy(choose.choice(STRANGE_VALUES)))
        elif action == "mode" and isinstance(target, dict):
            target["mode"] = choose.choice(MODES)
        elif action == "delete" and parent is not holder:
            del parent[step]
        elif action == "rename" and isinstance(parent, dict) and parent is not holder:
            parent[choose.choice(STRANGE_KEYS)] = parent.pop(step)
        else:
            of_its_kind = [value for value in STRANGE_VALUES if type(value) is type(target)]
            parent[step] = copy.deepcopy(choose.choice(choose.choice([STRANGE_VALUES, of_its_kind or STRANGE_VALUES])))
        document = holder[""]
    return document


def seed_documents() -> list[Any]:
    documents = [json.loads((CONFIG_EXAMPLES / name).read_text(encoding="utf-8")) for name in EXAMPLES]
    weights = {"mode": "weights", "weights": [1, 0, 2.5]}
    overrides = {"group-2": {"input_length": {"mode": "range", "ranges": [{"min": 64, "max": 99, "count": 71}]}}}
    documents.append({"prefix_cache": {"groups": {"count": 3, "assignment": weights, "overrides": overrides}}})
    documents.append(
        {
            "corpus": {"selection": {"mode": "mixed", "indices": [0, 1], "question_sha256": ["aB" * 32]}},
            "requests": {"count": 3, "input_length": {"mode": "explicit", "values": [64, 32, 16]}},
            "service": {"metrics_url": ["http://a/m", "http://b/m"], "engine_label_map": {"0": 1, "1": 0}},
            "aisbench": {"extra_args": {"--a": [1, "x"], "-b": True}},
            "multimodal": {"mmmu_parquet_dir": "../MMMU", "scenarios": ["multi_720p_5"]},
        }
    )
    return documents


@pytest.fixture(scope="module")
def scenario_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mutations")
    (directory / "lengths.csv").write_bytes((CONFIG_EXAMPLES / "lengths.csv").read_bytes())
    return directory


def load(directory: Path, data: bytes) -> str:
    file = directory / "scenario.json"
    file.write_bytes(data)
    try:
        scenario = load_scenario(file, environment={})
    except ScenarioError as error:
        str(error).encode("utf-8")
        return "refused"
    json.dumps(scenario.effective, allow_nan=False).encode("utf-8")
    return "loaded"


def test_a_thousand_mutated_scenarios_load_or_are_refused(scenario_directory: Path) -> None:
    choose = random.Random(20260825)
    seeds = seed_documents()
    outcomes = [
        load(scenario_directory, json.dumps(mutated(choose.choice(seeds), choose)).encode("ascii")) for _ in range(1000)
    ]
    assert outcomes.count("refused") > 300
    assert outcomes.count("loaded") > 100


def test_damaged_bytes_load_or_are_refused(scenario_directory: Path) -> None:
    choose = random.Random(4)
    original = (CONFIG_EXAMPLES / "scenario.example.json").read_bytes()
    outcomes = []
    for _ in range(500):
        data = bytearray(original)
        for _ in range(choose.randint(1, 3)):
            place = choose.randrange(len(data))
            edit = choose.choice(["flip", "cut", "drop", "repeat", "insert"])
            if edit == "flip":
                data[place] ^= 1 << choose.randrange(8)
            elif edit == "cut" and place > 10:
                del data[place:]
            elif edit == "drop":
                del data[place : place + choose.randint(1, 40)]
            elif edit == "repeat":
                data[place:place] = data[place : place + 80]
            else:
                data[place:place] = choose.choice([b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 5000, b"\0"])
        outcomes.append(load(scenario_directory, bytes(data)))
    assert outcomes.count("refused") > 300


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["run", "requests", "prefix_cache", "groups", "mode", "value", "service", "count"])
                | st.text(max_size=6),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=200, deadline=None)
def test_any_json_value_loads_or_is_refused(scenario_directory: Path, value: Any) -> None:
    assert load(scenario_directory, json.dumps(value).encode("ascii")) in ("loaded", "refused")


def test_our_reading_of_the_schema_agrees_with_jsonschema() -> None:
    """jsonschema itself is the judge, told only that 1.0 is not an integer and that integers have 64 bits."""

    def is_integer(_: Any, value: Any) -> bool:
        return type(value) is int and -(2**63) <= value < 2**63

    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", is_integer).redefine(
        "number", lambda _, value: type(value) is float or is_integer(_, value)
    )
    judge = extend(Draft202012Validator, type_checker=checker)(scenario_schema())
    choose = random.Random(7)
    seeds = seed_documents()
    verdicts = {True: 0, False: 0}
    for _ in range(1000):
        document = mutated(choose.choice(seeds), choose)
        findings = FieldFindings("scenario.json")
        report_schema_problems(document, findings)
        verdict = judge.is_valid(document)
        assert (findings.problems() == ()) == verdict, document
        verdicts[verdict] += 1
    assert min(verdicts.values()) > 100


def test_damaged_effective_configurations_are_rebuilt_or_refused(scenario_directory: Path) -> None:
    file = scenario_directory / "whole.json"
    file.write_text('{"service": {"engine_label_map": {"a": 1}, "metrics_url": ["http://a/m", "http://b/m"]}}')
    effective = load_scenario(file, environment={}).effective
    sections = {name: effective[name] for name in ("service", "validation")}
    choose = random.Random(11)
    outcomes = []
    for _ in range(1000):
        damaged = mutated(sections, choose)
        try:
            service_from_effective(damaged)
            validation_from_effective(damaged)
            outcomes.append("rebuilt")
        except ArtifactError as error:
            str(error).encode("utf-8")
            outcomes.append("refused")
    assert outcomes.count("refused") > 300
    assert outcomes.count("rebuilt") > 50
