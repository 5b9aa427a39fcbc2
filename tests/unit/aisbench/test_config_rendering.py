"""From a template to the configuration that AISBench gets; AISBench itself is not needed."""

from __future__ import annotations

import ast
import json
import os
from typing import Any

import pytest

from ais_bench_prefix_cache.aisbench.config_rendering import (
    TEMPLATES,
    check_extra_args,
    command_line_arguments,
    python_path_with_this_package,
    render_config,
)
from ais_bench_prefix_cache.aisbench.job import AISBenchJob
from ais_bench_prefix_cache.aisbench.request_index import RequestIndex
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import AISBenchError
from ais_bench_prefix_cache.scenario.model import LoadConfig


@pytest.fixture
def job(tmp_path):
    manifest: dict[str, Any] = {
        "run_id": "demo_20260101_000000",
        "effective_config": {
            "tokenizer": {"path": str(tmp_path), "revision": None, "trust_remote_code": False},
            "service": {"inference_url": "http://127.0.0.1:8000/v1/completions", "model": "tiny", "dp_size": 2},
            "aisbench": {
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
                    "retry": 0,
                    "batch_size": 8,
                    "generation_kwargs": {"temperature": 0, "ignore_eos": True},
                },
            },
        },
    }
    path = tmp_path / "demo_20260101_000000.manifest.json"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    rows = tmp_path / "demo_20260101_000000.full.jsonl"
    rows.write_text('{"question": "x", "max_tokens": 1}\n', encoding="utf-8")
    return AISBenchJob(
        scenario_path=tmp_path / "scenario.json",
        manifest_path=path,
        rows_path=rows,
        index=RequestIndex.of_file(rows, "max_tokens"),
        template_path=TEMPLATES / "prefix_cache_perf.py",
        work_dir=tmp_path / "work",
        config=manifest["effective_config"],
    )


@pytest.fixture
def render(tmp_path):
    environment = {**os.environ, "PYTHONPATH": python_path_with_this_package(os.environ.get("PYTHONPATH"))}

    def render(job):
        private = tmp_path / "private"
        private.mkdir(exist_ok=True)
        return render_config(job, private, environment)

    return render


def _with_template(job, tmp_path, text, **changes):
    template = tmp_path / "my_template.py"
    template.write_text(text, encoding="utf-8")
    return AISBenchJob(**{**vars(job), "template_path": template, **changes})


def assigned(rendered):
    return {statement.targets[0].id: ast.literal_eval(statement.value) for statement in ast.parse(rendered.text).body}


def test_the_built_in_template_becomes_literals(job, render, tmp_path):
    rendered = render(job)
    variables = assigned(rendered)
    assert set(variables) == {"datasets", "models", "infer", "summarizer"}
    (dataset,), (model,) = variables["datasets"], variables["models"]
    assert dataset["abbr"] == rendered.dataset_abbr == "demo_20260101_000000"
    assert dataset["path"] == str(tmp_path / "demo_20260101_000000.full.jsonl")
    assert dataset["reader_cfg"] == {"input_columns": ["question", "max_out_len"], "output_column": "answer"}
    assert dataset["eval_cfg"]["pred_role"] == "BOT"
    assert model["abbr"] == rendered.model_abbr == "demo_20260101_000000-vllm"
    assert model["inference_urls"] == ["http://127.0.0.1:8000/v1/completions"]
    assert model["retry"] == 1, "AISBench counts attempts: no retry is one attempt"
    assert dataset["with_prompts"] is False, "our inferencer reads each prompt when it sends it"
    assert (rendered.batch_size, rendered.stream, rendered.ignore_eos) == (8, True, True)


def test_a_template_is_plain_python_and_reads_the_three_variables(job, render, tmp_path):
    template = """
import json, os
from collections import OrderedDict
from pathlib import Path
with open(os.environ["AISBENCH_PREFIX_CACHE_MANIFEST"]) as f:
    manifest = json.load(f)
datasets = [dict(abbr=manifest["run_id"], type=OrderedDict, path=Path(os.environ["AISBENCH_PREFIX_CACHE_SCENARIO"]))]
models = [dict(abbr="m", attr="service", path=os.path.dirname(os.environ["AISBENCH_PREFIX_CACHE_WORK_DIR"]))]
infer = dict(window=(1, 2))
"""
    rendered = render(_with_template(job, tmp_path, template))
    assigned = {
        statement.targets[0].id: ast.literal_eval(statement.value) for statement in ast.parse(rendered.text).body
    }
    assert assigned == {
        "datasets": [
            {"abbr": "demo_20260101_000000", "type": "collections.OrderedDict", "path": str(tmp_path / "scenario.json")}
        ],
        "models": [
            {
                "abbr": "m",
                "attr": "service",
                "path": str(tmp_path),
                "generation_kwargs": {},
                "batch_size": 1,
                "retry": 1,
            }
        ],
        "infer": {"window": [1, 2]},
        "summarizer": {"attr": "performance"},
    }


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("1 +", "SyntaxError: invalid syntax (my_template.py, line 1)"),
        ("x = 1\nimport no_such_module", "line 2: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('enough')", "line 1: SystemExit: enough"),
        ("datasets = [object()]", "TypeError: datasets[0]: a object cannot be written into an AISBench configuration"),
        ("models = [{1: 2}]", "TypeError: models[0]: the key 1 is not a string"),
    ],
)
def test_a_template_that_does_not_run_says_where(job, render, tmp_path, template, message):
    with pytest.raises(AISBenchError) as caught:
        render(_with_template(job, tmp_path, template))
    (problem,) = caught.value.problems
    assert problem.code == "AISBENCH_TEMPLATE_INVALID"
    assert problem.where == str(tmp_path / "my_template.py")
    assert problem.message == f"cannot be used as an AISBench template: {message}"


def test_everything_that_a_template_lacks_is_told_at_once(job, render, tmp_path):
    template = """
models = [dict(abbr="a/b", attr="local", generation_kwargs=dict(num_return_sequences=2), batch_size=0)]
"""
    with pytest.raises(AISBenchError) as caught:
        render(_with_template(job, tmp_path, template))
    where = f"{tmp_path / 'my_template.py'}: "
    assert [str(problem) for problem in caught.value.problems] == [
        f"{where}datasets: must be a list of exactly one dict",
        f"{where}models[0].abbr: is 'a/b' (allowed: a file name: not empty, no '/', no leading '.')",
        f"{where}models[0].attr: is 'local' (allowed: 'service', for which AISBench writes results)",
        f"{where}models[0].generation_kwargs.num_return_sequences: would send every request more than once "
        "(allowed: 1)",
        f"{where}models[0].batch_size: is 0 (allowed: a positive integer)",
    ]


def test_a_template_must_not_hold_the_api_key(job, render, tmp_path):
    template = """
import os
datasets = [dict(abbr="d")]
models = [dict(abbr="m", attr="service", path=os.getcwd(), api_key="sk-" + "secret-0123")]
"""
    with pytest.raises(AISBenchError) as caught:
        render(_with_template(job, tmp_path, template, api_key="sk-secret-0123"))
    assert caught.value.problems[0].code == "AISBENCH_TEMPLATE_LEAKS_KEY"
    assert "sk-secret-0123" not in str(caught.value)


def test_a_missing_template(job, render, tmp_path):
    with pytest.raises(AISBenchError) as caught:
        render(AISBenchJob(**{**vars(job), "template_path": tmp_path / "none.py"}))
    assert str(caught.value) == (
        f"{tmp_path / 'none.py'}: there is no such file\n"
        "    Name an existing Python file in aisbench.config or --config, or leave both out."
    )


def test_arguments_become_words():
    given = {"--a": 1, "--b": [1, "x"], "--c": True, "--d": False, "--debug": True, "--mode": "perf"}
    assert command_line_arguments(given) == ["--num-warmups", "0", "--a", "1", "--b", "1", "x", "--c"]
    assert command_line_arguments({"--num-warmups": 3}) == ["--num-warmups", "3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"--pressure": True}, "--pressure cannot be used in a run: it repeats and drops requests"),
        ({"--num-prompts": 5}, "--num-prompts cannot be used in a run: it sends only a part of the data set"),
        ({"--num-p": 5}, "--num-prompts cannot be used in a run: it sends only a part of the data set"),
        ({"-r": "latest"}, "-r cannot be used in a run: it sends nothing but reads old results"),
        ({"-w": "x"}, "-w cannot be used in a run: the field aisbench.work_dir sets it"),
        ({"--mode": "infer"}, "a run always has --mode perf"),
        ({"--debug": False}, "a run always has --debug"),
    ],
)
def test_arguments_that_change_what_is_sent_are_refused(arguments, message):
    (problem,) = check_extra_args(arguments)
    assert problem.code == "AISBENCH_ARGUMENT_REFUSED"
    assert problem.where == f"aisbench.extra_args[{next(iter(arguments))!r}]"
    assert problem.message.startswith(message)


def test_harmless_arguments_pass():
    assert check_extra_args({"--num-warmups": 0, "--max-num-workers": 2, "--debug": True, "--pressure": False}) == []


def _shared(job, **changes):
    return AISBenchJob(**{**vars(job), "load": LoadConfig(senders=4), **changes})


def test_a_load_generator_sums_up_nothing_and_has_its_share_of_the_slots(job, render):
    rendered = render(_shared(job, role="sending", batch_size=3))
    summarizer, models = assigned(rendered)["summarizer"], assigned(rendered)["models"]
    assert summarizer["type"].endswith(".NoSummary")
    assert (rendered.batch_size, models[0]["batch_size"]) == (3, 3)


def test_the_aisbench_that_sums_up_sends_nothing(job, render, tmp_path):
    runner = assigned(render(_shared(job, role="summing")))["infer"]["runner"]
    assert runner["type"].endswith(".SummingRunner")
    assert runner["parts"] == str(tmp_path / "private" / "parts.json")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ('datasets[0]["infer_cfg"]["inferencer"]["type"] = "other.Inferencer"', "inferencer.type"),
        ('infer["runner"]["type"] = "ais_bench.benchmark.runners.LocalRunner"', "infer.runner.type"),
        ("infer = None", "infer.runner.type"),
        ('models[0]["request_rate"] = 5', "models[0].request_rate"),
    ],
)
def test_a_template_that_cannot_share_the_work_is_refused(job, render, tmp_path, change, where):
    text = (TEMPLATES / "prefix_cache_perf.py").read_text(encoding="utf-8") + change
    with pytest.raises(AISBenchError) as caught:
        render(_shared(_with_template(job, tmp_path, text)))
    (problem,) = caught.value.problems
    assert problem.code == Code.AISBENCH_TEMPLATE_INVALID
    assert where in problem.where
