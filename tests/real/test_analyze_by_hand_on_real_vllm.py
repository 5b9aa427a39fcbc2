"""`analyze` on metrics saved by hand around one's own requests to a real vLLM, and the findings that this shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.real.real_server import SERVED_MODEL, settled

from ais_bench_prefix_cache.cli import main

pytestmark = pytest.mark.real


@dataclass
class ByHand:
    """A data set, a server, and what ``analyze`` says of requests sent between two looks at ``/metrics``."""

    server: Any
    directory: Path
    manifest: Path
    rows: list[dict[str, Any]]
    capsys: pytest.CaptureFixture[str]
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.server.api_key}"} if self.server.api_key else {}
        self.client = httpx.Client(base_url=self.server.real.url, headers=headers, timeout=120, trust_env=False)

    def reset(self) -> None:
        assert self.client.post("/reset_prefix_cache").json() == {"success": True}

    def send(self, prompt: str, rank: int | None = None, **options: Any) -> None:
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        body = {"model": SERVED_MODEL, "prompt": prompt, "max_tokens": 1, **options}
        self.client.post("/v1/completions", json=body, headers=headers).raise_for_status()

    def send_all(self) -> None:
        for row in self.rows:
            self.send(row["question"], row["dp_rank"])

    def save(self, name: str, *, while_busy: bool = False) -> Path:
        path = self.directory / name
        text = self._metrics() if while_busy else settled(self._metrics)
        path.write_text(text, encoding="utf-8")
        return path

    def _metrics(self) -> str:
        return self.client.get("/metrics").text

    def analyze(self, before: Path, after: Path, expect: int = 0) -> tuple[str, str]:
        """Standard output and standard error."""
        self.capsys.readouterr()
        arguments = ("analyze", "--manifest", self.manifest, "--baseline", before, "--after", after)
        assert main([str(argument) for argument in arguments]) == expect
        output = self.capsys.readouterr()
        return output.out, output.err

    def around(self, send: Callable[[], None]) -> dict[str, Any]:
        """``analysis.json`` of what ``send`` sends to an empty cache."""
        self.reset()
        before = self.save("before.prom")
        send()
        document: dict[str, Any] = json.loads(self.analyze(before, self.save("after.prom"))[0])
        return document


@pytest.fixture
def by_hand(
    scenario_for: Callable[..., Path],
    prepare: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Callable[..., ByHand]]:
    """``by_hand(server, **sections)``: a small cold data set for the server, and a client of its own."""
    made: list[ByHand] = []

    def make(server: Any, **sections: Any) -> ByHand:
        requests = {"count": 24, "input_length": {"mode": "range", "ranges": [{"min": 150, "max": 300, "count": 24}]}}
        paths = prepare(
            scenario_for(server, requests=requests, prefix_cache={"mode": "cold", "groups": {"count": 3}}, **sections)
        )
        rows = [json.loads(line) for line in Path(paths["full"]).read_text(encoding="utf-8").split("\n") if line]
        made.append(ByHand(server, tmp_path, Path(paths["manifest"]), rows, capsys))
        return made[-1]

    yield make
    for each in made:
        each.client.close()


def codes(document: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in document["findings"]]


def finding_codes(stderr: str) -> list[str]:
    return re.findall(r"^finding \[(\w+)\]", stderr, re.MULTILINE)


@pytest.mark.parametrize("server", ["one-engine", "two-engines"], indirect=True)
def test_theory_equals_the_counter(server: Any, by_hand: Callable[..., ByHand]) -> None:
    hand = by_hand(server)
    document = hand.around(hand.send_all)
    assert codes(document) == []
    for rank in range(server.engines):
        mine = [row for row in hand.rows if row["dp_rank"] == rank]
        counted = document["actual"]["by_dp"][str(rank)]
        assert counted["queries"] == sum(row["actual_input_tokens"] for row in mine)
        assert counted["hits"] == sum(row["theoretical_hit_tokens"] for row in mine) > 0


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
def test_traffic_that_was_not_planned(server: Any, by_hand: Callable[..., ByHand]) -> None:
    hand = by_hand(server)

    def with_a_stranger() -> None:
        hand.send_all()
        hand.send("What does a stranger ask?")

    def with_a_warm_up() -> None:
        hand.send(hand.rows[0]["question"])
        hand.send_all()

    def without_the_last() -> None:
        for row in hand.rows[:-1]:
            hand.send(row["question"])

    def past_the_cache() -> None:
        for index, row in enumerate(hand.rows):
            hand.send(row["question"], **({"prompt_logprobs": 1} if index in (7, 11) else {}))

    def two_answers_each() -> None:
        for row in hand.rows:
            hand.send(row["question"], n=2, temperature=1)

    def nobody_shares() -> None:
        for index, row in enumerate(hand.rows):
            hand.send(row["question"], cache_salt=f"salt {index}")

    def into_a_full_cache() -> None:
        hand.send_all()
        before = hand.save("full.prom")
        hand.send_all()
        document = json.loads(hand.analyze(before, hand.save("fuller.prom"))[0])
        assert codes(document) == ["CACHE_NOT_EMPTY"]

    assert codes(hand.around(with_a_stranger)) == ["FOREIGN_TRAFFIC"]
    assert codes(hand.around(with_a_warm_up)) == ["AISBENCH_WARMUPS"]
    assert codes(hand.around(without_the_last)) == ["REQUESTS_MISSING"]
    assert codes(hand.around(past_the_cache)) == ["CACHE_BYPASSED"]
    (twice,) = hand.around(two_answers_each)["findings"]
    assert (twice["code"], twice["evidence"]["whole_repetitions"]) == ("FOREIGN_TRAFFIC", 1)
    assert codes(hand.around(nobody_shares)) == ["HITS_MISSING"]
    hand.around(into_a_full_cache)


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
def test_snapshots_that_cannot_be_compared(server: Any, by_hand: Callable[..., ByHand]) -> None:
    hand = by_hand(server)
    before = hand.save("before.prom")
    _, no_traffic = hand.analyze(before, hand.save("after.prom"), expect=2)
    assert finding_codes(no_traffic) == ["NO_TRAFFIC"]
    hand.send_all()
    _, swapped = hand.analyze(hand.save("after.prom"), before, expect=2)
    assert "COUNTERS_FELL" in finding_codes(swapped)


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
def test_a_snapshot_while_a_request_runs(server: Any, by_hand: Callable[..., ByHand]) -> None:
    hand = by_hand(server)
    with running_request(hand.client):
        before = hand.save("before.prom", while_busy=True)
    hand.send_all()
    document = json.loads(hand.analyze(before, hand.save("after.prom"))[0])
    assert "SERVER_BUSY" in codes(document)


@contextmanager
def running_request(client: httpx.Client) -> Iterator[None]:
    """A request that generates tokens for the time of a block; then its connection is closed, and vLLM aborts it."""
    body = {"model": SERVED_MODEL, "prompt": "On and on", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        # An iterator that is forgotten closes its response.
        yield
        del lines


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
@pytest.mark.parametrize(("block_size", "code"), [(16, "SERVER_BLOCK_SIZE_MULTIPLE"), (48, "WRONG_BLOCK_SIZE")])
def test_another_block_size(server: Any, by_hand: Callable[..., ByHand], block_size: int, code: str) -> None:
    hand = by_hand(server, tokenizer={"block_size": block_size})
    document = hand.around(hand.send_all)
    assert codes(document) == [code]
    assert document["findings"][0]["evidence"]["server_block_size"] == {"0": 32}


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
def test_a_block_size_that_the_server_s_divides_is_no_finding_where_the_hits_are_as_planned(
    server: Any, by_hand: Callable[..., ByHand]
) -> None:
    hand = by_hand(server, tokenizer={"block_size": 64})
    assert codes(hand.around(hand.send_all)) == []


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
def test_a_bos_that_the_server_does_not_add(
    server: Any, by_hand: Callable[..., ByHand], tiny_model_with_bos: Path
) -> None:
    hand = by_hand(server, tokenizer={"path": str(tiny_model_with_bos)})
    document = hand.around(hand.send_all)
    assert codes(document) == ["TOKENS_MISSING"]
    assert document["actual"]["queries_difference"] == -len(hand.rows)


@pytest.mark.parametrize("server", ["two-engines-one-api-process-bos"], indirect=True)
def test_a_bos_that_the_data_set_lacks(server: Any, by_hand: Callable[..., ByHand], tiny_model: Path) -> None:
    hand = by_hand(server, tokenizer={"path": str(tiny_model)})
    document = hand.around(hand.send_all)
    assert codes(document) == ["TOKENS_ADDED"]
    assert document["actual"]["queries_difference"] == len(hand.rows)


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
def test_another_tokenizer(server: Any, by_hand: Callable[..., ByHand], other_tokenizer: Path) -> None:
    hand = by_hand(server, tokenizer={"path": str(other_tokenizer)})
    assert codes(hand.around(hand.send_all)) == ["TOKENIZER_DIFFERS"]


@pytest.mark.parametrize("server", ["two-engines"], indirect=True)
def test_ranks_that_are_mixed_up(server: Any, by_hand: Callable[..., ByHand]) -> None:
    hand = by_hand(server)
    planned = [row["dp_rank"] for row in hand.rows]

    def on_ranks(ranks: list[int]) -> Callable[[], None]:
        def send() -> None:
            for row, rank in zip(hand.rows, ranks, strict=True):
                hand.send(row["question"], rank)

        return send

    assert codes(hand.around(on_ranks([0] * len(planned)))) == ["RANK_HEADER_IGNORED"]
    assert codes(hand.around(on_ranks([1 - rank for rank in planned]))) == ["ENGINE_MAP_WRONG"]
    before, after = (hand.directory / name for name in ("before.prom", "after.prom"))
    for path in (before, after):
        text = path.read_text(encoding="utf-8")
        path.write_text("".join(line for line in text.splitlines(True) if 'engine="1"' not in line), encoding="utf-8")
    _, one_missing = hand.analyze(before, after, expect=2)
    assert finding_codes(one_missing) == ["RANKS_MISSING", "RANKS_MISSING"]


@pytest.mark.parametrize(
    ("server", "code"),
    [("no-prefix-caching", "PREFIX_CACHING_OFF"), ("no-log-stats", "NO_LOG_STATS")],
    indirect=["server"],
)
def test_a_server_that_does_not_count(server: Any, by_hand: Callable[..., ByHand], code: str) -> None:
    hand = by_hand(server)
    before = hand.save("before.prom")
    for row in hand.rows[:2]:
        hand.send(row["question"])
    stdout, stderr = hand.analyze(before, hand.save("after.prom"), expect=2)
    assert stdout == ""
    assert set(finding_codes(stderr)) == {code}
