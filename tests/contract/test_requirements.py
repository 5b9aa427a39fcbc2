"""Requirements of the contract that once did not hold, each by what the contract says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.aisbench.config_rendering import check_extra_args, command_line_arguments, own_template
from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.foundation.errors import AISBenchError, GenerationError
from ais_bench_prefix_cache.prompts import PromptSource, PromptSpec, TokenCount, WordEstimate

CONTRACT_CONFIG = "./plugins/prefix_cache/config_examples/prefix_cache_perf.py"


def write(path: Path, **sections: Any) -> Path:
    path.write_text(json.dumps({"run": {"output_dir": str(path.parent / "out")}, **sections}))
    return path


def inspected(scenario: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    assert main(["inspect", "--scenario", str(scenario)]) == 0
    told = capsys.readouterr()
    return json.loads(told.out), told.err


def test_the_template_that_the_contract_names_is_the_built_in_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, told = inspected(write(tmp_path / "s.json", aisbench={"config": CONTRACT_CONFIG}), capsys)
    assert summary["warnings"] == []
    named = tmp_path / CONTRACT_CONFIG
    said = f"aisbench.config: {named} does not exist; the built-in template, which does the same, is used"
    assert told == f"note: {said}\n"
    assert own_template(named) == (None, said)
    named.parent.mkdir(parents=True)
    named.write_text("")
    assert own_template(named) == (named, None)


def test_a_missing_template_is_said_by_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary, _ = inspected(write(tmp_path / "s.json", aisbench={"config": "./mine.py"}), capsys)
    assert [warning["code"] for warning in summary["warnings"]] == ["AISBENCH_TEMPLATE_NOT_FOUND"]
    assert str(tmp_path / "mine.py") in summary["warnings"][0]["message"]
    with pytest.raises(AISBenchError):
        own_template(tmp_path / "mine.py")


def test_inspect_takes_a_scenario_with_images_for_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MULTIMODAL's example has texts of 30 tokens, which no block and no shared prefix limits."""
    scenario = write(
        tmp_path / "s.json",
        requests={
            "count": 1319,
            "input_length": {"mode": "fixed", "value": 30},
            "output_length": {"mode": "fixed", "value": 256},
        },
        service={"inference_url": "http://127.0.0.1:8000/v1/chat/completions"},
        multimodal={"mmmu_parquet_dir": "./MMMU"},
    )
    summary, told = inspected(scenario, capsys)
    assert told == ""
    assert {key: summary[key] for key in ("benchmark_mode", "requests", "scenarios", "warnings", "sends_requests")} == {
        "benchmark_mode": "mm",
        "requests": 1319,
        "scenarios": ["single_1080p"],
        "warnings": [],
        "sends_requests": False,
    }
    assert summary["input_tokens"]["total"] == 1319 * 30
    assert summary["output_tokens"]["total"] == 1319 * 256


@pytest.mark.parametrize("name", ["--debug", "--mode", "--dry-run", "--merge-ds"])
def test_extra_args_with_false_are_left_out(name: str) -> None:
    assert check_extra_args({name: False}) == []
    assert command_line_arguments({name: False}) == ["--num-warmups", "0"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "other"},
        {"mode": "shared-prefix"},
        {"shared_prefix_ratio": 0.5},
        {"mode": "shared-prefix", "shared_prefix_ratio": 1},
        {"mode": "unique", "prefix_groups": 2},
    ],
)
def test_a_prompt_specification_that_contradicts_itself_is_a_value_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        PromptSpec(**wrong)
    assert isinstance(caught.value, GenerationError)


def test_a_prompt_tells_its_planned_count() -> None:
    source = PromptSource(PromptSpec("unique"), counter=WordEstimate(), seed=1, case_id="c", phase="p", input_tokens=50)
    assert source.prompt(0).planned_count == TokenCount(50, "words", False) == source.prompt(0).planned


class Letters:
    """A counter of one's own: four letters are a token."""

    def count_text(self, text: str) -> TokenCount:
        return TokenCount(-(-len(text) // 4), "letters", False)


@pytest.mark.parametrize(
    "spec", [PromptSpec(), PromptSpec("unique"), PromptSpec("shared-prefix", shared_prefix_ratio=0.5, prefix_groups=2)]
)
def test_anything_with_count_text_may_count(spec: PromptSpec) -> None:
    source = PromptSource(spec, counter=Letters(), seed=1, case_id="c", phase="p", input_tokens=400)
    prompts = [source.prompt(index) for index in range(20)]
    for prompt in prompts:
        assert prompt.count.source == "letters"
        assert abs(prompt.count.value - 400) <= 16  # single words, and the letters of two codes
    assert len({prompt.text for prompt in prompts}) == (1 if spec.mode == "repeat" else 20)
    if spec.mode == "shared-prefix":
        for prompt in prompts:
            alike = [p.text for p in prompts if p.prefix_group == prompt.prefix_group]
            shared = len(alike[0]) if len(alike) == 1 else len(prompt.pieces[0])
            assert all(text[:shared] == prompt.text[:shared] for text in alike)
            assert abs(shared / len(prompt.text) - 0.5) < 0.05 or len(alike) == 1
