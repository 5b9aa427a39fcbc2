"""``prepare --mode trace``: prompts that share what the trace shares, judged by raw ``transformers``."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.tokenizer_families import FAMILIES, UNPROVEN, family_params

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.kvcache.replay import SequentialReplay

Rows = list[dict[str, Any]]


def random_trace(block_size: int, count: int = 24, seed: int = 7) -> Rows:
    """Requests that continue, branch from and repeat earlier ones; ids name one block's content only."""
    numbers = random.Random(seed)
    rows: Rows = []
    next_id = 0
    for number in range(count):
        ids: list[int] = []
        if rows and numbers.random() < 0.8:
            earlier = numbers.choice(rows)["hash_ids"]
            ids = earlier[: numbers.randrange(len(earlier) + 1)]
        fresh = numbers.randrange(1, 5) if not ids or numbers.random() < 0.8 else 0
        # Every second new block has an id that another place of the trace has, too.
        for _ in range(fresh):
            ids = [*ids, numbers.randrange(next_id + 1) if numbers.random() < 0.5 else next_id + 1]
            next_id = max(next_id, *ids)
        length = block_size * (len(ids) - 1) + numbers.randrange(2, block_size + 1)
        rows.append(
            {"timestamp": 13 * number, "input_length": length, "output_length": number % 5 + 1, "hash_ids": ids}
        )
    return rows


@pytest.fixture
def prepare(tmp_path: Path, gsm8k_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(
        rows: Rows,
        tokenizer: Path,
        *options: str,
        block_size: int = 16,
        ranks: int = 1,
        name: str = "t",
        kv_cache_blocks: int | None = None,
        engine: str = "auto",
    ) -> Any:
        trace = tmp_path / "trace.jsonl"
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
        scenario = tmp_path / f"{name}.json"
        scenario.write_text(
            json.dumps(
                {
                    "run": {"run_id": name, "output_dir": str(tmp_path / name)},
                    "tokenizer": {"path": str(tokenizer), "block_size": block_size},
                    "corpus": {"path": str(gsm8k_path)},
                    "service": {"dp_size": ranks, "kv_cache_blocks": kv_cache_blocks, "engine": engine},
                }
            )
        )
        code = main(["prepare", "--mode", "trace", "--scenario", str(scenario), "--trace", str(trace), *options])
        captured = capsys.readouterr()
        return json.loads(captured.out) if code == 0 else (code, captured.err)

    return run


def rows_of(path: str) -> Rows:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def common(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


@pytest.mark.parametrize(
    ("tokenizer_fixture", "trace_block_size"),
    [
        ("qwen3_tokenizer_dir", 16),
        ("qwen3_tokenizer_dir", 512),
        pytest.param("deepseek_tokenizer_dir", 64, marks=pytest.mark.slow),
    ],
)
def test_prompts_share_exactly_what_the_trace_shares(
    tokenizer_fixture: str, trace_block_size: int, prepare: Any, request: pytest.FixtureRequest
) -> None:
    from transformers import AutoTokenizer

    tokenizer = request.getfixturevalue(tokenizer_fixture)
    trace = random_trace(trace_block_size)
    files = prepare(trace, tokenizer, "--trace-block-size", str(trace_block_size))
    encoder = AutoTokenizer.from_pretrained(tokenizer)
    prompts = [encoder(row["question"])["input_ids"] for row in rows_of(files["requests"])]
    assert [len(prompt) for prompt in prompts] == [row["input_length"] for row in trace]
    for (row, prompt), (other_row, other) in combinations(zip(trace, prompts, strict=True), 2):
        names, other_names = row["hash_ids"], other_row["hash_ids"]
        named = common(names, other_names) * trace_block_size
        # An unfinished last block is shared as far as the shorter of both has it.
        expected = min(named, len(prompt), len(other)) // 16
        assert common(prompt, other) // 16 == expected
    replay = SequentialReplay(block_size=16)
    full = rows_of(files["full"])
    assert [row["theoretical_hit_tokens"] for row in full] == [replay.run(0, prompt) for prompt in prompts]
    assert [row["timestamp_ms"] for row in full] == [row["timestamp"] for row in trace]
    assert [row["max_tokens"] for row in full] == [row["output_length"] for row in trace]


def test_validate_proves_the_data_set(
    prepare: Any, qwen3_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = prepare(random_trace(512), qwen3_tokenizer_dir, ranks=2)
    assert main(["validate", "--manifest", files["manifest"], "--deep", "--tokenizer", str(qwen3_tokenizer_dir)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["rows"]) == (True, 24)
    full = rows_of(files["full"])
    assert report["deep"]["hit_tokens"] == sum(row["theoretical_hit_tokens"] for row in full)
    assert [row["dp_rank"] for row in full] == [index % 2 for index in range(24)]
    # The same trace gives the same bytes.
    again = prepare(random_trace(512), qwen3_tokenizer_dir, ranks=2, name="u")
    assert Path(again["requests"]).read_bytes() == Path(files["requests"]).read_bytes()


@pytest.mark.slow
def test_several_workers_make_the_same_files(
    prepare: Any, qwen3_tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch, gsm8k_path: Path, tmp_path: Path
) -> None:
    # Some requests a range, so that there are several.
    monkeypatch.setattr("ais_bench_prefix_cache.datasets.traces.trace_lines.TOKENS_IN_A_RANGE", 2000)
    trace = random_trace(512)
    written = []
    for workers in ("1", "2", "3"):
        options = ("--workers", workers, *(["--verify", "full"] if workers == "3" else []))
        files = prepare(trace, qwen3_tokenizer_dir, *options, ranks=2, name=f"by-{workers}")
        written.append([Path(files[name]).read_bytes() for name in ("full", "requests")])
    assert written[0] == written[1] == written[2]
    sources = ("--tokenizer", str(qwen3_tokenizer_dir), "--corpus", str(gsm8k_path))
    words = ["validate", "--manifest", files["manifest"], "--deep", "--workers", "2", *sources]
    assert main([*words, "--trace", str(tmp_path / "trace.jsonl")]) == 0


def in_the_middle_of_blocks(rows: Rows, block_size: int) -> Rows:
    """The same trace without prompts that end with a block, or a token before its end."""
    return [row | {"input_length": row["input_length"] - 2 * (row["input_length"] % block_size < 2)} for row in rows]


@pytest.mark.parametrize("family", family_params(*FAMILIES, *UNPROVEN))
def test_every_family_is_exact_or_says_why_not(
    family: str, prepare: Any, tokenizer_dir: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    raw = AutoTokenizer.from_pretrained(str(tokenizer_dir(family)))
    trace = in_the_middle_of_blocks(random_trace(64, count=16), 64)
    files = prepare(trace, tokenizer_dir(family), "--trace-block-size", "64", block_size=64)
    if family == "bytes only":
        assert files == (
            2,
            "error [NO_CODE_WORDS] scenario: tokenizer.path: the vocabulary has no words of one token after a space\n",
        )
        return
    assert isinstance(files, dict), files
    prompts = [raw.encode(row["question"]) for row in rows_of(files["full"])]
    assert [len(ids) for ids in prompts] == [row["input_length"] for row in trace]
    for (row, ids), (other_row, other) in combinations(zip(trace, prompts, strict=True), 2):
        named = common(row["hash_ids"], other_row["hash_ids"])
        whole = min(named, row["input_length"] // 64, other_row["input_length"] // 64)
        assert 64 * whole <= common(ids, other)
        assert common(ids, other) // 64 == whole
    assert main(["validate", "--manifest", files["manifest"], "--deep", "--tokenizer", str(tokenizer_dir(family))]) == 0


def test_a_block_that_the_tokenizer_closes_cannot_be_continued(
    prepare: Any, tokenizer_dir: Any, tmp_path: Path
) -> None:
    closed = {"input_length": 64, "hash_ids": [1]}
    longer = {"input_length": 100, "hash_ids": [1, 2]}
    options = (tokenizer_dir("gpt2 with eos"), "--trace-block-size", "64")
    for rows, ended, continuing in (([closed, longer], 1, 2), ([longer, closed], 2, 1)):
        code, said = prepare(rows, *options, block_size=64)
        assert (code, said.splitlines()[-2:]) == (
            2,
            [
                f"error [TRACE_NOT_EXACT] trace line {continuing}: it continues the block in which line {ended} ends, "
                "but there the tokenizer adds tokens at the end of the prompt, so the two cannot share it",
                "    Tokenizers of language models seldom add tokens at the end: is this the server's own?",
            ],
        )
        assert not list(tmp_path.glob("t_*"))
    # Twice the same, and one that ends before the block does, are no obstacle.
    short = {"input_length": 40, "hash_ids": [1]}
    assert isinstance(prepare([closed, closed, short], *options, block_size=64), dict)


def test_verify_full_encodes_every_prompt(
    prepare: Any, qwen3_tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

    encoded: list[str] = []
    whole = PromptTokenizer.encode_batch

    def remember(self: PromptTokenizer, texts: Sequence[str]) -> list[list[int]]:
        encoded.extend(texts)
        return whole(self, texts)

    monkeypatch.setattr(PromptTokenizer, "encode_batch", remember)
    trace = random_trace(16, count=6)
    proof = prepare(trace, qwen3_tokenizer_dir, name="proof")
    prompts = [row["question"] for row in rows_of(proof["full"])]
    assert set(encoded).isdisjoint(prompts)
    full = prepare(trace, qwen3_tokenizer_dir, "--verify", "full", name="full")
    assert [text for text in encoded if text in prompts] == prompts
    assert Path(full["requests"]).read_bytes() == Path(proof["requests"]).read_bytes()

    # A tokenizer that does not do what was proven is found.
    def otherwise(self: PromptTokenizer, texts: Sequence[str]) -> list[list[int]]:
        right = zip(texts, whole(self, texts), strict=True)
        return [[*ids, 1] if text in prompts else ids for text, ids in right]

    monkeypatch.setattr(PromptTokenizer, "encode_batch", otherwise)
    code, message = prepare(trace, qwen3_tokenizer_dir, "--verify", "full", name="other")
    assert code == 2
    what = "the prompt of trace line 1 is not encoded as its words are, from token "
    assert message.startswith(f"error [PROMPTS_NOT_EXACT] scenario: tokenizer.path: {what}")
    assert isinstance(prepare(trace, qwen3_tokenizer_dir, name="unseen"), dict)


@pytest.mark.parametrize("page", ["docs/kv-cache.md", "docs/zh/kv-cache.md"])
def test_the_documented_import_runs(
    page: str,
    project_root: Path,
    tmp_path: Path,
    qwen3_tokenizer_dir: Path,
    gsm8k_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (command,) = re.findall(r"^ais-bench-prefix-cache (prepare .*)$", (project_root / page).read_text("utf-8"), re.M)
    scenario = {"tokenizer": {"path": str(qwen3_tokenizer_dir)}, "corpus": {"path": str(gsm8k_path)}}
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    (tmp_path / "conversation_trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in random_trace(512, 4)))
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    assert len(rows_of(json.loads(capsys.readouterr().out)["full"])) == 4


def test_a_server_that_is_too_small_for_the_trace_is_named(
    prepare: Any, qwen3_tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = random_trace(16)
    largest = max((row["input_length"] + row["output_length"] - 2) // 16 + 1 for row in trace)
    files = prepare(trace, qwen3_tokenizer_dir, name="small", kv_cache_blocks=largest + 3)
    (warning,) = json.loads(Path(files["analysis"]).read_text())["warnings"]
    assert (warning["code"], warning["kv_cache_blocks"]) == ("CACHE_TOO_SMALL", largest + 3)
    found = []
    for blocks in (largest + 2, warning["needed_kv_cache_blocks"] - 1, warning["needed_kv_cache_blocks"] - 2):
        assert main(["simulate", str(tmp_path / "trace.jsonl"), "--blocks", str(blocks), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["hits"])
    assert warning["predicted_hits"] == found[0] < found[1] == warning["planned_hits"] > found[2]
    assert main(["validate", "--manifest", files["manifest"], "--deep", "--tokenizer", str(qwen3_tokenizer_dir)]) == 0


def test_a_small_cache_of_sglang_hits_what_simulate_says(
    prepare: Any, qwen3_tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = random_trace(16)
    pages = 4 + max((row["input_length"] + row["output_length"] - 2) // 16 + 1 for row in trace)
    files = prepare(trace, qwen3_tokenizer_dir, name="small", kv_cache_blocks=pages, engine="sglang")
    (warning,) = json.loads(Path(files["analysis"]).read_text())["warnings"]
    assert (
        main(["simulate", str(tmp_path / "trace.jsonl"), "--engine", "sglang", "--blocks", str(pages), "--json"]) == 0
    )
    assert warning["predicted_hits"] == json.loads(capsys.readouterr().out)["hits"] < warning["planned_hits"]
    assert warning["needed_kv_cache_blocks"] is None
    assert main(["validate", "--manifest", files["manifest"], "--deep", "--tokenizer", str(qwen3_tokenizer_dir)]) == 0


def edited(path: str, change: Any) -> None:
    rows = rows_of(path)
    change(rows)
    Path(path).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


CHANGES: list[tuple[str, Any, set[str]]] = [
    ("requests", lambda rows: rows[2].update(question="Why?"), {"CORRESPONDENCE"}),
    ("requests", lambda rows: rows.pop(), {"ROW_COUNT"}),
    ("full", lambda rows: rows[3].update(theoretical_hit_tokens=1), {"WRONG_VALUE", "SHARING_DIFFERS"}),
    ("full", lambda rows: rows.insert(0, rows.pop()), {"WRONG_VALUE", "CORRESPONDENCE"}),
    ("full", lambda rows: rows[1].pop("dp_rank"), {"MISSING_KEY"}),
    ("full", lambda rows: rows[5].update(max_tokens="7"), {"WRONG_TYPE"}),
    ("full", lambda rows: rows[5].update(timestamp_ms=1), set()),
]


def test_validate_finds_what_was_changed(
    prepare: Any, qwen3_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = prepare(random_trace(16, count=8), qwen3_tokenizer_dir)
    for file, change, codes in CHANGES:
        intact = Path(files[file]).read_bytes()
        edited(files[file], change)
        assert main(["validate", "--manifest", files["manifest"]]) == 2
        report = json.loads(capsys.readouterr().out)
        found = {error["code"] for error in report["errors"]}
        assert codes <= found
        assert found - codes <= {"FILE_HASH", "FILE_SIZE", "ROW_COUNT", "WRONG_VALUE"}
        Path(files[file]).write_bytes(intact)
    Path(files["requests"]).unlink()
    assert main(["validate", "--manifest", files["manifest"]]) == 2
    assert [error["code"] for error in json.loads(capsys.readouterr().out)["errors"]] == ["MISSING_FILE"]


def test_an_exported_data_set_hits_what_the_trace_hit(
    prepare: Any, qwen3_tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = prepare(random_trace(512), qwen3_tokenizer_dir)
    exported, tokenizer = tmp_path / "exported.jsonl", str(qwen3_tokenizer_dir)
    hits = []
    for command in (
        [str(tmp_path / "trace.jsonl")],
        [files["full"], "--tokenizer", tokenizer, "--block-size", "512", "--export-mooncake", str(exported)],
        [str(exported)],
    ):
        assert main(["simulate", *command, "--json"]) == 0
        hits.append(json.loads(capsys.readouterr().out)["hits"])
    assert hits[0] == hits[1] == hits[2] > 0
    kept = ("timestamp", "input_length", "output_length")
    assert [[row[key] for key in kept] for row in rows_of(str(exported))] == [
        [row[key] for key in kept] for row in random_trace(512)
    ]


@pytest.mark.parametrize(
    ("rows", "options", "block_size", "message"),
    [
        (
            [{"prompt": [1, 2]}],
            (),
            16,
            "error [NO_HASH_IDS] trace.jsonl line 1: has no hash_ids\n    Only such traces are imported.\n",
        ),
        ([], (), 16, "error [NO_REQUESTS] {trace}: holds no requests\n"),
        (
            [{"input_length": 40, "hash_ids": [1, 2, 3]}],
            (),
            32,
            "error [TRACE_BLOCK_SIZE] scenario: tokenizer.block_size: blocks of 32 tokens do not divide the trace's "
            "blocks of 16 (allowed: a divisor of 16)\n",
        ),
        (
            [{"input_length": 40, "hash_ids": [1, 2, 3]}],
            (),
            4,
            "error [CODE_TOO_LONG] scenario: tokenizer.block_size: a code that tells blocks apart needs 7 tokens, but "
            "the first block has 3\n    Use a larger block size, or a tokenizer with more words of one token.\n",
        ),
    ],
)
def test_traces_that_cannot_be_imported(
    rows: Rows,
    options: tuple[str, ...],
    block_size: int,
    message: str,
    prepare: Any,
    qwen3_tokenizer_dir: Path,
    tmp_path: Path,
) -> None:
    refused = prepare(rows, qwen3_tokenizer_dir, *options, block_size=block_size)
    assert refused == (2, message.replace("{trace}", str(tmp_path / "trace.jsonl")))
    assert not list(tmp_path.glob("t_*"))


def test_a_trace_must_be_named_and_is_not_run(
    prepare: Any, qwen3_tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = prepare(random_trace(16, count=3), qwen3_tokenizer_dir)
    assert main(["prepare", "--mode", "trace", "--scenario", str(tmp_path / "t.json")]) == 2
    assert capsys.readouterr().err == "error [WRONG_OPTION] --trace: is needed with --mode trace\n"
    assert main(["run", "--scenario", str(tmp_path / "t.json")]) == 2
    assert (
        f"error [TRACE] {files['manifest']}: this data set was made from a trace\n"
        "    Only validate reads it; send its requests with a client that keeps the times of full.jsonl.\n"
    ) in capsys.readouterr().err
