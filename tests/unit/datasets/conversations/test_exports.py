"""Conversations for other benchmarks: what their readers want, worked out by hand; and what has no place there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.datasets.extraction import extract
from ais_bench_prefix_cache.foundation.errors import ArtifactError


def row(index: int, conversation: int, continues: int | None, **values: Any) -> dict[str, Any]:
    return {
        "sequence_index": index,
        "conversation": conversation,
        "continues": continues,
        "system_prompt": "be kind" if continues is None else "",
        "question": f"question {index}",
        "answer": f"answer {index}",
        "max_tokens": 2,
        "think_ms": 0 if continues is None else 250,
        **values,
    }


ROWS = [row(0, 0, None), row(1, 0, 0), row(2, 1, None, system_prompt="", answer="none")]


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_aiperf_gets_a_session_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "talk.full.jsonl", ROWS)
    assert main(["extract", str(source), "--format", "aiperf-multi-turn"]) == 0
    output = tmp_path / "talk.full_aiperf-multi-turn.jsonl"
    told = json.loads(capsys.readouterr().out)
    assert told == {"output": str(output), "rows": 2, "format": "aiperf-multi-turn"}
    assert [json.loads(line) for line in output.read_text().splitlines()] == [
        {
            "session_id": "conversation-00000000",
            "turns": [
                {"role": "system", "text": "be kind"},
                {"text": "question 0", "output_length": 2, "extra": {"ignore_eos": True}},
                {"text": "question 1", "output_length": 2, "delay": 250, "extra": {"ignore_eos": True}},
            ],
        },
        {
            "session_id": "conversation-00000001",
            "turns": [{"text": "question 2", "output_length": 2, "extra": {"ignore_eos": True}}],
        },
    ]


def test_vllms_multi_turn_benchmark_gets_an_array(tmp_path: Path) -> None:
    source, output = written(tmp_path / "talk.jsonl", ROWS[:2]), tmp_path / "talk.json"
    assert extract(source, output, form="vllm-multi-turn").rows == 1
    messages = [
        {"role": "user", "content": "be kind question 0"},
        {"role": "assistant", "content": "answer 0"},
        {"role": "user", "content": "question 1"},
        {"role": "assistant", "content": "answer 1"},
    ]
    assert json.loads(output.read_text()) == [{"id": "conversation-00000000", "messages": messages}]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [*ROWS[:2], row(2, 0, 0)],
            "[NOT_ALLOWED] SOURCE: line 3 continues another turn than the one before it\n"
            "    Conversations with branches have no place in this format.",
        ),
        (
            ROWS,
            "[NOT_ALLOWED] talk.jsonl line 3: the row has no answer, and this format tells how long an answer is by a "
            'text\n    Prepare with conversation.answers "scripted".',
        ),
        (
            [{"question": "q", "answer": "a", "max_tokens": 1}],
            "[MISSING_KEY] talk.jsonl line 1: the field 'sequence_index' is missing\n"
            "    This format is made from the full.jsonl of a data set of conversations.",
        ),
        (
            [row(0, 0, None, max_tokens=0)],
            "[WRONG_TYPE] talk.jsonl line 1: max_tokens says 0 (allowed: a whole number from 1 up)",
        ),
        ([], "[EMPTY_FILE] SOURCE: the file holds no rows"),
    ],
    ids=["branch", "no script", "no conversations", "no answer length", "empty"],
)
def test_what_has_no_place_is_refused_and_leaves_no_file(rows: list[Any], said: str, tmp_path: Path) -> None:
    source, output = written(tmp_path / "talk.jsonl", rows), tmp_path / "out.json"
    with pytest.raises(ArtifactError) as caught:
        extract(source, output, form="vllm-multi-turn")
    (problem,) = caught.value.problems
    assert f"[{problem.code}] {problem}" == said.replace("SOURCE", str(source))
    assert not list(tmp_path.glob("*out*"))
