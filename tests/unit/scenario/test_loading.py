"""What a loaded Scenario holds: defaults, paths, lengths from CSV, the effective configuration and the way back."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.foundation.errors import ArtifactError, ScenarioError
from ais_bench_prefix_cache.scenario.effective import (
    service_from_effective,
    validation_from_effective,
)
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import (
    CorpusSelection,
    CsvLengths,
    ExplicitLengths,
    FixedLength,
    GroupAssignment,
    LengthRange,
    RangeLengths,
    Scenario,
    ScenarioRules,
    TruncatedNormalLength,
    UniformLength,
)


def load(directory: Path, document: Any, **options: Any) -> Scenario:
    path = directory / "scenario.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return load_scenario(path, **{"environment": {}, **options})


def test_an_empty_object_is_the_example_of_the_contract(tmp_path: Path) -> None:
    scenario = load(tmp_path, {})
    assert scenario.effective == {
        "schema_version": "1.0",
        "run": {
            "run_id": "gsm8k-prefix-cache-60",
            "random_seed": 42,
            "output_dir": f"{tmp_path}/outputs/gsm8k-prefix-cache-60",
            "overwrite": False,
        },
        "tokenizer": {"path": "/path/to/tokenizer", "block_size": 16, "revision": None, "trust_remote_code": False},
        "corpus": {"path": f"{tmp_path}/GSM8K.jsonl", "field": "question", "selection": {"mode": "random"}},
        "requests": {
            "count": 100,
            "input_length": {"mode": "fixed", "value": 1024},
            "output_length": {"mode": "fixed", "value": 32},
        },
        "output": {"output_key": None},
        "prefix_cache": {
            "mode": "warmup",
            "target_hit_rate": 0.6,
            "seed_blocks": 1,
            "minimum_non_shared_length": 16,
            "groups": {"count": 1, "assignment": {"mode": "uniform"}, "overrides": {}},
            "order": {"strategy": "interleave"},
        },
        "service": {
            "inference_url": "http://127.0.0.1:8000/v1/completions",
            "metrics_url": "http://127.0.0.1:8000/metrics",
            "reset_url": "http://127.0.0.1:8000/reset_prefix_cache",
            "model": "model-name",
            "dp_size": 2,
            "assume_empty_cache": False,
            "engine_label_map": {},
            "timeout_seconds": 30,
            "api_key_configured": False,
            "poll_interval_seconds": 5.0,
            "engine": "auto",
            "hybrid_warmup": False,
            "kv_cache_blocks": None,
        },
        "validation": {"target_warning_pp": 1.0, "actual_warning_pp": 5.0},
        "aisbench": {
            "config": None,
            "work_dir": f"{tmp_path}/outputs/default",
            "extra_args": {"--num-warmups": 0},
            "dataset": {
                "abbr": None,
                "input_columns": ["question", "max_out_len"],
                "output_column": "answer",
                "prompt_template": "{question}",
                "pred_role": "BOT",
            },
            "model": {
                "abbr": None,
                "attr": "service",
                "stream": True,
                "max_out_len": 1,
                "retry": 2,
                "batch_size": 1,
                "generation_kwargs": {"temperature": 0, "ignore_eos": True},
            },
        },
    }
    assert scenario.multimodal is None
    assert scenario.sha256 == hashlib.sha256(b"{}").hexdigest()
    assert scenario.path == tmp_path / "scenario.json"
    assert scenario.seed_tokens == 16


def test_the_full_example_says_the_same_as_the_empty_object(tmp_path: Path, project_root: Path) -> None:
    example = json.loads((project_root / "config_examples/scenario.example.json").read_text(encoding="utf-8"))
    assert load(tmp_path, example).effective == load(tmp_path, {}).effective


def test_empty_sections_are_filled(tmp_path: Path) -> None:
    sections = ["run", "tokenizer", "corpus", "requests", "output", "prefix_cache", "service", "validation", "aisbench"]
    document: dict[str, Any] = {section: {} for section in sections}
    document["requests"] = {"input_length": {}, "output_length": {"mode": "fixed"}}
    document["corpus"] = {"selection": {}}
    document["prefix_cache"] = {"groups": {"assignment": {}, "overrides": {}}, "order": {}}
    document["aisbench"] = {"dataset": {}, "model": {}}
    assert load(tmp_path, document).effective == load(tmp_path, {}).effective
    assert load(tmp_path, {"multimodal": {}}).effective["multimodal"] == {
        "mmmu_parquet_dir": None,
        "scenarios": ["single_1080p"],
    }


@pytest.mark.parametrize(
    ("rule", "expected", "effective"),
    [
        ({"value": 64}, FixedLength(64), {"mode": "fixed", "value": 64}),
        (
            {"mode": "explicit", "values": [64, 32, 16, 2**31 - 1]},
            ExplicitLengths((64, 32, 16, 2**31 - 1)),
            {"mode": "explicit", "values": [64, 32, 16, 2**31 - 1]},
        ),
        (
            {"mode": "range", "ranges": [{"min": 16, "max": 16, "count": 3}, {"min": 50, "max": 60, "count": 1}]},
            RangeLengths((LengthRange(16, 16, 3), LengthRange(50, 60, 1))),
            {"mode": "range", "ranges": [{"min": 16, "max": 16, "count": 3}, {"min": 50, "max": 60, "count": 1}]},
        ),
        (
            {"mode": "truncated_normal", "min": 100, "max": 401},
            TruncatedNormalLength(100, 401, 250.5, 301 / 6),
            {"mode": "truncated_normal", "min": 100, "max": 401, "mean": 250.5, "std": 301 / 6},
        ),
        (
            {"mode": "truncated_normal", "min": 100, "max": 101, "mean": -1e15},
            TruncatedNormalLength(100, 101, -1e15, 1.0),
            {"mode": "truncated_normal", "min": 100, "max": 101, "mean": -1e15, "std": 1.0},
        ),
    ],
)
def test_length_rules(tmp_path: Path, rule: Any, expected: object, effective: Any) -> None:
    scenario = load(tmp_path, {"requests": {"count": 4, "input_length": rule}})
    assert scenario.requests.input_length == expected
    assert scenario.effective["requests"]["input_length"] == effective


def test_uniform_output_lengths(tmp_path: Path) -> None:
    scenario = load(tmp_path, {"requests": {"output_length": {"mode": "uniform", "min": 1, "max": 1}}})
    assert scenario.requests.output_length == UniformLength(1, 1)


@pytest.mark.parametrize(
    ("rule", "expected", "effective"),
    [
        ({"mode": "indices", "values": [3, 0, 3]}, CorpusSelection("indices", indices=(3, 0, 3)), [3, 0, 3]),
        ({"mode": "indices", "indices": [3]}, CorpusSelection("indices", indices=(3,)), [3]),
        (
            {"mode": "question_sha256", "question_sha256": ["AB" * 32]},
            CorpusSelection("question_sha256", question_sha256=("ab" * 32,)),
            ["ab" * 32],
        ),
    ],
)
def test_corpus_selection(tmp_path: Path, rule: Any, expected: object, effective: Any) -> None:
    scenario = load(tmp_path, {"corpus": {"selection": rule}})
    assert scenario.corpus.selection == expected
    assert scenario.effective["corpus"]["selection"] == {"mode": rule["mode"], "values": effective}


def test_groups_and_overrides(tmp_path: Path) -> None:
    overrides = {
        "group-10": {"input_length": {"mode": "explicit", "values": [64] * 9}},
        "group-2": {"output_length": {"mode": "range"} | {"mode": "fixed", "value": 7}},
        "group-0": {"corpus_selection": {"mode": "mixed", "indices": [1]}},
    }
    # 100 requests over 11 groups: one group of 10, then ten of 9
    scenario = load(tmp_path, {"prefix_cache": {"groups": {"count": 11, "overrides": overrides}}})
    loaded = scenario.prefix_cache.groups.overrides
    assert list(loaded) == [0, 2, 10]
    assert loaded[0].corpus_selection == CorpusSelection("mixed", indices=(1,))
    assert loaded[2].output_length == FixedLength(7)
    assert loaded[10].input_length == ExplicitLengths((64,) * 9)
    assert list(scenario.effective["prefix_cache"]["groups"]["overrides"]) == ["group-0", "group-2", "group-10"]


def test_a_global_rule_that_no_group_uses_needs_no_room(tmp_path: Path) -> None:
    document = {
        "tokenizer": {"block_size": 2048},
        "prefix_cache": {"groups": {"count": 1, "overrides": {"group-0": {"input_length": {"value": 4096}}}}},
    }
    assert load(tmp_path, document).prefix_cache.minimum_non_shared_length == 2048


def test_weights_and_whole_numbers_for_rates(tmp_path: Path) -> None:
    assignment = {"mode": "weights", "weights": [3, 0]}
    document = {"prefix_cache": {"target_hit_rate": 1, "groups": {"count": 2, "assignment": assignment}}}
    scenario = load(tmp_path, document)
    assert scenario.prefix_cache.groups.assignment == GroupAssignment("weights", weights=(3.0, 0.0))
    assert scenario.prefix_cache.target_hit_rate == 1.0
    for seed in (-(2**63), 2**63 - 1, 0):
        assert load(tmp_path, {"run": {"random_seed": seed}}).run.random_seed == seed


def test_image_data_sets_know_no_blocks(tmp_path: Path) -> None:
    document = {
        "tokenizer": {"block_size": 128},
        "requests": {"input_length": {"value": 30}},
        "prefix_cache": {"minimum_non_shared_length": 16},
        "service": {"inference_url": "http://127.0.0.1:8000/v1/chat/completions"},
        "multimodal": {"mmmu_parquet_dir": "./MMMU"},
    }
    with pytest.raises(ScenarioError):
        load(tmp_path, document)
    assert load(tmp_path, document, rules="images").requests.input_length == FixedLength(30)
    assert load(tmp_path, document, rules=None).requests.input_length == FixedLength(30)


def test_image_data_sets_say_everything_that_they_lack(tmp_path: Path) -> None:
    document = {
        "requests": {"input_length": {"mode": "truncated_normal", "min": 30, "max": 40}},
        "service": {"inference_url": ["http://a/v1/chat/completions/", "http://b/v1/completions"], "dp_size": 2},
    }
    with pytest.raises(ScenarioError) as refusal:
        load(tmp_path, document, rules="images")
    assert [str(problem) for problem in refusal.value.problems] == [
        'scenario.json: requests.input_length.mode: requests with images have a fixed length, not "truncated_normal" '
        '(allowed: "fixed")',
        "scenario.json: service.inference_url[1]: images are sent to chat completions "
        '(allowed: a URL that ends with "/v1/chat/completions")',
        "scenario.json: multimodal.mmmu_parquet_dir: --mode mm needs it "
        "(allowed: the directory of the MMMU Parquet files)",
    ]


def test_paths_start_at_the_scenario_file_wherever_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "qwen").mkdir(parents=True)
    (project / "lengths.csv").write_text("output_tokens\n" + "5\n" * 100)
    document = {
        "run": {"output_dir": "../out"},
        "tokenizer": {"path": "qwen"},
        "corpus": {"path": "data/../corpus.jsonl"},
        "requests": {"output_length": {"mode": "csv", "path": "lengths.csv"}},
        "aisbench": {"config": "perf.py", "work_dir": "/absolute/dir"},
        "multimodal": {"mmmu_parquet_dir": "./MMMU"},
    }
    expected = load(project, document)
    assert expected.run.output_dir == tmp_path / "out"
    assert expected.tokenizer.path == str(project / "qwen")
    assert expected.corpus.path == project / "corpus.jsonl"
    assert expected.requests.output_length == CsvLengths(project / "lengths.csv", (5,) * 100)
    assert expected.effective["requests"]["output_length"] == {"mode": "csv", "path": str(project / "lengths.csv")}
    assert expected.aisbench.config == project / "perf.py"
    assert expected.aisbench.work_dir == Path("/absolute/dir")
    assert expected.multimodal is not None
    assert expected.multimodal.mmmu_parquet_dir == project / "MMMU"
    for directory in (project, tmp_path):
        monkeypatch.chdir(directory)
        scenario = load_scenario((project / "scenario.json").relative_to(directory), environment={})
        assert scenario == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("./missing", "{}/missing"),
        ("../missing", "{}/../missing"),
        ("/missing", "/missing"),
        (".", "{}"),
        ("x" * 300, "x" * 300),
    ],
)
def test_a_tokenizer_is_a_path_or_a_hub_name(tmp_path: Path, path: str, expected: str) -> None:
    directory = tmp_path / "a"
    directory.mkdir()
    expected = expected.format(directory).replace("/a/..", "")
    assert load(directory, {"tokenizer": {"path": path}}).tokenizer.path == expected


def test_the_api_key_comes_from_the_file_or_the_environment_and_stays_secret(tmp_path: Path) -> None:
    environment = {"AISBENCH_PREFIX_CACHE_API_KEY": "sk-environment"}
    from_file = load(tmp_path, {"service": {"api_key": "sk-file"}}, environment=environment)
    from_environment = load(tmp_path, {}, environment=environment)
    assert (from_file.service.api_key, from_environment.service.api_key) == ("sk-file", "sk-environment")
    for scenario in (from_file, from_environment):
        assert scenario.effective["service"]["api_key_configured"] is True
        assert "api_key" not in scenario.effective["service"]
        assert "sk-" not in repr(scenario) + json.dumps(scenario.effective)


def test_url_lists_and_no_reset_url(tmp_path: Path) -> None:
    urls = ["http://a:1/metrics", "https://b:2/metrics"]
    scenario = load(tmp_path, {"service": {"metrics_url": urls, "reset_url": ""}})
    assert scenario.service.metrics_urls == tuple(urls)
    assert scenario.service.inference_urls == ("http://127.0.0.1:8000/v1/completions",)
    assert scenario.service.reset_urls == ()
    assert scenario.effective["service"]["metrics_url"] == urls
    assert scenario.effective["service"]["reset_url"] is None
    assert load(tmp_path, {"service": {"reset_url": None}}).service.reset_urls == ()


def test_the_editors_schema_key_changes_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, {"$schema": "./scenario.schema.json"}).effective == load(tmp_path, {}).effective


def test_the_service_is_rebuilt_from_the_effective_configuration(tmp_path: Path) -> None:
    service = {"dp_size": 2, "engine_label_map": {"a": 1}, "metrics_url": ["http://a/", "http://b/"], "reset_url": None}
    scenario = load(tmp_path, {"service": service, "validation": {"target_warning_pp": 2}})
    effective = json.loads(json.dumps(scenario.effective))
    assert service_from_effective(effective) == scenario.service
    assert validation_from_effective(effective) == scenario.validation


def test_effective_configurations_of_other_origin_lack_our_fields(tmp_path: Path) -> None:
    effective = copy.deepcopy(dict(load(tmp_path, {}).effective))
    for key in ("engine", "hybrid_warmup", "kv_cache_blocks", "api_key_configured"):
        del effective["service"][key]
    assert service_from_effective(effective) == load(tmp_path, {}).service


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda e: e["service"].pop("dp_size"), "effective_config: service.dp_size: the key is missing"),
        (
            lambda e: e["service"].update(dp_size="2"),
            "effective_config: service.dp_size: a string cannot stand here "
            "(allowed: an integer from 1 up to 65536)\n    write the number without quotes",
        ),
        (
            lambda e: e["service"].update(engine_label_map={"a": 9}),
            "effective_config: service.engine_label_map.a: there is no rank 9: service.dp_size is 2 "
            "(allowed: an integer from 0 up to 1)",
        ),
        (
            lambda e: e["service"].update(api_key="sk-x"),
            "effective_config: service.api_key: a secret must not stand here\n    remove it",
        ),
        (
            lambda e: e.update(service=3),
            "effective_config.service: this is missing or not an object (allowed: an object)",
        ),
        (lambda e: e.pop("service"), "effective_config.service: this is missing or not an object (allowed: an object)"),
    ],
)
def test_a_damaged_service_is_an_artifact_error(tmp_path: Path, edit: Any, message: str) -> None:
    effective = json.loads(json.dumps(load(tmp_path, {}).effective))
    edit(effective)
    with pytest.raises(ArtifactError) as caught:
        service_from_effective(effective)
    assert str(caught.value) == message


def test_damaged_thresholds_are_an_artifact_error() -> None:
    with pytest.raises(ArtifactError) as caught:
        validation_from_effective({"validation": {"target_warning_pp": -1}})
    assert str(caught.value) == (
        "effective_config: validation.actual_warning_pp: the key is missing\n"
        "effective_config: validation.target_warning_pp: -1 is too small (allowed: a number from 0)"
    )
    with pytest.raises(ArtifactError, match=r"^effective_config: this is not an object \(allowed: an object\)$"):
        validation_from_effective(None)


@pytest.mark.parametrize(
    "name",
    [
        "scenario.example",
        "cold_input_len_asc",
        "conversation_agent",
        "conversation_chat",
        "conversation_code_completion",
        "conversation_retrieval",
        "zipf_groups_with_overrides",
        "csv_lengths",
        "images_single_1080p",
    ],
)
def test_each_example_loads(project_root: Path, name: str) -> None:
    modes: dict[str, ScenarioRules] = {"images": "images", "conversation": "conversations"}
    mode = modes.get(name.partition("_")[0], "prefixes")
    path = project_root / "config_examples" / f"{name}.json"
    assert load_scenario(path, rules=mode, environment={}).schema_version == "1.0"


def test_every_example_is_tried(project_root: Path) -> None:
    assert sorted(path.stem for path in (project_root / "config_examples").glob("*.json")) == [
        "cold_input_len_asc",
        "conversation_agent",
        "conversation_chat",
        "conversation_code_completion",
        "conversation_retrieval",
        "csv_lengths",
        "images_single_1080p",
        "scenario.example",
        "zipf_groups_with_overrides",
    ]


def test_loading_imports_no_heavy_library(project_root: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from ais_bench_prefix_cache.scenario.loading import load_scenario; "
        "load_scenario(Path(sys.argv[1])); "
        "print(sorted({'numpy', 'transformers', 'tokenizers', 'httpx', 'torch', 'requests'} & set(sys.modules)))"
    )
    example = project_root / "config_examples/zipf_groups_with_overrides.json"
    result = subprocess.run(
        [sys.executable, "-c", program, str(example)], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "[]\n"


def test_a_million_explicit_lengths_load(tmp_path: Path) -> None:
    values = [1000 + n % 5000 for n in range(1_000_000)]
    scenario = load(
        tmp_path, {"requests": {"count": 1_000_000, "input_length": {"mode": "explicit", "values": values}}}
    )
    assert scenario.requests.input_length == ExplicitLengths(tuple(values))


def test_conversations_have_a_section_of_their_own(tmp_path: Path) -> None:
    scenario = load(tmp_path, {"conversation": {}}, rules="conversations")
    assert scenario.benchmark_mode == "conversation"
    section = scenario.conversation
    assert section is not None
    assert (section.count, section.turns, section.answers) == (10, FixedLength(4), "generated")
    assert (section.system_prompts.count, section.system_prompts.length) == (1, FixedLength(1024))
    assert section.system_prompts.assignment == GroupAssignment("uniform")
    assert [section.first_message_length, section.message_length, section.answer_length] == [
        FixedLength(128), FixedLength(64), FixedLength(64),
    ]  # fmt: skip
    assert "conversation" not in load(tmp_path, {}).effective


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (None, "conversation: the key is missing --mode conversation needs it"),
        (
            {"count": 2, "turns": {"mode": "explicit", "values": [1]}},
            "conversation.turns.values: 1 lengths are listed, but conversation.count is 2 (allowed: exactly 2)",
        ),
        (
            {"count": 2, "message_length": {"mode": "explicit", "values": [1] * 5}},
            "conversation.message_length.values: 5 lengths are listed, but the number of later messages is 6 "
            "(allowed: exactly 6)",
        ),
        (
            {"turns": {"mode": "uniform", "min": 1, "max": 2}, "answer_length": {"mode": "explicit", "values": [1]}},
            "conversation.answer_length: lengths are listed although the numbers of turns are drawn, so that nobody "
            "knows how many there are (allowed: fixed, uniform or truncated_normal; or turns that are fixed, explicit "
            "or csv)",
        ),
        (
            {"system_prompts": {"count": 2, "assignment": {"mode": "weights", "weights": [1]}}},
            "conversation.system_prompts.assignment.weights: 1 weight for 2 groups",
        ),
        (
            {"turns": {"mode": "uniform", "min": 3, "max": 2}},
            "conversation.turns.max: max 2 is less than min 3 (allowed: 3 or more)",
        ),
        ({"answers": "made up"}, "conversation.answers: "),
        (
            {"form": "text"},
            "conversation.answers: text that was generated is encoded otherwise when it comes back, so that no hits "
            'are known (allowed: "scripted"; or form "token_ids", or "chat", which measures the loss)',
        ),
        (
            {"form": "chat"},
            'service.inference_url: form "chat" is sent to chat completions (allowed: a URL that ends with '
            '"/v1/chat/completions")',
        ),
        ({"routing": "random"}, "conversation.routing: "),
        ({"target_hit_rate": 0}, "conversation.target_hit_rate: "),
        (
            # Two of three turns follow, one of them a tool's result; two branches of one turn, tools' results as well.
            {
                "count": 1,
                "turns": {"mode": "fixed", "value": 3},
                "tool_results": {"length": {"mode": "explicit", "values": [1, 2]}},
                "branches": {"after_turn": 1, "count": 2},
            },
            "conversation.tool_results.length.values: 2 lengths are listed, but the number of tool results is 3 "
            "(allowed: exactly 3)",
        ),
        (
            {
                "count": 3,
                "turns": {"mode": "explicit", "values": [1, 2, 3]},
                "branches": {"after_turn": 2, "count": 4, "turns": {"mode": "explicit", "values": [1] * 9}},
            },
            "conversation.branches.turns.values: 9 lengths are listed, but the number of branches is 8 "
            "(allowed: exactly 8)",
        ),
        (
            {
                "branches": {"turns": {"mode": "uniform", "min": 1, "max": 2}},
                "think_time_ms": {"mode": "explicit", "values": [1]},
            },
            "conversation.think_time_ms: lengths are listed although the numbers of turns are drawn, so that nobody "
            "knows how many there are (allowed: fixed, uniform or truncated_normal; or turns that are fixed, explicit "
            "or csv)",
        ),
    ],
)
def test_sections_of_conversations_that_are_refused(tmp_path: Path, section: Any, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, {} if section is None else {"conversation": section}, rules="conversations")
    (problem,) = caught.value.problems
    said = str(problem).removeprefix("scenario.json: ")
    assert said.startswith(message) if section is not None else "--mode conversation needs it" in said


def test_what_is_sent_once_more_has_no_lengths_of_its_own(tmp_path: Path) -> None:
    section = {
        "count": 2,
        "turns": {"mode": "fixed", "value": 2},
        "branches": {"count": 3, "message": "same"},
        "message_length": {"mode": "explicit", "values": [7, 8]},
        "answer_length": {"mode": "explicit", "values": [1, 2, 3, 4]},
    }
    loaded = load(tmp_path, {"conversation": section}, rules="conversations").conversation
    assert loaded is not None and loaded.branches is not None
    assert (loaded.branches.after_turn, loaded.branches.count, loaded.branches.message) == (1, 3, "same")


def test_free_routing_needs_someone_else_who_chooses(tmp_path: Path) -> None:
    urls = [f"http://127.0.0.1:{port}/v1/completions" for port in (8000, 8001)]
    document: dict[str, Any] = {"conversation": {"routing": "free"}, "service": {"dp_size": 2, "inference_url": urls}}
    with pytest.raises(
        ScenarioError, match=r"conversation.routing: with 2 URLs .* \(allowed: sticky or round_robin; or"
    ):
        load(tmp_path, document, rules="conversations")
    document["service"]["router_url"] = urls[0]
    load(tmp_path, document, rules="conversations")
