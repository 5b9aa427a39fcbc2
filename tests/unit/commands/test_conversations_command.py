from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.cli import main

TALKS: list[dict[str, Any]] = [
    {
        "conversations": [
            {"from": "system", "value": "Answer briefly."},
            {"from": "human", "value": "How many apples are left?"},
            {"from": "human", "value": "There were five."},
            {"from": "gpt", "value": "Three apples are left."},
            {"from": "human", "value": "And pears?"},
            {"from": "gpt", "value": "None."},
            {"from": "human", "value": "Thanks"},
        ]
    },
    {
        "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "assistant", "content": "Hello!"},
            {"role": "user", "content": [{"type": "text", "text": "What is a robe?"}]},
            {"role": "assistant", "content": "A garment."},
        ]
    },
    {"messages": [{"role": "user", "content": "nobody answers"}]},
]


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def scenario(tmp_path: Path, qwen3_tokenizer_dir: Path, gsm8k_path: Path) -> Path:
    path = tmp_path / "scenario.json"
    document = {
        "run": {"run_id": "talk", "output_dir": "out"},
        "tokenizer": {"path": str(qwen3_tokenizer_dir), "block_size": 16},
        "corpus": {"path": str(gsm8k_path)},
        "service": {"dp_size": 1},
        "conversation": {"answers": "scripted", "message_length": {"mode": "fixed", "value": 9}},
    }
    path.write_text(json.dumps(document))
    return path


def test_texts_are_counted_by_the_scenarios_tokenizer_and_the_data_set_is_as_long(
    scenario: Path, tmp_path: Path, qwen3_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    raw = AutoTokenizer.from_pretrained(str(qwen3_tokenizer_dir))

    def tokens(*texts: str) -> int:
        return sum(len(raw(text, add_special_tokens=False)["input_ids"]) for text in texts)

    path = tmp_path / "talks.json"
    path.write_text(json.dumps(TALKS))
    assert main(["conversations", str(path), "--scenario", str(scenario)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {
        "scenario": str(tmp_path / "scenario.conversations.json"),
        "conversations": 2,
        "turns": 3,
        "system_prompt_tokens": tokens("Answer briefly."),
        "left_out": {
            "answers to nothing": 1,
            "conversations without an answered message": 1,
            "messages without an answer": 2,
        },
    }
    section = json.loads(Path(said["scenario"]).read_text())["conversation"]
    assert section == {
        "answers": "scripted",
        "count": 2,
        "turns": {"mode": "explicit", "values": [2, 1]},
        "system_prompts": {"count": 1, "length": {"mode": "fixed", "value": tokens("Answer briefly.")}},
        "first_message_length": {
            "mode": "explicit",
            "values": [tokens("How many apples are left?", "There were five."), tokens("What is a robe?")],
        },
        "message_length": {"mode": "explicit", "values": [tokens("And pears?")]},
        "answer_length": {
            "mode": "explicit",
            "values": [tokens("Three apples are left."), tokens("None."), tokens("A garment.")],
        },
    }
    assert main(["prepare", "--scenario", said["scenario"]]) == 0
    files = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in Path(files["full"]).read_text().splitlines()]
    whole = [tokens("Answer briefly.") + value for value in section["first_message_length"]["values"]]
    second = whole[0] + tokens("Three apples are left.") + tokens("And pears?")
    assert [row["actual_input_tokens"] for row in rows] == [whole[0], second, whole[1]]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"question": "one"}], [], "[NO_PROMPT] talks.jsonl line 1: has no conversation"),
        ([{"messages": [{"role": "user"}]}], [], "[BAD_PROMPT] talks.jsonl line 1: messages holds"),
        ([{"messages": [{"role": "user", "content": "x"}]}], [], "holds no conversation (1 conversations without"),
        ([], [], "holds no conversation"),
        ([{"hash_ids": [1], "input_length": 9}, {"messages": []}], [], "line 2: has no"),
        (TALKS, ["--most", "0"], "[WRONG_OPTION] --most: it is 0"),
        (TALKS, ["--output", "/elsewhere/talk.json"], "[WRONG_OPTION] --output: the Scenario's relative paths"),
    ],
)
def test_what_cannot_be_taken_over_is_named_and_nothing_written(
    rows: list[Any],
    options: list[str],
    message: str,
    scenario: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_rows(tmp_path / "talks.jsonl", rows)
    before = sorted(tmp_path.iterdir())
    assert main(["conversations", str(path), "--scenario", str(scenario), *options]) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_an_existing_file_is_kept(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(tmp_path / "talks.jsonl", TALKS)
    words = ["conversations", str(path), "--scenario", str(scenario), "--most", "1"]
    assert main(words) == 0
    assert main(words) == 2
    assert "[FILE_EXISTS]" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
