from __future__ import annotations

import json
import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.datasets.conversations.lengths_of_files import lengths_of_trace
from ais_bench_prefix_cache.datasets.traces.reading import read_trace

BLOCK = 16


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def trace_of(talks: list[list[tuple[int, int]]], system: int, seed: int) -> list[dict[str, Any]]:
    """Requests of conversations that run side by side: an id for each block of tokens put together here."""
    draw, fresh = random.Random(seed), count(1)
    ids: dict[tuple[int, ...], int] = {}
    prompts = [[-1] * system for _ in talks]
    places = [number for number, talk in enumerate(talks) for _ in talk]
    draw.shuffle(places)
    rows: list[dict[str, Any]] = []
    turns = [iter(talk) for talk in talks]
    for place in places:
        message, answer = next(turns[place])
        prompts[place] += [next(fresh) for _ in range(message)]
        prompt = prompts[place]
        blocks = [tuple(prompt[: end + BLOCK]) for end in range(0, len(prompt), BLOCK)]
        rows.append(
            {
                "timestamp": len(rows),
                "input_length": len(prompt),
                "output_length": answer,
                "hash_ids": [ids.setdefault(block, len(ids)) for block in blocks],
            }
        )
        prompts[place] = [*prompt, *(next(fresh) for _ in range(answer))]
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_conversations_of_a_trace_without_sessions_are_put_together(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    system = BLOCK * draw.randrange(0, 4)
    talks = [
        [
            (draw.randrange(1, 90) + (BLOCK if turn == 0 else 0), draw.randrange(1, 60))
            for turn in range(draw.randrange(1, 6))
        ]
        for _ in range(draw.randrange(2, 9))
    ]
    path = write_rows(tmp_path / "trace.jsonl", trace_of(talks, system, seed))
    found = lengths_of_trace(read_trace(path, trace_block_size=BLOCK))
    assert (found.system_prompt, sorted(found.turns)) == (system, sorted(talks))
