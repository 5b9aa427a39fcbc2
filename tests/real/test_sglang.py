"""Our tool and our model of the cache on a real SGLang: theory equals its counters, request by request."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.doubles.radix_requests import run_alone
from tests.real.conftest import Judged, JudgedServer, SharedServer, Texts
from tests.real.real_sglang import real_sglang

from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = [pytest.mark.real, pytest.mark.sglang, pytest.mark.timeout(1800)]

RESET = "/flush_cache"


@pytest.fixture(scope="module")
def sglang(
    tmp_path_factory: pytest.TempPathFactory, shared_server: SharedServer, tiny_model: Path
) -> Iterator[Callable[..., JudgedServer]]:
    """Starts a server; those of a test before that are not wanted any more are stopped."""
    shared_server.stop()
    running: dict[Any, tuple[ExitStack, JudgedServer]] = {}

    def start(*, keep: tuple[str, ...] = (), name: str, page_size: int = 1, **options: Any) -> JudgedServer:
        for other in [key for key in running if key not in (name, *keep)]:
            running.pop(other)[0].close()
        if name not in running:
            stack = ExitStack()
            log = tmp_path_factory.mktemp("sglang") / "server.log"
            real = stack.enter_context(real_sglang(tiny_model, log, page_size=page_size, **options))
            ranks = options.get("ranks", 1)
            running[name] = stack, JudgedServer(real, tiny_model, ranks, page_size, reset_path=RESET)
        return running[name][1]

    yield start
    for stack, _ in running.values():
        stack.close()


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
    planned = {rank or 0: tokens for rank, tokens in judged.planned.items()}
    assert judged.counted == planned
    assert judged.requests_seen == judged.requests_planned


@pytest.mark.parametrize(("page", "chunk", "seed"), [(1, 4096, 1), (16, 256, 2)])
def test_hits_with_evictions_are_those_of_the_cache_model(
    sglang: Callable[..., JudgedServer], page: int, chunk: int, seed: int
) -> None:
    """550 requests one at a time: prefixes, repeats and continuations of what was sent and answered before."""
    pages = 3008 // page
    server = sglang(
        name=f"small-{page}",
        page_size=page,
        max_tokens=pages * page,
        options=("--chunked-prefill-size", str(chunk)),
    )
    random_numbers = random.Random(seed)
    small, unbounded = RadixCache(page, pages), RadixCache(page)
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
            sampling = {"max_new_tokens": random_numbers.choice([1, 1, 2, 3, 8, 17, 40]), "ignore_eos": True}
            answer = client.post("/generate", json={"input_ids": prompt, "sampling_params": sampling}).json()
            seen, output = answer["meta_info"]["cached_tokens"], answer["output_ids"]
            if run_alone(small, prompt, output, chunk=chunk) != seen:
                differing.append(number)
            telling += run_alone(unbounded, prompt, output) != seen
            past.append(prompt + output)
    assert differing == []
    assert small.evicted_tokens > 50_000
    assert telling > 30, "evictions must have mattered"


def test_a_server_just_started_is_understood_and_a_warmup_run_is_exact(
    sglang: Callable[..., JudgedServer], scenario_for: Callable[..., Path], judge: Callable[..., Judged]
) -> None:
    server = sglang(name="one", options=("--skip-server-warmup",))
    assert "sglang:prompt_tokens_total" not in server.real.metrics()
    assert_exact(judge(scenario_for(server), by_port))


@pytest.mark.parametrize("batch_size", [1, 8, 32])
def test_cold_lanes_wait_until_their_predecessor_is_in_the_tree(
    sglang: Callable[..., JudgedServer],
    scenario_for: Callable[..., Path],
    judge: Callable[..., Judged],
    batch_size: int,
) -> None:
    """A prompt is in the tree before its first token leaves the server, which is when the lane goes on."""
    server = sglang(name="one", options=("--skip-server-warmup",))
    scenario = scenario_for(server, prefix_cache={"mode": "cold"}, aisbench={"model": {"batch_size": batch_size}})
    assert_exact(judge(scenario, by_port))


def test_two_ports_are_two_ranks(
    sglang: Callable[..., JudgedServer], scenario_for: Callable[..., Path], judge: Callable[..., Judged]
) -> None:
    first = sglang(name="one", options=("--skip-server-warmup",))
    second = sglang(name="two", keep=("one",))
    urls = [server.real.url for server in (first, second)]
    scenario = scenario_for(
        first,
        prefix_cache={"mode": "cold"},
        service={
            "inference_url": [f"{url}/v1/completions" for url in urls],
            "metrics_url": [f"{url}/metrics" for url in urls],
            "reset_url": [url + RESET for url in urls],
            "dp_size": 2,
        },
    )
    assert_exact(judge(scenario, by_port))


@pytest.mark.parametrize("mode", ["warmup", "cold"])
def test_two_ranks_behind_one_port_are_told_apart(
    sglang: Callable[..., JudgedServer], scenario_for: Callable[..., Path], judge: Callable[..., Judged], mode: str
) -> None:
    server = sglang(name="ranks", page_size=16, ranks=2)
    judged = judge(scenario_for(server, prefix_cache={"mode": mode}), by_rank)
    assert_exact(judged)
    before, after = (
        judged.analysis["runtime"][name]["raw_prometheus"] for name in ("metrics_baseline", "metrics_after")
    )
    assert by_port(before, after)[0] == judged.counted_total


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
        before = client.get("/metrics").text
        for call in CALLS:
            headers = call.get("headers", {"X-data-parallel-rank": "0"} if "routed_dp_rank" not in call else {})
            body = {"model": "tiny", "max_tokens": 1, "ignore_eos": True} | call
            body.pop("headers", None)
            response = client.post("/v1/completions", json=body, headers=headers)
            if body.get("stream"):
                seen.append([re.sub(r'"(id|created|text)":[^,]*,', "", line) for line in response.text.splitlines()])
            else:
                answer = response.json()
                seen.append([response.status_code, answer.get("usage"), answer.get("message"), sorted(answer)])
        after = client.get("/metrics").text
        for name in ("prompt_tokens", "cached_tokens", "num_requests"):
            seen.append((name, counter(after, name) - counter(before, name)))
        seen.append(by_rank(before, after))
        for path in ("/tokenize", "/detokenize"):
            said = client.post(path, json={"prompt": "Hello there", "tokens": [100, 200]}).json()
            seen.append(sorted(said))
        seen.append([client.get(path).status_code for path in ("/server_info", "/model_info", "/health_generate")])
    return seen


def test_the_embedded_server_answers_and_counts_as_the_real_one(
    sglang: Callable[..., JudgedServer], tiny_model: Path
) -> None:
    server = sglang(name="ranks", page_size=16, ranks=2)
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
