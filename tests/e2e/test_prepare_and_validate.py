"""inspect → prepare → validate on real text and a real tokenizer, judged by a checker that shares no code with us.

The checker encodes every prompt with plain ``transformers`` and replays it through the simplest cache there is: a set
of token prefixes. No block hashes, no lanes, no watermarks.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.cli import main

BLOCK = 16
Run = Callable[..., tuple[int, str, str]]

SCENARIOS: dict[str, dict[str, Any]] = {
    "warm-up, one group": {"prefix_cache": {"mode": "warmup", "target_hit_rate": 0.6}},
    "warm-up, zipf groups, spread lengths": {
        "requests": {
            "count": 40,
            "input_length": {"mode": "range", "ranges": [{"min": 65, "max": 700, "count": 40}]},
            "output_length": {"mode": "uniform", "min": 5, "max": 9},
        },
        "output": {"output_key": "max_tokens"},
        "prefix_cache": {
            "mode": "warmup",
            "target_hit_rate": 0.45,
            "seed_blocks": 2,
            "groups": {"count": 3, "assignment": {"mode": "zipf", "exponent": 1.0}},
            "order": {"strategy": "global_shuffle"},
        },
        "service": {"dp_size": 3},
    },
    "warm-up, nothing shared": {"prefix_cache": {"mode": "warmup", "target_hit_rate": 0}},
    "warm-up, all that can be shared": {"prefix_cache": {"mode": "warmup", "target_hit_rate": 1}},
    "cold, two groups on two ranks": {
        "prefix_cache": {"mode": "cold", "target_hit_rate": 0.5, "groups": {"count": 2}},
        "service": {"dp_size": 2},
    },
    "cold, short to long": {
        "requests": {"count": 30, "input_length": {"mode": "truncated_normal", "min": 40, "max": 600}},
        "output": {"output_key": "output_tokens"},
        "prefix_cache": {"mode": "cold", "target_hit_rate": 0.3, "order": {"strategy": "input_len_asc"}},
        "service": {"dp_size": 4},
    },
    "cold, more than can be reached": {
        "prefix_cache": {"mode": "cold", "target_hit_rate": 0.95, "groups": {"count": 5}},
        "service": {"dp_size": 2},
    },
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program in this process: exit code, stdout, stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return code, output.out, output.err

    return call


@pytest.fixture
def write_scenario(tmp_path: Path, qwen3_tokenizer_dir: Path, gsm8k_path: Path) -> Callable[..., Path]:
    """Write a Scenario over the defaults of these tests; returns its path."""

    def write(changes: Mapping[str, Any], name: str = "scenario.json") -> Path:
        scenario = {
            "run": {"run_id": "job", "output_dir": "./outputs/job"},
            "tokenizer": {"path": str(qwen3_tokenizer_dir), "block_size": BLOCK},
            "corpus": {"path": str(gsm8k_path)},
            "requests": {"count": 24, "input_length": {"mode": "fixed", "value": 500}},
            **changes,
        }
        path = tmp_path / name
        path.write_text(json.dumps(scenario), encoding="utf-8")
        return path

    return write


class PrefixSetCache:
    """A cache that never forgets: every whole-block prefix that was ever computed, as a tuple of its tokens."""

    def __init__(self) -> None:
        self._prefixes: set[tuple[int, ...]] = set()

    def send(self, tokens: list[int]) -> int:
        ends = range(BLOCK, len(tokens) + 1, BLOCK)
        hits = 0
        for end in ends:
            # The last token is always computed: a server needs its logits.
            if end > len(tokens) - 1 or tuple(tokens[:end]) not in self._prefixes:
                break
            hits = end
        self._prefixes.update(tuple(tokens[:end]) for end in ends)
        return hits


def check_independently(files: Mapping[str, str], tokenizer_dir: Path) -> None:
    """Raises where a prompt is not exact, or a hit is not what the files claim."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    manifest = json.loads(Path(files["manifest"]).read_bytes())
    analysis = json.loads(Path(files["analysis"]).read_bytes())
    rows = [json.loads(line) for line in Path(files["full"]).read_text(encoding="utf-8").split("\n")[:-1]]
    sent = [json.loads(line) for line in Path(files["requests"]).read_text(encoding="utf-8").split("\n")[:-1]]
    config = manifest["effective_config"]
    mode, ranks = config["prefix_cache"]["mode"], config["service"]["dp_size"]
    key = config["output"]["output_key"]
    caches = [PrefixSetCache() for _ in range(ranks)]
    for entry in manifest["warmup"]["plan"]:
        tokens = tokenizer(entry["prompt"])["input_ids"]
        assert len(tokens) == entry["input_tokens"]
        caches[entry["dp_rank"]].send(tokens)
    anywhere = random.Random(5)
    total_tokens = total_hits = 0
    by_rank = [[0, 0] for _ in range(ranks)]
    divergences, seeds = set(), set()
    group_counts: dict[str, int] = {}
    for index, (row, request) in enumerate(zip(rows, sent, strict=True)):
        expected_request = {"question": row["question"], "answer": "none"}
        if key is not None:
            expected_request[key] = row["max_tokens"]
        assert list(request.items()) == list(expected_request.items())
        tokens = tokenizer(request["question"])["input_ids"]
        assert len(tokens) == row["target_input_tokens"] == row["actual_input_tokens"]
        assert row["request_id"] == f"request-{index:08d}"
        occurrence = group_counts.get(row["group_id"], 0)
        group_counts[row["group_id"]] = occurrence + 1
        if mode == "cold":
            rank = occurrence % ranks
            assert (row["dp_rank"], row["lane_sequence"]) == (rank, occurrence // ranks)
        else:
            rank = anywhere.randrange(ranks)  # whatever the server's balancer does
            assert (row["dp_rank"], row["lane_sequence"]) == (None, None)
        hits = caches[rank].send(tokens)
        assert hits == row["theoretical_hit_tokens"], f"request {index}"
        shared, seed = row["shared_prefix_tokens"], row["seed_tokens"]
        divergences.add(tuple(tokens[shared : shared + BLOCK]))
        seeds.add(tuple(tokens[shared : shared + seed]))
        total_tokens, total_hits = total_tokens + len(tokens), total_hits + hits
        by_rank[rank][0] += len(tokens)
        by_rank[rank][1] += hits
    assert len(divergences) == len(seeds) == len(rows) == config["requests"]["count"]
    theory = analysis["theory"]
    assert (theory["input_tokens"], theory["hit_tokens"]) == (total_tokens, total_hits)
    if mode == "cold":
        claimed = [
            (theory["dp"][str(rank)]["input_tokens"], theory["dp"][str(rank)]["hit_tokens"]) for rank in range(ranks)
        ]
        assert claimed == [tuple(counts) for counts in by_rank]
    target = config["prefix_cache"]["target_hit_rate"]
    if manifest["prefix_cache"]["target_reachable"]:
        assert abs(total_hits - target * total_tokens) <= BLOCK / 2 + 1e-6
    else:
        assert total_hits / total_tokens == manifest["prefix_cache"]["reachable_max"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_prepared_data_set_is_exact(
    run: Run, write_scenario: Callable[..., Path], qwen3_tokenizer_dir: Path, name: str
) -> None:
    scenario = write_scenario(SCENARIOS[name])
    code, output, _ = run("inspect", "--scenario", scenario)
    assert code == 0
    summary = json.loads(output)
    code, output, _ = run("prepare", "--mode", "text", "--scenario", scenario)
    assert code == 0
    files = json.loads(output.splitlines()[-1])
    assert list(files) == ["full", "requests", "manifest", "analysis", "log"]
    assert files["manifest"] == summary["manifest"]
    check_independently(files, qwen3_tokenizer_dir)
    manifest = json.loads(Path(files["manifest"]).read_bytes())
    for key in ("requested_target_hit_rate", "effective_target_hit_rate", "theoretical_hit_rate", "reachable_max"):
        assert manifest["prefix_cache"][key] == summary[key]
    code, output, errors = run("validate", "--deep", "--scenario", scenario)
    assert code == 0, errors
    report = json.loads(output)
    assert (report["ok"], report["rows"], report["run_id"]) == (True, summary_count(summary), manifest["run_id"])
    assert report["deep"]["hit_tokens"] == json.loads(Path(files["analysis"]).read_bytes())["theory"]["hit_tokens"]


def summary_count(summary: Mapping[str, Any]) -> int:
    return sum(summary["groups"].values())


def test_warnings_are_shown_and_change_no_exit_code(run: Run, write_scenario: Callable[..., Path]) -> None:
    scenario = write_scenario({"prefix_cache": {"mode": "cold", "target_hit_rate": 0.99, "groups": {"count": 5}}})
    code, output, errors = run("prepare", "--mode", "text", "--scenario", scenario)
    assert code == 0
    analysis = json.loads(Path(json.loads(output)["analysis"]).read_bytes())
    assert [warning["code"] for warning in analysis["warnings"]][:2] == ["TARGET_UNREACHABLE", "TARGET_DEVIATION"]
    assert analysis["validation"]["status"] == "PASS_WITH_WARNING"
    for warning in analysis["warnings"]:
        assert f"warning [{warning['code']}] {warning['message']}\n" in errors


def test_directories_are_reused_kept_or_overwritten_as_documented(
    run: Run, write_scenario: Callable[..., Path], tmp_path: Path
) -> None:
    scenario = write_scenario({"requests": {"count": 4, "input_length": {"mode": "fixed", "value": 64}}})

    def directory_of(command: str, *options: str) -> Path:
        mode = ("--mode", "text") if command == "prepare" else ()
        code, output, _ = run(command, *mode, "--scenario", scenario, *options)
        assert code == 0
        return Path(json.loads(output)["manifest"]).parent.parent

    inspected = directory_of("inspect")
    assert directory_of("prepare") == inspected
    kept = (inspected / "result").iterdir()
    content = {path: path.read_bytes() for path in kept}
    second = directory_of("prepare")
    assert second != inspected
    assert {path: path.read_bytes() for path in (inspected / "result").iterdir()} == content

    foreign = second / "result" / "notes.txt"
    foreign.write_text("mine")
    before = {path.name: path.read_bytes() for path in (second / "result").iterdir()}
    (second / "result" / f"job_{second.name[-15:]}.requests.jsonl").write_bytes(b"damaged")
    assert directory_of("prepare", "--overwrite") == second
    assert {path.name: path.read_bytes() for path in (second / "result").iterdir()} == before

    scenario.write_text(scenario.read_text().replace('"count": 4', '"count": 5'))
    assert directory_of("prepare", "--overwrite") not in (inspected, second)
    assert len(list((tmp_path / "outputs").iterdir())) == 3


def test_data_files_that_a_killed_command_left_go(run: Run, write_scenario: Callable[..., Path]) -> None:
    """Killed between two renames: whole data files, and a manifest that is still a plan's."""
    scenario = write_scenario({"requests": {"count": 4, "input_length": {"mode": "fixed", "value": 64}}})
    _, output, _ = run("inspect", "--scenario", scenario)
    manifest = Path(json.loads(output)["manifest"])
    leftover = manifest.with_name(manifest.name.replace("manifest.json", "full.jsonl"))
    leftover.write_text("left behind")
    own = manifest.with_name(manifest.name.replace("manifest.json", "notes.txt"))
    own.write_text("somebody's own")
    code, output, errors = run("prepare", "--mode", "text", "--scenario", scenario)
    assert code == 0, errors
    assert Path(json.loads(output)["manifest"]) == manifest
    assert leftover.read_text() != "left behind"
    assert own.read_text() == "somebody's own"
    assert run("validate", "--manifest", manifest)[0] == 0


def program(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ais_bench_prefix_cache", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def test_the_same_scenario_gives_the_same_bytes(write_scenario: Callable[..., Path], tmp_path: Path) -> None:
    """Other hash seeds, other working directories, other thread counts."""
    write_scenario(SCENARIOS["warm-up, zipf groups, spread lengths"])
    made = []
    for seed, threads in (("1", "1"), ("2", "4")):
        home = tmp_path / seed
        home.mkdir()
        shutil.copy(tmp_path / "scenario.json", home)
        process = program(
            *("prepare", "--mode", "text", "--scenario", home / "scenario.json"),
            PYTHONHASHSEED=seed,
            RAYON_NUM_THREADS=threads,
        )
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        files = json.loads(output.splitlines()[-1])
        made.append((Path(files["full"]).read_bytes(), Path(files["requests"]).read_bytes()))
    assert made[0] == made[1]


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda each: each.name)
def test_a_killed_prepare_leaves_nothing_that_validates(
    run: Run, write_scenario: Callable[..., Path], tmp_path: Path, signal_number: signal.Signals
) -> None:
    scenario = write_scenario({"requests": {"count": 20_000, "input_length": {"mode": "fixed", "value": 1000}}})
    _, output, _ = run("inspect", "--scenario", scenario)
    manifest = Path(json.loads(output)["manifest"])
    before = manifest.read_bytes()
    process = program("prepare", "--mode", "text", "--scenario", scenario)
    partial = manifest.with_name(f".{manifest.name.replace('manifest.json', 'full.jsonl')}.partial")
    deadline = time.monotonic() + 120
    while not (partial.exists() and partial.stat().st_size):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal_number)
    _, errors = process.communicate(timeout=60)
    expected = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}
    assert process.returncode == expected[signal_number]
    assert "Traceback" not in errors
    left = {path.name for path in manifest.parent.iterdir() if not path.name.startswith(".")}
    assert left == {manifest.name}
    assert manifest.read_bytes() == before
    if signal_number != signal.SIGKILL:
        assert [path.name for path in manifest.parent.iterdir()] == [manifest.name]
    code, output, _ = run("validate", "--manifest", manifest)
    assert (code, json.loads(output)["errors"][0]["code"]) == (2, "NOT_PREPARED")


def test_validate_lists_everything_that_is_wrong(run: Run, write_scenario: Callable[..., Path]) -> None:
    scenario = write_scenario({"requests": {"count": 4, "input_length": {"mode": "fixed", "value": 64}}})
    _, output, _ = run("prepare", "--mode", "text", "--scenario", scenario)
    files = json.loads(output)
    full, requests = Path(files["full"]), Path(files["requests"])
    full.write_bytes(full.read_bytes()[:-10])
    requests.unlink()
    code, output, errors = run("validate", "--manifest", files["manifest"])
    assert code == 2
    report = json.loads(output)
    assert report["ok"] is False
    assert {"MISSING_FILE", "FILE_SIZE", "FILE_HASH"} <= {error["code"] for error in report["errors"]}
    assert f"error [MISSING_FILE] {requests}: the file does not exist\n" in errors
    log = Path(files["log"].replace(".prepare.log", ".validate.log"))
    assert "MISSING" in log.read_text() or "does not exist" in log.read_text()


def test_the_deep_check_finds_what_bytes_cannot_tell(
    run: Run, write_scenario: Callable[..., Path], tmp_path: Path, qwen3_tokenizer_dir: Path
) -> None:
    """A tokenizer that changed after the data set was made."""
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(qwen3_tokenizer_dir, tokenizer)
    scenario = write_scenario(
        {
            "tokenizer": {"path": str(tokenizer)},
            "requests": {"count": 4, "input_length": {"mode": "fixed", "value": 64}},
        }
    )
    _, output, _ = run("prepare", "--mode", "text", "--scenario", scenario)
    manifest = json.loads(output)["manifest"]
    content = json.loads((tokenizer / "tokenizer.json").read_bytes())
    merges = content["model"]["merges"]
    content["model"]["merges"] = merges[: len(merges) // 20]
    (tokenizer / "tokenizer.json").write_text(json.dumps(content))
    assert run("validate", "--manifest", manifest)[0] == 0
    code, output, _ = run("validate", "--deep", "--scenario", scenario)
    assert code == 2
    found = {error["code"] for error in json.loads(output)["errors"]}
    assert found == {"TOKENIZER_CHANGED", "DEEP_CHECK"}


def test_a_changed_corpus_is_noticed(
    run: Run, write_scenario: Callable[..., Path], tmp_path: Path, gsm8k_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    shutil.copyfile(gsm8k_path, corpus)
    scenario = write_scenario(
        {"corpus": {"path": str(corpus)}, "requests": {"count": 4, "input_length": {"mode": "fixed", "value": 64}}}
    )
    _, output, _ = run("prepare", "--mode", "text", "--scenario", scenario)
    manifest = json.loads(output)["manifest"]
    corpus.write_bytes(corpus.read_bytes() + b"\n")
    code, output, errors = run("validate", "--manifest", manifest, "--corpus", corpus)
    assert code == 0
    assert [warning["code"] for warning in json.loads(output)["warnings"]] == ["CORPUS_CHANGED"]
    assert "warning [CORPUS_CHANGED]" in errors


def test_logs_do_not_grow_with_the_data(run: Run, write_scenario: Callable[..., Path]) -> None:
    sizes = []
    for count in (4, 400):
        scenario = write_scenario({"requests": {"count": count, "input_length": {"mode": "fixed", "value": 160}}})
        _, output, _ = run("prepare", "--mode", "text", "--scenario", scenario)
        sizes.append(Path(json.loads(output)["log"]).stat().st_size)
    assert abs(sizes[0] - sizes[1]) < 50


def test_nothing_is_left_where_prepare_refuses(run: Run, write_scenario: Callable[..., Path], tmp_path: Path) -> None:
    scenario = write_scenario({"corpus": {"path": "./missing.jsonl"}})
    code, _, _ = run("prepare", "--mode", "text", "--scenario", scenario)
    assert code == 2
    assert not (tmp_path / "outputs").exists()
    code, _, errors = run("prepare", "--mode", "mm", "--scenario", scenario)
    assert code == 2
    assert [line.split("]")[0] for line in errors.splitlines()] == ["error [WRONG_URL", "error [MISSING_KEY"]
    assert not (tmp_path / "outputs").exists()


def test_nothing_is_left_where_a_prompt_turns_out_not_to_be_exact(
    run: Run, write_scenario: Callable[..., Path], gsm8k_path: Path, tmp_path: Path
) -> None:
    """Tokens of several words and blocks of one token: only making the prompts shows that a seed does not stay."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    with gsm8k_path.open(encoding="utf-8") as lines:
        rows = [json.loads(line)["question"].split(" ") for line in islice(lines, 600)]
    phrases = [" " * (start > 0) + " ".join(row[start : start + 5]) for row in rows for start in range(0, len(row), 5)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(phrases, trainers.BpeTrainer(vocab_size=4000, initial_alphabet=alphabet))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(str(tmp_path / "phrases"))
    scenario = write_scenario(
        {
            "tokenizer": {"path": str(tmp_path / "phrases"), "block_size": 1},
            "requests": {"count": 40, "input_length": {"mode": "fixed", "value": 512}},
            "prefix_cache": {"mode": "warmup", "target_hit_rate": 0.6, "groups": {"count": 10}},
        }
    )
    code, out, errors = run("prepare", "--mode", "text", "--scenario", scenario)
    assert (code, out) == (2, "")
    (error,) = [line for line in errors.splitlines() if line.startswith("error ")]
    assert error.startswith("error [PROMPTS_NOT_EXACT] scenario: tokenizer.path: the prompt of request "), errors
    assert "tokens of the vocabulary hold a space after another character, such as '" in error
    assert list((tmp_path / "outputs").iterdir()) == [], errors


def test_several_workers_write_the_same_files(run: Run, write_scenario: Callable[..., Path]) -> None:
    scenario = write_scenario(
        {
            "requests": {"count": 40, "input_length": {"mode": "fixed", "value": 500}},
            "prefix_cache": {"mode": "cold", "target_hit_rate": 0.3, "groups": {"count": 3}},
        }
    )
    written = []
    for workers in ("1", "2"):
        code, out, errors = run("prepare", "--mode", "text", "--scenario", scenario, "--workers", workers)
        assert code == 0, errors
        assert "one process makes this data set" not in errors
        files = json.loads(out)
        written.append([Path(files[name]).read_bytes() for name in ("full", "requests")])
        reports = [run("validate", "--scenario", scenario, "--deep", "--workers", number)[:2] for number in ("1", "3")]
        assert reports[0] == reports[1]
        assert (reports[0][0], json.loads(reports[0][1])["deep"]["rebuilt"]) == (0, True)
    assert written[0] == written[1]


def test_where_nothing_is_proven_one_process_is_enough(
    run: Run, write_scenario: Callable[..., Path], tokenizer_dir: Callable[[str], Path]
) -> None:
    scenario = write_scenario(
        {
            "tokenizer": {"path": str(tokenizer_dir("unigram without split")), "block_size": BLOCK},
            "requests": {"count": 4, "input_length": {"mode": "fixed", "value": 200}},
        }
    )
    code, _, errors = run("prepare", "--mode", "text", "--scenario", scenario, "--workers", "2")
    assert code == 0, errors
    assert (
        "note: one process makes this data set: nothing proves that words are encoded one by one: "
        "nothing splits the text at spaces before the Unigram model" in errors
    )
