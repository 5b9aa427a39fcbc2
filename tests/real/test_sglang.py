"""Our tool and our model of the cache on a real SGLang: theory equals its counters, request by request."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.doubles.radix_requests import run_alone
from tests.real.conftest import TWO_SGLANG_RANKS, Judged, JudgedServer, Texts
from tests.real.real_server import settled
from tests.real.real_sglang import real_sglang

from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = [pytest.mark.real, pytest.mark.sglang, pytest.mark.timeout(1800)]

RESET = "/flush_cache"


class Kind(NamedTuple):
    page_size: int
    chunk_size: int
    cache_tokens: int
    ranks: int = 1


KINDS = {
    # The caches are large enough for a run of 40 requests, and too small for the requests with evictions.
    "page-1": Kind(1, 4096, cache_tokens=6144),
    "page-16": Kind(16, 256, cache_tokens=6144),
    TWO_SGLANG_RANKS: Kind(16, 4096, cache_tokens=65536, ranks=2),
}


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Callable[[str], JudgedServer]]:
    """The server of a kind, started when it is first wanted, for all tests of this process."""
    running: dict[str, JudgedServer] = {}
    with ExitStack() as stack:

        def serve(name: str) -> JudgedServer:
            if name not in running:
                kind = KINDS[name]
                log = tmp_path_factory.mktemp("sglang") / "server.log"
                real = stack.enter_context(
                    real_sglang(
                        tiny_model,
                        log,
                        page_size=kind.page_size,
                        ranks=kind.ranks,
                        max_tokens=kind.cache_tokens,
                        options=("--skip-server-warmup", "--chunked-prefill-size", str(kind.chunk_size)),
                    )
                )
                running[name] = JudgedServer(real, tiny_model, kind.ranks, kind.page_size, reset_path=RESET)
            return running[name]

        yield serve


def counter(text: str, name: str, **labels: str) -> int:
    """The sum of a counter's series with these labels; 0 where there is none yet."""
    total = 0
    for shown, value in re.findall(rf"^sglang:{name}_total{{(.*)}} (\S+)$", text, re.MULTILINE):
        if all(f'{label}="{wanted}"' in shown for label, wanted in labels.items()):
            total += int(float(value))
    return total


def by_port(before: Texts, after: Texts) -> dict[int, tuple[int, int]]:
    """Prompt and cached tokens between two looks; the position of a port is its rank."""
    befores, afters = ([texts] if isinstance(texts, str) else texts for texts in (before, after))
    return {
        rank: (
            counter(late, "prompt_tokens") - counter(early, "prompt_tokens"),
            counter(late, "cached_tokens") - counter(early, "cached_tokens"),
        )
        for rank, (early, late) in enumerate(zip(befores, afters, strict=True))
    }


def by_rank(before: Texts, after: Texts) -> dict[int, tuple[int, int]]:
    """The same for two ranks behind one port, from what their schedulers count."""
    assert isinstance(before, str) and isinstance(after, str)

    def moved(rank: int, mode: str) -> int:
        labels = {"dp_rank": str(rank), "mode": mode}
        late, early = (counter(text, "prefill_effective_tokens", **labels) for text in (after, before))
        return late - early

    return {rank: (moved(rank, "input") + moved(rank, "device_hit"), moved(rank, "device_hit")) for rank in (0, 1)}


def assert_exact(judged: Judged) -> None:
    if None in judged.planned:  # The server's balancer chooses the ranks.
        assert judged.counted_total == judged.planned_total
    else:
        assert judged.counted == judged.planned
    assert judged.requests_seen == judged.requests_planned


def test_a_server_just_started_is_understood_and_a_warmup_run_is_exact(
    sglang: Callable[[str], JudgedServer], scenario_for: Callable[..., Path], judge: Callable[..., Judged]
) -> None:
    server = sglang("page-1")
    assert "sglang:prompt_tokens_total" not in server.real.metrics()
    assert_exact(judge(scenario_for(server), by_port))


@pytest.mark.parametrize("batch_size", [1, 8, 32])
def test_cold_lanes_wait_until_their_predecessor_is_in_the_tree(
    sglang: Callable[[str], JudgedServer],
    scenario_for: Callable[..., Path],
    judge: Callable[..., Judged],
    batch_size: int,
) -> None:
    """A prompt is in the tree before its first token leaves the server, which is when the lane goes on."""
    server = sglang("page-1")
    scenario = scenario_for(server, prefix_cache={"mode": "cold"}, aisbench={"model": {"batch_size": batch_size}})
    assert_exact(judge(scenario, by_port))


def test_two_ports_are_two_ranks(
    sglang: Callable[[str], JudgedServer], scenario_for: Callable[..., Path], judge: Callable[..., Judged]
) -> None:
    first = sglang("page-1")
    second = sglang("page-16")
    urls = [server.real.url for server in (first, second)]
    scenario = scenario_for(
        first,
        tokenizer={"block_size": 16},
        prefix_cache={"mode": "cold"},
        service={
            "inference_url": [f"{url}/v1/completions" for url in urls],
            "metrics_url": [f"{url}/metrics" for url in urls],
            "reset_url": [url + RESET for url in urls],
            "dp_size": 2,
        },
    )
    assert_exact(judge(scenario, by_port))


@pytest.mark.parametrize(("name", "seed"), [("page-1", 1), ("page-16", 2)])
def test_hits_with_evictions_are_those_of_the_cache_model(
    sglang: Callable[[str], JudgedServer], name: str, seed: int
) -> None:
    """550 requests one at a time: prefixes, repeats and continuations of what was sent and answered before."""
    server, kind = sglang(name), KINDS[name]
    random_numbers = random.Random(seed)
    small = RadixCache(kind.page_size, kind.cache_tokens // kind.page_size)
    unbounded = RadixCache(kind.page_size)
    past: list[list[int]] = []
    differing, telling = [], 0
    with httpx.Client(base_url=server.real.url, timeout=60, trust_env=False) as client:
        assert client.post(RESET).status_code == 200
        for number in range(550):
            if past and random_numbers.random() < 0.75:
                base = random_numbers.choice(past[-12:] if random_numbers.random() < 0.8 else past)
                more = random_numbers.choice([0, 0, 1, 5, 20, 100, 200])
                prompt = base[: random_numbers.randint(1, len(base))]
            else:
                prompt, more = [], random_numbers.randint(1, 700)
            prompt = [*prompt, *(random_numbers.randrange(1000, 9000) for _ in range(more))][:1500]
            sampling = {"max_new_tokens": random_numbers.choice([1, 1, 1, 2, 3, 8, 18]), "ignore_eos": True}
            answer = client.post("/generate", json={"input_ids": prompt, "sampling_params": sampling}).json()
            seen, output = answer["meta_info"]["cached_tokens"], answer["output_ids"]
            if run_alone(small, prompt, output, chunk=kind.chunk_size) != seen:
                differing.append(number)
            telling += run_alone(unbounded, prompt, output) != seen
            past.append(prompt + output)
    assert differing == []
    assert small.evicted_tokens > 50_000
    assert telling > 30, "evictions must have mattered"


@pytest.mark.parametrize("kind", [TWO_SGLANG_RANKS])
@pytest.mark.parametrize("mode", ["warmup", "cold"])
def test_two_ranks_behind_one_port_are_told_apart(
    sglang: Callable[[str], JudgedServer],
    scenario_for: Callable[..., Path],
    judge: Callable[..., Judged],
    mode: str,
    kind: str,
) -> None:
    server = sglang(kind)
    judged = judge(scenario_for(server, prefix_cache={"mode": mode}), by_rank)
    assert_exact(judged)
    before, after = (
        judged.analysis["runtime"][name]["raw_prometheus"] for name in ("metrics_baseline", "metrics_after")
    )
    assert by_port(before, after)[0] == judged.counted_total


CONVERSATION: dict[str, Any] = {
    "count": 8,
    "turns": {"mode": "uniform", "min": 2, "max": 4},
    "system_prompts": {"count": 2, "length": {"mode": "explicit", "values": [167, 90]}},
    "first_message_length": {"mode": "uniform", "min": 1, "max": 60},
    "message_length": {"mode": "uniform", "min": 1, "max": 49},
    "answer_length": {"mode": "uniform", "min": 1, "max": 30},
}


@pytest.mark.parametrize(
    ("kind", "answers", "batch_size", "stream"),
    [
        ("page-1", "generated", 1, False),
        ("page-1", "scripted", 8, True),
        ("page-16", "generated", 8, True),
        ("page-16", "scripted", 1, False),
        (TWO_SGLANG_RANKS, "generated", 8, True),
    ],
)
def test_every_turn_of_conversations_hits_what_is_planned(
    sglang: Callable[[str], JudgedServer],
    scenario_for: Callable[..., Path],
    judge: Callable[..., Judged],
    kind: str,
    answers: str,
    batch_size: int,
    stream: bool,
) -> None:
    """Answers are cached, too, but for their last token; SGLang returns their ids as vLLM does."""
    server = sglang(kind)
    model = {"batch_size": batch_size, "stream": stream, "generation_kwargs": {"temperature": 1}}
    scenario = scenario_for(server, conversation={**CONVERSATION, "answers": answers}, aisbench={"model": model})
    judged = judge(scenario, by_rank if server.engines > 1 else by_port)
    assert_exact(judged)
    assert judged.analysis["findings"] == []
    assert judged.analysis["warnings"] == []


CALLS: list[dict[str, Any]] = [
    {"prompt": list(range(1000, 1300))},
    {"prompt": list(range(1000, 1300)), "max_tokens": 3},
    {"prompt": list(range(1000, 1200)), "stream": True, "stream_options": {"include_usage": True}},
    {"prompt": list(range(2000, 2300)), "n": 2, "temperature": 0.7},
    {"prompt": [list(range(1000, 1050)), list(range(3000, 3060))]},
    {"prompt": list(range(1000, 1300)), "cache_salt": "a"},
    {"prompt": list(range(1000, 1300)), "cache_salt": "a"},
    {"prompt": [7, 8, 9], "model": "another"},
    {"prompt": ""},
    {"prompt": [1] * 9000},
    {"prompt": [1] * 8000, "max_tokens": 1000},
    {"prompt": [7, 8], "headers": {"X-data-parallel-rank": "7"}},
    {"prompt": [7, 8], "headers": {"X-data-parallel-rank": "x"}},
    {"prompt": list(range(4000, 4100)), "routed_dp_rank": 1},
    {"prompt": list(range(4000, 4100)), "headers": {"X-data-parallel-rank": "1"}},
    {"prompt": list(range(4000, 4100)), "headers": {"X-data-parallel-rank": "0"}},
]


def answers_of(url: str) -> list[Any]:
    """What a server makes of :data:`CALLS`, without texts and times; and what it counted meanwhile."""
    seen: list[Any] = []
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        seen += [client.post(RESET).status_code, client.get(RESET).text, client.get("/version").status_code]
        before = settled(lambda: client.get("/metrics").text)
        for call in CALLS:
            headers = call.get("headers", {"X-data-parallel-rank": "0"} if "routed_dp_rank" not in call else {})
            body = {"model": "tiny", "max_tokens": 1, "ignore_eos": True} | call
            body.pop("headers", None)
            response = client.post("/v1/completions", json=body, headers=headers)
            if body.get("stream"):
                lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line != "data: [DONE]"]
                events = [json.loads(line) for line in lines if line]
                seen.append([(sorted(event), event["choices"][:0], event["usage"]) for event in events])
            else:
                answer = response.json()
                seen.append([response.status_code, answer.get("usage"), answer.get("message"), sorted(answer)])
        after = settled(lambda: client.get("/metrics").text)
        for name in ("prompt_tokens", "cached_tokens", "num_requests"):
            seen.append((name, counter(after, name) - counter(before, name)))
        seen.append(by_rank(before, after))
        for path in ("/tokenize", "/detokenize"):
            said = client.post(path, json={"prompt": "Hello there", "tokens": [100, 200]}).json()
            seen.append(sorted(said))
        seen.append([client.get(path).status_code for path in ("/server_info", "/model_info", "/health_generate")])
    return seen


@pytest.mark.parametrize("kind", [TWO_SGLANG_RANKS])
def test_the_embedded_server_answers_and_counts_as_the_real_one(
    sglang: Callable[[str], JudgedServer], tiny_model: Path, kind: str
) -> None:
    server = sglang(kind)
    configuration = ServerConfiguration(
        tokenizer=tiny_model,
        engine="sglang",
        model="tiny",
        block_size=16,
        num_blocks=4096,
        data_parallel_size=2,
        max_model_len=8192,
        max_num_batched_tokens=4096,
        prefill_tokens_per_second=None,
        decode_tokens_per_second=None,
    )
    with running_server(configuration) as url:
        ours = answers_of(url)
    assert ours == answers_of(server.real.url)
