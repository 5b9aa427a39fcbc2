"""Real routers before two embedded servers: warm-up runs end exact, and ranks that a router does not keep are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.real.conftest import CountedBetween, Judged, JudgedServer, vllm_counted
from tests.real.real_server import SERVED_MODEL, free_port, started
from tests.real.real_sglang import sglang_python
from tests.real.test_sglang import RESET, by_port

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = [pytest.mark.real, pytest.mark.sglang]

ROUTERS: dict[str, tuple[tuple[str, ...], str, CountedBetween]] = {
    "sglang": (("sglang-router", "launch"), RESET, by_port),
    "vllm": (("vllm-router",), "/reset_prefix_cache", vllm_counted),
}
"""By the servers behind: the command, their reset, and what they count."""


@contextmanager
def routed(
    engine: Any, tokenizer: Path, log: Path, policy: str = "cache_aware"
) -> Iterator[tuple[JudgedServer, dict[str, Any]]]:
    """A router, and what a Scenario says of it and of the two servers behind it."""
    (program, *words), reset, _ = ROUTERS[engine]
    configuration = ServerConfiguration(
        tokenizer=tokenizer,
        engine=engine,
        model=SERVED_MODEL,
        block_size=16,
        prefill_tokens_per_second=None,
        decode_tokens_per_second=None,
    )
    with running_server(configuration) as first, running_server(configuration) as second:
        urls, port = [first, second], free_port()
        command = [
            *(str(sglang_python().with_name(program)), *words, "--host", "127.0.0.1", "--port", str(port)),
            *("--prometheus-port", str(free_port()), "--policy", policy, "--worker-urls", *urls),
        ]
        with started(command, {}, port, log) as router:
            service = {
                "inference_url": [f"{url}/v1/completions" for url in urls],
                "metrics_url": [f"{url}/metrics" for url in urls],
                "reset_url": [url + reset for url in urls],
                "router_url": f"{router.url}/v1/completions",
            }
            yield JudgedServer(router, tokenizer, engines=2, block_size=16), service


@pytest.mark.parametrize("engine", ROUTERS)
def test_a_warm_up_run_through_a_router_ends_exact_and_a_cold_one_is_found_out(
    engine: str,
    tiny_model: Path,
    scenario_for: Callable[..., Path],
    judge: Callable[..., Judged],
    tmp_path: Path,
) -> None:
    *_, counted = ROUTERS[engine]
    groups = {"groups": {"count": 4}}
    with routed(engine, tiny_model, tmp_path / "router.log") as (server, service):
        warm = judge(scenario_for(server, service=service, prefix_cache=groups), counted)
        cold = judge(scenario_for(server, service=service, prefix_cache={"mode": "cold", **groups}), counted)
    assert warm.counted_total == warm.planned_total
    assert warm.requests_seen == warm.requests_planned
    assert warm.analysis["findings"] == []

    assert cold.counted_total[0] == cold.planned_total[0]
    (finding,) = cold.analysis["findings"]
    assert finding["code"] == "RANK_HEADER_IGNORED"
    # The proof of what the finding says: requests that had nothing to hit on their rank hit.
    shown = finding["evidence"]
    assert "counted_queries" in shown or shown["lane_starts_hit"] == sum(
        planned == 0 < cold.requests_seen[index][1] for index, (_, planned) in cold.requests_planned.items()
    )


CONVERSATION: dict[str, Any] = {
    "count": 10,
    "turns": {"mode": "fixed", "value": 3},
    "system_prompts": {"count": 2, "length": {"mode": "fixed", "value": 160}},
    "first_message_length": {"mode": "uniform", "min": 20, "max": 60},
    "message_length": {"mode": "uniform", "min": 10, "max": 40},
    "answer_length": {"mode": "uniform", "min": 5, "max": 30},
    "routing": "free",
}
# SGLang's router takes no token ids for a prompt.
FORMS = {"sglang": {"form": "text", "answers": "scripted"}, "vllm": {"form": "token_ids", "answers": "generated"}}


@pytest.mark.parametrize("policy", ["round_robin", "cache_aware"])
@pytest.mark.parametrize("engine", ROUTERS)
def test_what_a_router_does_to_conversations_is_counted_against_their_staying(
    engine: str,
    policy: str,
    tiny_model: Path,
    scenario_for: Callable[..., Path],
    judge: Callable[..., Judged],
    tmp_path: Path,
) -> None:
    *_, counted = ROUTERS[engine]
    with routed(engine, tiny_model, tmp_path / "router.log", policy) as (server, service):
        model = {"batch_size": 4, "stream": True}
        scenario = scenario_for(
            server, service=service, conversation={**CONVERSATION, **FORMS[engine]}, aisbench={"model": model}
        )
        judged = judge(scenario, counted)
    analysis = judged.analysis
    theory, (tokens, hits) = analysis["theory"], judged.counted_total
    assert tokens == theory["input_tokens"] == sum(queries for queries, _ in judged.requests_seen.values())
    assert hits == sum(seen for _, seen in judged.requests_seen.values())
    assert theory["range"]["least_hit_tokens"] <= hits <= theory["range"]["most_hit_tokens"]
    (finding,) = analysis["findings"]
    assert (finding["code"], finding["severity"]) == ("FREE_ROUTING", "note")
    if policy == "round_robin":
        assert hits < theory["hit_tokens"], "turns on the other rank must have lost their histories"
