"""``inspect`` and ``prepare`` warn where ``service.kv_cache_blocks`` cannot hold the plan; the rate is a replay's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.doubles.radix_requests import run_alone
from tests.doubles.scenarios import scenario_file
from tests.doubles.token_replay import replay_prompts

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.datasets.format.documents import sealed
from ais_bench_prefix_cache.datasets.format.writing import write_document
from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache
from ais_bench_prefix_cache.planning.planner import plan_scenario
from ais_bench_prefix_cache.scenario.loading import load_scenario


def scenario(directory: Path, blocks: int | None, mode: str = "cold", engine: str = "auto", **requests: Any) -> Path:
    lengths = {"mode": "range", "ranges": [{"min": 64, "max": 400, "count": 60}]}
    return scenario_file(
        directory,
        requests={"count": 60, "input_length": lengths, "output_length": {"mode": "fixed", "value": 8}, **requests},
        prefix_cache={"mode": mode, "groups": {"count": 6}},
        service={"dp_size": 2, "kv_cache_blocks": blocks, "engine": engine},
    )


Prompts = list[tuple[int, npt.NDArray[np.int64], int]]
"""Rank, tokens and output tokens of each."""


def prompts_of_plan(path: Path) -> tuple[Prompts, Prompts]:
    """Warm-up and requests as tokens: canonical prefixes, and other tokens that occur once."""
    plan = plan_scenario(load_scenario(path))
    next_token = iter(range(1_000_000, 2**31))

    def prompt(group: int, shared: int, total: int) -> npt.NDArray[np.int64]:
        own = [next(next_token) for _ in range(total - shared)]
        return np.array([*range(10_000 * (group + 1), 10_000 * (group + 1) + shared), *own])

    prefixes = plan.canonical_prefix_tokens.tolist()
    warm = plan.mode == "warmup"
    warmup = [(r, prompt(g, n, n + 16), 1) for g, n in enumerate(prefixes) for r in range(2) if warm and n]
    ranks = [index % 2 if warm else rank for index, rank in enumerate(plan.dp_rank.tolist())]
    rows = zip(plan.group.tolist(), plan.shared_prefix_tokens.tolist(), plan.input_tokens.tolist(), strict=True)
    prompts = [prompt(*row) for row in rows]
    return warmup, list(zip(ranks, prompts, plan.max_tokens.tolist(), strict=True))


def replayed_hits(path: Path, num_blocks: int) -> int:
    """By vLLM's rules."""
    warmup, requests = prompts_of_plan(path)
    return sum(
        replay_prompts(
            [prompt for _, prompt, _ in requests],
            [rank for rank, *_ in requests],
            block_size=16,
            num_ranks=2,
            num_blocks=num_blocks,
            warmup=[(rank, prompt) for rank, prompt, _ in warmup],
            output_tokens=[output for *_, output in requests],
        )
    )


def hits_in_trees(path: Path, num_pages: int) -> int:
    """By SGLang's rules, token by token, as a real one hit 1,100 prompts (``tests/real/test_sglang.py``)."""
    trees = [RadixCache(16, num_pages) for _ in range(2)]
    answers = iter(range(-1, -(2**31), -1))

    def send(rank: int, prompt: npt.NDArray[np.int64], output: int) -> int:
        return run_alone(trees[rank], prompt.tolist(), [next(answers) for _ in range(output)])

    warmup, requests = prompts_of_plan(path)
    for each in warmup:
        send(*each)
    return sum(send(*each) for each in requests)


@pytest.mark.parametrize("mode", ["cold", "warmup"])
def test_the_rate_is_what_a_replay_of_the_plan_hits(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario(tmp_path, 61, mode)
    assert main(["inspect", "--scenario", str(path)]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    total, hits = summary["input_tokens"]["total"], replayed_hits(path, 60)
    found = re.search(
        r"warning \[CACHE_TOO_SMALL\] with 61 blocks \(service.kv_cache_blocks\) a rank evicts blocks that the plan "
        r"counts on: sent one after another, its requests hit (\S+) of their tokens, not (\S+), and several at once, "
        r"which evict in another order, a little more or less; the plan needs (\d+) blocks, and more with many "
        r"requests in flight\n",
        captured.err,
    )
    assert found is not None
    assert found.group(1, 2) == (f"{hits / total:.4f}", f"{summary['theoretical_hit_rate']:.4f}")
    (warning,) = (each for each in summary["warnings"] if each["code"] == "CACHE_TOO_SMALL")
    assert warning["predicted_hits"] == hits
    manifest = json.loads(Path(summary["manifest"]).read_text())
    assert manifest["inspect"]["summary"]["warnings"] == summary["warnings"]
    planned, needed = round(summary["theoretical_hit_rate"] * total), int(found.group(3))
    assert replayed_hits(path, needed - 1) == planned > replayed_hits(path, needed - 2)


@pytest.mark.parametrize("mode", ["cold", "warmup"])
def test_sglang_is_judged_by_its_own_rules(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = set()
    for blocks in (35, 61, 80):
        path = scenario(tmp_path, blocks, mode, "sglang")
        assert main(["inspect", "--scenario", str(path)]) == 0
        captured = capsys.readouterr()
        (warning,) = (each for each in json.loads(captured.out)["warnings"] if each["code"] == "CACHE_TOO_SMALL")
        assert (warning["predicted_hits"], warning["needed_kv_cache_blocks"]) == (hits_in_trees(path, blocks), None)
        assert "a little more or less\n" in captured.err
        found.add(warning["predicted_hits"] - replayed_hits(path, blocks - 1))
    assert found != {0}, "its rules must have mattered"


@pytest.mark.parametrize(("blocks", "said"), [(21, False), (20, True)])
def test_a_request_that_never_fits_sglang(
    blocks: int, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """320 tokens and 7 of the answer are 21 pages, and a prompt makes room for one more."""
    path = scenario(tmp_path, blocks + 1, engine="sglang", input_length={"mode": "fixed", "value": 320})
    assert main(["inspect", "--scenario", str(path)]) == 0
    assert (
        f"the largest request needs 22 blocks of 16 tokens, but a rank has {blocks + 1} to give "
        f"(service.kv_cache_blocks {blocks + 1})\n" in capsys.readouterr().err
    ) is said


def test_nothing_is_said_where_the_plan_fits_or_nothing_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for blocks in (100_000, None):
        assert main(["inspect", "--scenario", str(scenario(tmp_path, blocks))]) == 0
        assert "CACHE_TOO_SMALL" not in capsys.readouterr().err


def test_a_request_that_never_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scenario(tmp_path, 20, input_length={"mode": "fixed", "value": 320})
    assert main(["inspect", "--scenario", str(path)]) == 0
    assert (
        "warning [CACHE_TOO_SMALL] the largest request needs 21 blocks of 16 tokens, but a rank has 19 to give "
        "(service.kv_cache_blocks 20, less one that is never used)\n"
    ) in capsys.readouterr().err


def test_prepare_warns_as_well(
    tmp_path: Path, qwen3_tokenizer_dir: Path, gsm8k_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario(tmp_path, 61)
    document = json.loads(path.read_text())
    document["tokenizer"]["path"] = str(qwen3_tokenizer_dir)
    document["corpus"]["path"] = str(gsm8k_path)
    path.write_text(json.dumps(document))
    assert main(["prepare", "--mode", "text", "--scenario", str(path)]) == 0
    captured = capsys.readouterr()
    assert "warning [CACHE_TOO_SMALL] with 61 blocks" in captured.err
    files = json.loads(captured.out.splitlines()[-1])
    validate = ["validate", "--manifest", files["manifest"]]
    assert main(["validate", "--scenario", str(path), "--deep"]) == 0
    analysis_path = Path(files["analysis"])
    analysis = json.loads(analysis_path.read_text())
    (warning,) = (each for each in analysis["warnings"] if each["code"] == "CACHE_TOO_SMALL")
    assert (warning["kv_cache_blocks"], warning["predicted_hits"]) == (61, replayed_hits(path, 60))
    assert analysis["validation"]["status"] == "PASS_WITH_WARNING"
    # A run keeps the warning; and whoever edits it, with all digests made to fit, is found.
    manifest = json.loads(Path(files["manifest"]).read_text())
    for changed in ([{**warning, "predicted_hits": 1}], []):
        forged = {**analysis, "status": "analyzed", "warnings": changed}
        if not changed:
            forged["validation"] = {**analysis["validation"], "status": "PASS"}
        del forged["content_sha256"]
        write_document(analysis_path, sealed(forged))
        capsys.readouterr()
        assert main(validate) == 2
        assert ".analysis.json: warnings" in capsys.readouterr().err
    assert manifest["status"] == "prepared"
