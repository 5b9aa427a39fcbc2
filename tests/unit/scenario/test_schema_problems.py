"""Every rule of the Scenario, broken once: the whole message, and all messages of a file at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.scenario.loading import load_scenario

INTEGER = "an integer from 1 up to 2147483647"
URL = 'http:// or https:// and a host, as in "http://127.0.0.1:8000/metrics"'
FILE_NAME = "a name for files: 1 to 180 bytes, without / and \\, not . or .."


def refusals(tmp_path: Path, document: Any, environment: dict[str, str] | None = None) -> list[str]:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, environment=environment or {})
    return [str(problem).removeprefix("s.json: ") for problem in caught.value.problems]


def groups(**content: Any) -> dict[str, Any]:
    return {"prefix_cache": {"groups": content}}


def input_length(**rule: Any) -> dict[str, Any]:
    return {"requests": {"count": 3, "input_length": rule}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        # keys
        ({"run": {"runid": "x"}}, 'run.runid: there is no such key\n    did you mean "run_id"?'),
        (
            {"prefix_cache": {"target_hit_rate": "60 %"}},
            "prefix_cache.target_hit_rate: a string cannot stand here (allowed: a number from 0 up to 1)\n"
            "    write 0.6",
        ),
        (
            {"service": {"concurrency": 8}},
            'service.concurrency: there is no such key (allowed: "inference_url", "metrics_url", "router_url", '
            '"reset_url", "model", "dp_size", "assume_empty_cache", "engine_label_map", "timeout_seconds", "api_key", '
            '"poll_interval_seconds", "engine", "hybrid_warmup", "kv_cache_blocks")\n'
            "    aisbench.model.batch_size would be the right place",
        ),
        (
            {"service": {"inference_url": "http://h:8000/v1/chat/completions"}},
            'service.inference_url: text is sent to completions (allowed: a URL that ends with "/v1/completions")',
        ),
        (
            {"service": {"router_url": "http://h:8000/v1/chat/completions"}},
            'service.router_url: text is sent to completions (allowed: a URL that ends with "/v1/completions")',
        ),
        (
            {"service": {"inference_url": "http://h:8000/v1/"}},
            'service.inference_url: text is sent to completions (allowed: a URL that ends with "/v1/completions")\n'
            "    Add /completions to it.",
        ),
        (
            {"service": {"inference_url": "http://h:8000"}},
            'service.inference_url: text is sent to completions (allowed: a URL that ends with "/v1/completions")\n'
            "    Add /v1/completions to it.",
        ),
        (
            {"output": {"dp_size": 2}},
            'output.dp_size: there is no such key (allowed: "output_key")\n'
            "    service.dp_size would be the right place",
        ),
        (
            {"output": {"a.b\n": 2}},
            'output["a.b\\n"]: the key holds a control character (\\u000a)',
        ),
        (
            input_length(mode="fixed", values=[1]),
            'requests.input_length.values: this key does not belong to mode "fixed"\n'
            '    it belongs to mode "explicit"; set "mode" or remove the key',
        ),
        (
            input_length(values=[64, 64, 64]),
            'requests.input_length.values: this key does not belong to mode "fixed"\n'
            '    it belongs to mode "explicit"; set "mode" or remove the key',
        ),
        (
            {"prefix_cache": {"groups": {"assignment": {"mode": "uniform", "exponent": 1}}}},
            'prefix_cache.groups.assignment.exponent: this key does not belong to mode "uniform"\n'
            '    it belongs to mode "zipf"; set "mode" or remove the key',
        ),
        # types
        ({"run": []}, "run: a list cannot stand here (allowed: an object)"),
        ({"tokenizer": {"path": 3}}, "tokenizer.path: 3 cannot stand here (allowed: a string that is not empty)"),
        ({"tokenizer": {"path": ""}}, "tokenizer.path: the text is empty (allowed: a text that is not empty)"),
        ({"requests": {"count": True}}, f"requests.count: true cannot stand here (allowed: {INTEGER})"),
        (
            {"requests": {"count": "10"}},
            f"requests.count: a string cannot stand here (allowed: {INTEGER})\n    write the number without quotes",
        ),
        (
            {"requests": {"count": 100.0}},
            f"requests.count: 100.0 is a decimal number, not an integer (allowed: {INTEGER})\n    write 100",
        ),
        (
            {"requests": {"count": 2.5}},
            f"requests.count: 2.5 is a decimal number, not an integer (allowed: {INTEGER})",
        ),
        (
            {"service": {"timeout_seconds": "30"}},
            "service.timeout_seconds: a string cannot stand here (allowed: a number above 0 up to 1000000)\n"
            "    write the number without quotes",
        ),
        (
            {"validation": {"target_warning_pp": None}},
            "validation.target_warning_pp: null cannot stand here (allowed: a number from 0)",
        ),
        ({"service": {"api_key": 12345678}}, "service.api_key: the key is not a string (allowed: a string)"),
        # values
        ({"schema_version": "1.1"}, 'schema_version: "1.1" is not allowed (allowed: "1.0")'),
        ({"schema_version": 1.0}, 'schema_version: 1.0 is not allowed (allowed: "1.0")'),
        (
            {"prefix_cache": {"mode": "warm-up"}},
            'prefix_cache.mode: "warm-up" is not allowed (allowed: "cold" or "warmup")\n    did you mean "warmup"?',
        ),
        (
            {"requests": {"output_length": {"mode": "explicit"}}},
            'requests.output_length.mode: "explicit" is not allowed '
            '(allowed: "fixed" or "uniform" or "truncated_normal" or "csv")',
        ),
        (
            {"prefix_cache": {"target_hit_rate": 60}},
            "prefix_cache.target_hit_rate: 60 is too large (allowed: a number from 0 up to 1)\n"
            "    it is a fraction: write 0.6 for 60 %",
        ),
        ({"requests": {"count": 0}}, f"requests.count: 0 is too small (allowed: {INTEGER})"),
        (
            {"service": {"timeout_seconds": 0}},
            "service.timeout_seconds: 0 is too small (allowed: a number above 0 up to 1000000)",
        ),
        ({"run": {"run_id": "a/b"}}, f'run.run_id: "a/b" is not allowed (allowed: {FILE_NAME})'),
        ({"run": {"run_id": ".."}}, f'run.run_id: ".." is not allowed (allowed: {FILE_NAME})'),
        ({"run": {"run_id": "  "}}, f'run.run_id: "  " is not allowed (allowed: {FILE_NAME})'),
        (
            {"run": {"run_id": "数" * 61}},
            "run.run_id: the name has 183 bytes in UTF-8 "
            "(allowed: at most 180 bytes, so that file names made from it stay legal)",
        ),
        (
            {"aisbench": {"model": {"attr": "local"}}},
            'aisbench.model.attr: "local" is not allowed (allowed: "service")',
        ),
        (
            {"aisbench": {"dataset": {"input_columns": ["question"]}}},
            'aisbench.dataset.input_columns: a list is not allowed (allowed: ["question", "max_out_len"])',
        ),
        (
            {"aisbench": {"extra_args": ["--num-warmups", "0", "--debug", "-x=1", "--list", "a", "b"]}},
            "aisbench.extra_args: a list cannot stand here (allowed: an object)\n    the list form became an object; "
            'write {"--num-warmups": 0, "--debug": true, "-x": 1, "--list": ["a", "b"]}',
        ),
        (
            {"aisbench": {"extra_args": {"num-warmups": 0}}},
            'aisbench.extra_args.num-warmups: an argument\'s name begins with -\n    write "--num-warmups"',
        ),
        # corpus selection
        (
            {"corpus": {"selection": {"mode": "indices"}}},
            'corpus.selection: mode "indices" needs "values"',
        ),
        (
            {"corpus": {"selection": {"mode": "indices", "values": []}}},
            "corpus.selection.values: the list is empty (allowed: a list that is not empty)",
        ),
        (
            {"corpus": {"selection": {"mode": "indices", "values": [0], "indices": [0]}}},
            'corpus.selection: "values" and "indices" mean the same\n    keep one of them',
        ),
        (
            {"corpus": {"selection": {"mode": "question_sha256", "values": ["ab"]}}},
            'corpus.selection.values[0]: "ab" is not allowed (allowed: 64 hexadecimal digits)',
        ),
        (
            {"corpus": {"selection": {"mode": "mixed", "indices": []}}},
            'corpus.selection: mode "mixed" needs "indices" or "question_sha256"; both are empty',
        ),
        # lengths
        (input_length(mode="explicit"), 'requests.input_length: mode "explicit" needs "values"'),
        (
            input_length(mode="explicit", values=[64, 64]),
            "requests.input_length.values: 2 lengths are listed, but requests.count is 3 (allowed: exactly 3)",
        ),
        (
            input_length(mode="range", ranges=[{"min": 64, "max": 80}]),
            'requests.input_length.ranges[0]: an interval needs "count"',
        ),
        (
            input_length(mode="range", ranges=[{"min": 64, "max": 80, "count": 4}]),
            "requests.input_length.ranges: the counts of the intervals add up to 4, but requests.count is 3 "
            "(allowed: exactly 3)",
        ),
        (
            input_length(mode="range", ranges=[{"min": 64, "max": 63, "count": 3}]),
            "requests.input_length.ranges[0].max: max 63 is less than min 64 (allowed: 64 or more)",
        ),
        (
            input_length(mode="truncated_normal", min=64, max=63),
            "requests.input_length.max: max 63 is less than min 64 (allowed: 64 or more)",
        ),
        (
            input_length(mode="truncated_normal", min=64, max=80, std=0),
            "requests.input_length.std: 0 is too small (allowed: a number above 0 up to 1000000000000000.0)",
        ),
        (
            {"requests": {"output_length": {"mode": "uniform", "min": 8, "max": 7}}},
            "requests.output_length.max: max 7 is less than min 8 (allowed: 8 or more)",
        ),
        # room for the part that is not shared
        (
            {"tokenizer": {"block_size": 64}, "prefix_cache": {"minimum_non_shared_length": 63}},
            "prefix_cache.minimum_non_shared_length: 63 is less than the seed's 64 tokens "
            "(seed_blocks 1 × block_size 64) (allowed: 64 or more)",
        ),
        (
            input_length(mode="fixed", value=15),
            "requests.input_length.value: 15 cannot hold the 16 tokens that are never shared (allowed: 16 or more)\n"
            "    prefix_cache.minimum_non_shared_length is 16",
        ),
        (
            input_length(mode="explicit", values=[16, 15, 64]),
            "requests.input_length.values[1]: 15 cannot hold the 16 tokens that are never shared "
            "(allowed: 16 or more)\n    prefix_cache.minimum_non_shared_length is 16",
        ),
        (
            input_length(mode="range", ranges=[{"min": 15, "max": 20, "count": 3}]),
            "requests.input_length.ranges[0].min: 15 cannot hold the 16 tokens that are never shared "
            "(allowed: 16 or more)\n    prefix_cache.minimum_non_shared_length is 16",
        ),
        (
            input_length(mode="truncated_normal", min=15, max=20),
            "requests.input_length.min: 15 cannot hold the 16 tokens that are never shared "
            "(allowed: 16 or more)\n    prefix_cache.minimum_non_shared_length is 16",
        ),
        # groups
        (
            groups(count=3, assignment={"mode": "weights", "weights": [1, 2]}),
            "prefix_cache.groups.assignment.weights: 2 weights for 3 groups",
        ),
        (
            groups(count=2, assignment={"mode": "weights", "weights": [0, 0.0]}),
            "prefix_cache.groups.assignment.weights: all weights are 0 (allowed: at least one above 0)",
        ),
        (
            groups(count=1, assignment={"mode": "weights", "weights": [-1]}),
            "prefix_cache.groups.assignment.weights[0]: -1 is too small (allowed: a number from 0 up to 1e+300)",
        ),
        (
            groups(assignment={"mode": "zipf", "exponent": 0}),
            "prefix_cache.groups.assignment.exponent: 0 is too small (allowed: a number above 0 up to 1000)",
        ),
        (
            groups(count=2, overrides={"group-01": {}}),
            "prefix_cache.groups.overrides.group-01: this is not the id of a group "
            '(allowed: "group-0", "group-1", …)\n    write "group-1"',
        ),
        (
            groups(count=2, overrides={"group-2": {}}),
            "prefix_cache.groups.overrides.group-2: there is no such group: prefix_cache.groups.count is 2 "
            '(allowed: "group-0" to "group-1")',
        ),
        (
            # 100 requests over 3 groups: 34, 33, 33
            groups(count=3, overrides={"group-1": {"input_length": {"mode": "explicit", "values": [64] * 34}}}),
            "prefix_cache.groups.overrides.group-1.input_length.values: 34 lengths are listed, "
            "but the number of requests of group-1 is 33 (allowed: exactly 33)",
        ),
        (
            groups(count=1, overrides={"group-0": {"input_length": {"value": 8}}}),
            "prefix_cache.groups.overrides.group-0.input_length.value: 8 cannot hold the 16 tokens that are never "
            "shared (allowed: 16 or more)\n    prefix_cache.minimum_non_shared_length is 16",
        ),
        # service
        (
            {"service": {"inference_url": "127.0.0.1:8000/v1/completions"}},
            f"service.inference_url: the URL does not begin with http:// or https:// "
            f"(allowed: {URL.replace('metrics', 'v1/completions')})",
        ),
        (
            {"service": {"metrics_url": "http:///metrics"}},
            f"service.metrics_url: the URL names no host (allowed: {URL})",
        ),
        (
            {"service": {"metrics_url": "http://h:99999/"}},
            f"service.metrics_url: this is not a URL: Port out of range 0-65535 (allowed: {URL})",
        ),
        (
            {"service": {"metrics_url": "http://h/a b"}},
            f"service.metrics_url: the URL holds a space or a character beyond ASCII (allowed: {URL})",
        ),
        (
            {"service": {"metrics_url": "http://me:hunter2@h/"}},
            "service.metrics_url: the URL holds a user name or password, and URLs are written into the artifacts\n"
            "    use service.api_key",
        ),
        (
            {"service": {"dp_size": 3, "metrics_url": ["http://a/", "http://b/"]}},
            "service.metrics_url: 2 URLs for 3 ranks (allowed: one URL for all ranks, one per rank, or one for every "
            "so many: a "
            "number that divides service.dp_size, 3)",
        ),
        (
            {"service": {"engine_label_map": {"a": 2}}},
            "service.engine_label_map.a: there is no rank 2: service.dp_size is 2 (allowed: an integer from 0 up to 1)",
        ),
        (
            {"service": {"engine_label_map": {"a": 1, "b": 1}}},
            'service.engine_label_map.b: rank 1 already has the label "a"',
        ),
        (
            {"service": {"api_key": "sk-é"}},
            "service.api_key: the key cannot be sent in an HTTP header "
            "(allowed: visible ASCII characters without spaces)",
        ),
        # multimodal
        (
            {"multimodal": {"scenarios": ["single_1080p", "multi_720p_5"]}},
            "multimodal.scenarios: the list has 2 entries (allowed: at most 1)",
        ),
        (
            {"multimodal": {"scenarios": ["single_720p"]}},
            'multimodal.scenarios[0]: "single_720p" is not allowed (allowed: "single_1080p" or "multi_720p_5")\n'
            '    did you mean "single_1080p"?',
        ),
    ],
)
def test_one_broken_rule(tmp_path: Path, document: Any, message: str) -> None:
    assert refusals(tmp_path, document) == [message]


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    document = {
        "service": {"dp_size": 0, "metrics_url": "ftp://h/"},
        "run": {"run_id": ""},
        "requests": {"count": 2.0, "input_length": {"mode": "explicit", "values": [1, 64, "x"]}},
        "prefix_cache": {"groups": {"count": 2, "overrides": {"group-7": {"output_length": {"mode": "uniform"}}}}},
    }
    assert [line.partition(": ")[0] for line in refusals(tmp_path, document)] == [
        "service.dp_size",
        "service.metrics_url",
        "run.run_id",
        "requests.count",
        "requests.input_length.values[2]",
        "prefix_cache.groups.overrides.group-7.output_length",
        "prefix_cache.groups.overrides.group-7",
    ]


def test_long_lists_report_their_first_problems_and_a_number(tmp_path: Path) -> None:
    messages = refusals(tmp_path, input_length(mode="explicit", values=[0] * 27))
    assert [message.partition(":")[0] for message in messages[:-1]] == [
        f"requests.input_length.values[{n}]" for n in range(20)
    ]
    assert messages[-1] == "requests.input_length.values: 7 more entries of this list are wrong"


def test_an_api_key_never_appears_in_a_message(tmp_path: Path) -> None:
    secret = "sk-SECRET 1"
    for document in (
        {"service": {"api_key": secret}},
        {"service": {"api_key": [secret]}},
        {"service": {"apikey": secret}},
        {"service": secret},
        {"service": {"api_key": secret, "dp_size": "x"}},
    ):
        assert "SECRET" not in "\n".join(refusals(tmp_path, document))
    messages = refusals(tmp_path, {}, {"AISBENCH_PREFIX_CACHE_API_KEY": secret})
    assert messages == [
        "environment variable AISBENCH_PREFIX_CACHE_API_KEY: the key cannot be sent in an HTTP header "
        "(allowed: visible ASCII characters without spaces)\n"
        "    service.api_key is empty, so this variable is used"
    ]


def test_lengths_from_csv_are_counted_and_measured(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("input_tokens,output_tokens\n64,1\n15,1\n")
    (tmp_path / "wrong.csv").write_text("output_tokens\n1\nx\n3\n")
    document = {
        "requests": {
            "count": 3,
            "input_length": {"mode": "csv", "path": "two.csv"},
            "output_length": {"mode": "csv", "path": "wrong.csv"},
        },
        "prefix_cache": {
            "groups": {"count": 3, "overrides": {"group-1": {"output_length": {"mode": "csv", "path": "two.csv"}}}}
        },
        "service": {"dp_size": 0},
    }
    assert refusals(tmp_path, document) == [
        "requests.input_length.path: two.csv has 2 rows of lengths, but requests.count is 3 (allowed: exactly 3)",
        "requests.input_length.path: row 2 has length 15, which cannot hold the 16 tokens that are never shared "
        "(allowed: 16 or more)\n    prefix_cache.minimum_non_shared_length is 16",
        f'{tmp_path}/wrong.csv line 3, column output_tokens: "x" is not a length '
        "(allowed: a positive integer up to 2147483647)\n    requests.output_length.path names it",
        "prefix_cache.groups.overrides.group-1.output_length.path: two.csv has 2 rows of lengths, "
        "but the number of requests of group-1 is 1 (allowed: exactly 1)",
        "service.dp_size: 0 is too small (allowed: an integer from 1 up to 65536)",
    ]


def test_the_file_that_is_missing_is_named_with_the_place_that_names_it(tmp_path: Path) -> None:
    assert refusals(tmp_path, {"requests": {"input_length": {"mode": "csv", "path": "no.csv"}}}) == [
        f"{tmp_path}/no.csv: the CSV file does not exist\n    requests.input_length.path names it"
    ]
