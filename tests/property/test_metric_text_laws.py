"""Laws of reading metric texts: any text is a snapshot or a SnapshotError; differences add up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest
from tests.doubles.metric_texts import engine, snapshot, vllm_text

from ais_bench_prefix_cache.counters.difference import difference
from ais_bench_prefix_cache.counters.exposition import decode_exposition, parse_exposition
from ais_bench_prefix_cache.counters.ranks import read_engine_loads
from ais_bench_prefix_cache.foundation.errors import SnapshotError

TEXTS = sorted((Path(__file__).parent.parent / "data" / "prom").iterdir())
PIECES = [
    '"',
    "{",
    "}",
    ",",
    "\\",
    "\n",
    "\r",
    " ",
    "#",
    "NaN",
    "-",
    "1e999",
    "\ufeff",
    "engine",
    "_total",
    "\x00",
    "é",
]


def read_or_refuse(text: str, dp_size: int) -> None:
    """Anything but a SnapshotError would fail the test."""
    for read in (
        lambda: snapshot(text, dp_size=dp_size),
        lambda: snapshot(text, text, dp_size=dp_size),
        lambda: read_engine_loads([text], dp_size=dp_size),
    ):
        try:
            read()
        except SnapshotError as error:
            assert str(error)


@settings(max_examples=300, deadline=None)
@given(text=st.text() | st.lists(st.sampled_from(["vllm:prefix_cache_queries_total", "1", *PIECES])).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    read_or_refuse(text, 1)


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(TEXTS), seed=st.integers(0, 2**32), dp_size=st.integers(1, 4))
def test_any_damaged_real_text_is_read_or_refused(path: Path, seed: int, dp_size: int) -> None:
    chance = random.Random(seed)
    lines = [
        line for line in path.read_bytes().decode().split("\n") if "prefix_cache" in line or chance.random() < 0.05
    ]
    text = "\n".join(lines)
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(text) + 1)
        how = chance.randrange(3)
        if how == 0:
            text = text[:place] + chance.choice(PIECES) + text[place:]
        elif how == 1:
            text = text[:place] + text[place + chance.randrange(1, 9) :]
        else:
            text = text[:place]
    read_or_refuse(text, dp_size)


@settings(max_examples=100, deadline=None)
@given(data=st.binary())
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        text = decode_exposition(data, "t")
    except SnapshotError as error:
        assert str(error).startswith("t: byte ")
    else:
        assert isinstance(text, str)


@settings(max_examples=200, deadline=None)
@given(
    labels=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4, unique=True),
    values=st.lists(st.integers(0, 2**53), min_size=4, max_size=4),
)
def test_what_prometheus_client_writes_is_read_back(labels: list[str], values: list[int]) -> None:
    registry = CollectorRegistry()
    counter = Counter("c", "help", ["engine"], registry=registry)
    for label, value in zip(labels, values, strict=False):
        counter.labels(label).inc(value)
    samples = parse_exposition(generate_latest(registry).decode(), {"c_total"}.__contains__, "t").samples["c_total"]
    assert {s.labels["engine"]: s.value for s in samples} == dict(zip(labels, map(float, values), strict=False))


counts = st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)).map(lambda pair: (max(pair), min(pair)))


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.lists(counts, min_size=2, max_size=2), min_size=2, max_size=2))
def test_differences_add_up(steps: list[list[tuple[int, int]]]) -> None:
    """From the first look to the last equals the sum over the looks in between, rank by rank."""
    looks = [[(5, 1), (7, 0)]]
    for step in steps:
        looks.append([(q + dq, h + dh) for (q, h), (dq, dh) in zip(looks[-1], step, strict=True)])
    snapshots = [snapshot(vllm_text(*(engine(*c) for c in look)), dp_size=2) for look in looks]
    moved = [any(queries for queries, _ in step) for step in steps]
    if not all(moved):
        quiet = moved.index(False)
        with pytest.raises(SnapshotError, match="no data"):
            difference(snapshots[quiet], snapshots[quiet + 1])
        return
    whole = difference(snapshots[0], snapshots[2])
    parts = [difference(snapshots[i], snapshots[i + 1]) for i in range(2)]
    for rank in range(2):
        assert whole.by_rank[rank].queries == sum(part.by_rank[rank].queries for part in parts)
        assert whole.by_rank[rank].hits == sum(part.by_rank[rank].hits for part in parts)
    assert whole.hits <= whole.queries
