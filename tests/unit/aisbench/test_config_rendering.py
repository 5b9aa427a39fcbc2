"""From a template to the configuration that AISBench gets; AISBench itself is not needed."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.scenarios import scenario_file

from ais_bench_prefix_cache.aisbench.config_rendering import (
    TEMPLATES,
    RenderedConfig,
    check_extra_args,
    command_line_arguments,
    own_template,
    python_path_with_this_package,
    render_config,
)
from ais_bench_prefix_cache.aisbench.job import AISBenchJob, job_from_scenario
from ais_bench_prefix_cache.aisbench.request_index import RequestIndex
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import AISBenchError
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import LoadConfig

Render = Callable[[AISBenchJob], RenderedConfig]


@pytest.fixture
def job(tmp_path: Path) -> AISBenchJob:
    url = "http://127.0.0.1:8000"
    service = {"dp_size": 2, "model": "tiny"}
    model = {"batch_size": 8, "retry": 0, "generation_kwargs": {"temperature": 0, "ignore_eos": True}}
    scenario = load_scenario(
        scenario_file(tmp_path, tokenizer=tmp_path, url=url, service=service, aisbench={"model": model})
    )
    manifest = {"run_id": "demo_20260101_000000", "effective_config": scenario.effective}
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
        config=scenario.effective,
    )


@pytest.fixture
def render(tmp_path: Path) -> Render:
    environment = {**os.environ, "PYTHONPATH": python_path_with_this_package(os.environ.get("PYTHONPATH"))}

    def render(job: AISBenchJob) -> RenderedConfig:
        private = tmp_path / "private"
        private.mkdir(exist_ok=True)
        return render_config(job, private, environment)

    return render


def _with_template(job: AISBenchJob, tmp_path: Path, text: str, **changes: Any) -> AISBenchJob:
    template = tmp_path / "my_template.py"
    template.write_text(text, encoding="utf-8")
    return AISBenchJob(**{**vars(job), "template_path": template, **changes})


def _assigned(text: str) -> dict[str, Any]:
    """The variables of a text that holds nothing but assignments of literals."""
    assigned = {}
    for statement in ast.parse(text).body:
        assert isinstance(statement, ast.Assign)
        assigned[ast.unparse(statement.targets[0])] = ast.literal_eval(statement.value)
    return assigned


def test_the_built_in_template_becomes_literals(job: AISBenchJob, render: Render, tmp_path: Path) -> None:
    rendered = render(job)
    assigned = _assigned(rendered.text)
    assert set(assigned) == {"datasets", "models", "infer", "summarizer"}
    (dataset,), (model,) = assigned["datasets"], assigned["models"]
    assert dataset["abbr"] == rendered.dataset_abbr == "demo_20260101_000000"
    assert dataset["path"] == str(tmp_path / "demo_20260101_000000.full.jsonl")
    assert dataset["reader_cfg"] == {"input_columns": ["question", "max_out_len"], "output_column": "answer"}
    assert dataset["eval_cfg"]["pred_role"] == "BOT"
    assert model["abbr"] == rendered.model_abbr == "demo_20260101_000000-vllm"
    assert model["inference_urls"] == ["http://127.0.0.1:8000/v1/completions"]
    assert model["retry"] == 1, "AISBench counts attempts: no retry is one attempt"
    assert dataset["with_prompts"] is False, "our inferencer reads each prompt when it sends it"
    assert (rendered.batch_size, rendered.stream, rendered.ignore_eos) == (8, True, True)


def test_a_template_is_plain_python_and_reads_the_three_variables(
    job: AISBenchJob, render: Render, tmp_path: Path
) -> None:
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
    assigned = _assigned(rendered.text)
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
def test_a_template_that_does_not_run_says_where(
    job: AISBenchJob, render: Render, tmp_path: Path, template: str, message: str
) -> None:
    with pytest.raises(AISBenchError) as caught:
        render(_with_template(job, tmp_path, template))
    (problem,) = caught.value.problems
    assert problem.code == "AISBENCH_TEMPLATE_INVALID"
    assert problem.where == str(tmp_path / "my_template.py")
    assert problem.message == f"cannot be used as an AISBench template: {message}"


def test_everything_that_a_template_lacks_is_told_at_once(job: AISBenchJob, render: Render, tmp_path: Path) -> None:
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


def test_a_template_must_not_hold_the_api_key(job: AISBenchJob, render: Render, tmp_path: Path) -> None:
    template = """
import os
datasets = [dict(abbr="d")]
models = [dict(abbr="m", attr="service", path=os.getcwd(), api_key="sk-" + "secret-0123")]
"""
    with pytest.raises(AISBenchError) as caught:
        render(_with_template(job, tmp_path, template, api_key="sk-secret-0123"))
    assert caught.value.problems[0].code == "AISBENCH_TEMPLATE_LEAKS_KEY"
    assert "sk-secret-0123" not in str(caught.value)


def test_a_missing_template(tmp_path: Path) -> None:
    with pytest.raises(AISBenchError) as caught:
        own_template(tmp_path / "none.py")
    assert str(caught.value) == (
        f"{tmp_path / 'none.py'}: there is no such file\n"
        "    Name an existing Python file in aisbench.config or --config, or leave both out."
    )


def test_arguments_become_words() -> None:
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
        ({"--debug": "no"}, "a run always has --debug"),
    ],
)
def test_arguments_that_change_what_is_sent_are_refused(arguments: Any, message: str) -> None:
    (problem,) = check_extra_args(arguments)
    assert problem.code == "AISBENCH_ARGUMENT_REFUSED"
    assert problem.where == f"aisbench.extra_args[{next(iter(arguments))!r}]"
    assert problem.message.startswith(message)


def test_harmless_arguments_pass() -> None:
    harmless = {"--num-warmups": 0, "--max-num-workers": 2, "--debug": True, "--pressure": False}
    assert check_extra_args(harmless) == []
    assert check_extra_args({"--debug": False}) == [], "false leaves an argument out"


def test_a_router_stands_in_the_place_of_every_engine(tmp_path: Path, job: AISBenchJob) -> None:
    """Requests of each rank go to it, without a rank's header, since no URL has several ranks behind it."""
    router = "http://r:9/v1/completions"
    scenario = load_scenario(
        scenario_file(tmp_path, url=["http://a:1", "http://b:2"], service={"dp_size": 2, "router_url": router}),
        rules="prefixes",
    )
    routed = job_from_scenario(
        scenario,
        manifest_path=tmp_path / "m.json",
        rows_path=tmp_path / "r.jsonl",
        index=job.index,
        template_path=TEMPLATES / "prefix_cache_perf.py",
    )
    assert routed.config["service"]["inference_url"] == [router, router]
    assert scenario.effective["service"]["inference_url"] == ["http://a:1/v1/completions", "http://b:2/v1/completions"]


def _shared(job: AISBenchJob, **changes: Any) -> AISBenchJob:
    return AISBenchJob(**{**vars(job), "load": LoadConfig(senders=4), **changes})


def test_a_load_generator_sums_up_nothing_and_has_its_share_of_the_slots(job: AISBenchJob, render: Render) -> None:
    rendered = render(_shared(job, role="sending", batch_size=3))
    summarizer, models = (_assigned(rendered.text)[name] for name in ("summarizer", "models"))
    assert summarizer["type"].endswith(".NoSummary")
    assert (rendered.batch_size, models[0]["batch_size"]) == (3, 3)


def test_the_aisbench_that_sums_up_sends_nothing(job: AISBenchJob, render: Render, tmp_path: Path) -> None:
    runner = _assigned(render(_shared(job, role="summing")).text)["infer"]["runner"]
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
def test_a_template_that_cannot_share_the_work_is_refused(
    job: AISBenchJob, render: Render, tmp_path: Path, change: str, where: str
) -> None:
    text = (TEMPLATES / "prefix_cache_perf.py").read_text(encoding="utf-8") + change
    with pytest.raises(AISBenchError) as caught:
        render(_shared(_with_template(job, tmp_path, text)))
    (problem,) = caught.value.problems
    assert problem.code == Code.AISBENCH_TEMPLATE_INVALID
    assert where in problem.where
