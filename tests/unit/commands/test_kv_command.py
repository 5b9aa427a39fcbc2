"""Every number of the teaching lab on KV size, pages and shared prefixes, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.cli import main

LAB_MODEL = ("--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype", "fp16")


@pytest.fixture
def kv(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Any:
        assert main(["kv", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_bytes_per_token_of_the_lab(kv: Any) -> None:
    assert kv(*LAB_MODEL)["bytes_per_token"] == 131072


def test_memory_of_lengths_and_requests(kv: Any) -> None:
    memory = kv(*LAB_MODEL, "--lengths", "8192,32768", "--requests", "1,8")["memory"]
    assert {(row["length"], row["requests"]): row["gib"] for row in memory} == {
        (8192, 1): 1.0,
        (8192, 8): 8.0,
        (32768, 1): 4.0,
        (32768, 8): 32.0,
    }


def test_page_tables(kv: Any) -> None:
    document = kv(
        *LAB_MODEL, "--block-size", "4", "--lengths", "9", "--free-blocks", "7,1,5", "--tokens", "0,1,2,3,4,5,6,7,8"
    )
    (nine,) = document["page_tables"]
    assert [tuple(block.values()) for block in nine["blocks"]] == [(0, 7, 0, 4), (1, 1, 4, 4), (2, 5, 8, 1)]
    assert (nine["allocated_tokens"], nine["tail_waste_tokens"]) == (12, 3)
    assert [(token["physical_block"], token["offset"]) for token in nine["tokens"]] == [
        *[(7, offset) for offset in range(4)],
        *[(1, offset) for offset in range(4)],
        (5, 0),
    ]
    (six,) = kv(*LAB_MODEL, "--block-size", "4", "--lengths", "6", "--free-blocks", "7,1,5,9,3")["page_tables"]
    assert [tuple(block.values()) for block in six["blocks"]] == [(0, 7, 0, 4), (1, 1, 4, 2)]
    assert (six["allocated_tokens"], six["tail_waste_tokens"]) == (8, 2)


def test_fragmentation(kv: Any) -> None:
    rows = kv(*LAB_MODEL, "--lengths", "6,9,17", "--fragmentation", "1,4,16")["fragmentation"]
    # block size, tokens, allocated, wasted, entries of the block tables
    assert [tuple(row.values()) for row in rows] == [(1, 32, 32, 0, 32), (4, 32, 40, 8, 10), (16, 32, 64, 32, 4)]


def test_a_shared_prefix_saves_a_gibibyte(kv: Any) -> None:
    (row,) = kv(*LAB_MODEL, "--prefix", "4096", "--suffix", "2048", "--requests", "3")["shared_prefix"]
    assert (row["separate"]["gib"], row["shared"]["gib"], row["saved"]["gib"]) == (2.25, 1.25, 1.0)


def test_what_fits(kv: Any) -> None:
    document = kv(*LAB_MODEL, "--block-size", "16", "--lengths", "6144", "--prefix", "4096", "--cache-gib", "10")
    capacity = document["capacity"]
    # 10 GiB hold 5120 blocks of 2 MiB, one of which vLLM never uses; 6144 tokens are 384 blocks, 4096 are 256.
    assert (capacity["blocks"], capacity["usable_blocks"], capacity["usable_tokens"]) == (5120, 5119, 81904)
    assert capacity["requests"] == [{"length": 6144, "alone": 13, "sharing_the_prefix": 37}]
    assert capacity["canonical_prefixes"] == 19
    assert kv(*LAB_MODEL, "--cache-blocks", "5120", "--prefix", "4096")["capacity"]["canonical_prefixes"] == 19


def test_a_model_from_its_configuration(kv: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "num_hidden_layers": 36,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "hidden_size": 4096,
                "head_dim": 128,
                "torch_dtype": "bfloat16",
            }
        )
    )
    document = kv("--model-config", str(path))
    assert (document["bytes_per_token"], document["dtype"]) == (36 * 2 * 8 * 128 * 2, "bf16")
    halved = kv("--model-config", str(path), "--dtype", "fp8", "--tensor-parallel", "4")
    assert halved["bytes_per_token"] == 36 * 2 * 2 * 128


def test_tables_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", *LAB_MODEL, "--prefix", "4096", "--suffix", "2048", "--requests", "3"]) == 0
    output = capsys.readouterr().out
    assert "131,072 bytes per token (128 KiB), 2,097,152 bytes per block of 16 tokens" in output
    assert "│ 4,096  │ 2,048  │ 3        │ 2.25         │ 1.25       │ 1         │" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (*LAB_MODEL, "--block-size", "4", "--lengths", "9", "--free-blocks", "7,1"),
            "error [NO_FREE_BLOCK] free_blocks: 9 tokens need 3 blocks of 4, but only 2 are free\n",
        ),
        (
            ("--layers", "32"),
            "error [WRONG_OPTION] --kv-heads: is needed\n    Or give --model-config FILE.\n"
            "error [WRONG_OPTION] --head-dim: is needed\n    Or give --model-config FILE.\n",
        ),
        (
            (*LAB_MODEL, "--tensor-parallel", "3"),
            "error [HEADS_AND_RANKS] tensor_parallel: 3 ranks cannot share 8 KV heads "
            "(allowed: one is a multiple of the other)\n",
        ),
        (
            (*LAB_MODEL, "--block-size", "4", "--lengths", "6", "--free-blocks", "7,1", "--tokens", "6"),
            "error [NO_SUCH_TOKEN] token: the request has no token 6\n",
        ),
        ((*LAB_MODEL, "--lengths", "0"), "error [IMPOSSIBLE_VALUE] --lengths: is 0 (allowed: 1 or more)\n"),
        (
            (*LAB_MODEL, "--prefix", "8", "--cache-blocks", "9"),
            "error [IMPOSSIBLE_VALUE] prefix_tokens: is 8 (allowed: at least one block, 16)\n",
        ),
        (
            (*LAB_MODEL, "--model-config", "config.json"),
            "error [WRONG_OPTION] --layers: cannot be given together with --model-config\n"
            "    The file says it already; only --dtype and --tensor-parallel may be added.\n",
        ),
    ],
)
def test_impossible_inputs(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message)


@pytest.mark.parametrize(
    ("text", "groups", "bytes_per_token"),
    [
        # As published: heads and the pattern of windows are left to the class.
        (
            {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024},
            [{"window": None, "count": 1, "layers": 5}, {"window": 1024, "count": 6, "layers": 5}],
            34 * 2 * 4 * 256 * 2,
        ),
        (
            {
                "model_type": "llama4_text",
                "num_hidden_layers": 48,
                "num_attention_heads": 40,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "attention_chunk_size": 8192,
                "no_rope_layers": [],
            },
            [{"window": None, "count": 1, "layers": 12}, {"window": 8192, "count": 3, "layers": 12}],
            48 * 2 * 8 * 128 * 2,
        ),
        ({"model_type": "llama"}, [{"window": None, "count": 1, "layers": 32}], 32 * 2 * 32 * 128 * 2),
    ],
    ids=["gemma3", "llama4", "llava"],
)
def test_what_a_file_leaves_to_its_class_is_known(
    text: dict[str, Any], groups: list[dict[str, Any]], bytes_per_token: int, kv: Any, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "whole", "text_config": text, "torch_dtype": "bfloat16"}))
    document = kv("--model-config", str(path), "--cache-gib", "1")
    assert document["capacity"]["block_groups"] == groups
    assert document["bytes_per_token"] == bytes_per_token


def test_an_unknown_class_is_no_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "of_nobody", "num_hidden_layers": 2}))
    assert main(["kv", "--model-config", str(path)]) == 2
    assert capsys.readouterr().err == (
        "error [MODEL_CONFIG] num_attention_heads: is missing from the model's configuration\n"
    )


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ("--tokens 3 --lengths 5", ["--tokens: means nothing without --free-blocks"]),
        ("--free-blocks 1,2 --fragmentation 4", ["--free-blocks: means nothing without --lengths",
                                                 "--fragmentation: means nothing without --lengths"]),
        ("--prefix 10", ["--prefix: means nothing without --suffix, --cache-gib or --cache-blocks"]),
        ("--window-layers 3", ["--window-layers: means nothing without --window"]),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(
    arguments: str, messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kv", *LAB_MODEL, *arguments.split()]) == 2
    assert capsys.readouterr().err.splitlines() == [f"error [WRONG_OPTION] {message}" for message in messages]


def test_free_blocks_are_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    for blocks, message in (
        ("7,7", "names a block twice (allowed: each block once)"),
        ("7,-1", "is -1 (allowed: 0 or more)"),
    ):
        assert main(["kv", *LAB_MODEL, "--lengths", "20", "--free-blocks", blocks]) == 2
        assert capsys.readouterr().err == f"error [IMPOSSIBLE_VALUE] free_blocks: {message}\n"


def test_numbers_that_nothing_has_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["kv", *LAB_MODEL, "--lengths", "9" * 400])
    assert caught.value.code == 2
    said = f"argument --lengths: {'9' * 40}…{'9' * 10}".replace(" 9", " '9")
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"{said}' is too large: at most 1,000,000,000,000,000")
