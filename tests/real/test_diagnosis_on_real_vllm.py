"""What `run` says about a real vLLM that is not as the Scenario thinks: refusals, findings, and the counters' proof."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.doubles.fault_proxy import Seen, fault_proxy
from tests.real.real_server import SERVED_MODEL

from ais_bench_prefix_cache.cli import main

pytestmark = pytest.mark.real

EIGHT_GROUPS = {"target_hit_rate": 0.5, "groups": {"count": 8}}


@pytest.fixture
def refusal(
    prepare: Callable[[Path], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], tuple[set[str], str]]:
    """Prepares and runs a Scenario that the run must refuse before it sends a formal request."""

    def run(scenario: Path) -> tuple[set[str], str]:
        prepared = prepare(scenario)
        assert main(["run", "--scenario", str(scenario)]) == 3
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.splitlines()[-1].endswith("analysis.json is unchanged")
        assert json.loads(Path(prepared["analysis"]).read_text(encoding="utf-8"))["status"] == "prepared"
        return set(re.findall(r"^error \[(\w+)\]", output.err, re.MULTILINE)), output.err

    return run


def codes(judged: Any) -> set[str]:
    return {finding["code"] for finding in judged.analysis["findings"]}


def evidence(judged: Any, code: str) -> dict[str, Any]:
    (found,) = (finding["evidence"] for finding in judged.analysis["findings"] if finding["code"] == code)
    return dict(found)


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"tokenizer": {"block_size": 16}}, "WRONG_BLOCK_SIZE", "prompts hit as with blocks of 32"),
        ({"service": {"model": "large"}}, "MODEL_NOT_SERVED", "the model 'large' is not served (allowed: tiny)"),
        ({"service": {"api_key": ""}}, "UNAUTHORIZED", "(service.api_key is not configured)"),
        ({"service": {"api_key": "sk-wrong"}}, "UNAUTHORIZED", "(service.api_key was sent)"),
        ({"service": {"dp_size": 2}}, "HTTP_STATUS", "data_parallel_rank 1 is out of range [0, 1)"),
        (
            {"requests": {"input_length": {"mode": "fixed", "value": 8192}}},
            "MODEL_LENGTH",
            "the longest request needs 8194 tokens (input and output), max_model_len is 8192",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else "",
)
def test_a_scenario_that_does_not_fit(
    server: Any, scenario_for: Any, refusal: Any, changes: dict[str, Any], code: str, text: str
) -> None:
    found, stderr = refusal(scenario_for(server, **changes))
    assert found == {code}
    assert text in stderr
    assert "sk-wrong" not in stderr


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
def test_another_tokenizer(
    server: Any, scenario_for: Any, refusal: Any, other_tokenizer: Path, tiny_model_with_bos: Path
) -> None:
    found, stderr = refusal(scenario_for(server, tokenizer={"path": str(other_tokenizer)}))
    assert found == {"TOKENIZER_DIFFERS"}
    assert re.search(r"encodes the prompt of group-0 otherwise from token \d+ on: \d+ there, \d+ here", stderr)
    found, stderr = refusal(scenario_for(server, tokenizer={"path": str(tiny_model_with_bos)}))
    assert found == {"TOKENIZER_BOS"}
    assert "our tokenizer puts the special token 0 before the prompt of group-0" in stderr


@pytest.mark.parametrize("server", ["two-engines-one-api-process-bos"], indirect=True)
def test_a_bos_that_the_data_set_lacks(server: Any, scenario_for: Any, refusal: Any, tiny_model: Path) -> None:
    found, stderr = refusal(scenario_for(server, tokenizer={"path": str(tiny_model)}))
    assert found == {"TOKENIZER_BOS"}
    assert "the server puts the special token 0 before the prompt of group-0" in stderr


@pytest.mark.parametrize("server", ["two-engines"], indirect=True)
@pytest.mark.parametrize(
    ("service", "code", "text"),
    [
        ({"dp_size": 1}, "ENGINE_COUNT", "shows 2 engines (engine '0', engine '1'), service.dp_size is 1"),
        ({"engine_label_map": {"0": 1, "1": 0}}, "ENGINE_LABEL_MAP", "but a probe to rank 0 moved that engine"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else "",
)
def test_other_ranks(
    server: Any, scenario_for: Any, refusal: Any, service: dict[str, Any], code: str, text: str
) -> None:
    found, stderr = refusal(scenario_for(server, service=service))
    assert found == {code}
    assert text in stderr


@pytest.mark.parametrize(
    ("server", "code", "text"),
    [
        ("no-prefix-caching", "PREFIX_CACHING_OFF", "says that prefix caching is off"),
        ("no-log-stats", "SNAPSHOT_NO_ENGINE_METRICS", "start vLLM without --disable-log-stats"),
        ("bare", "RESET_NOT_OFFERED", "Start vLLM with VLLM_SERVER_DEV_MODE=1"),
    ],
    indirect=["server"],
)
def test_a_server_that_cannot_be_measured(server: Any, scenario_for: Any, refusal: Any, code: str, text: str) -> None:
    found, stderr = refusal(scenario_for(server))
    assert code in found
    assert text in stderr


@pytest.mark.parametrize("server", ["forty-blocks"], indirect=True)
def test_prefixes_that_do_not_fit_the_cache(server: Any, scenario_for: Any, refusal: Any) -> None:
    found, stderr = refusal(scenario_for(server, prefix_cache=EIGHT_GROUPS))
    assert found == {"CACHE_TOO_SMALL"}
    assert "holds 1280 tokens" in stderr


@pytest.mark.parametrize("server", ["bare"], indirect=True)
def test_an_assumed_empty_cache_and_responses_without_cached_tokens(server: Any, scenario_for: Any, judge: Any) -> None:
    judged = judge(scenario_for(server, service={"assume_empty_cache": True}))
    assert judged.counted_total == judged.planned_total
    assert [warning["code"] for warning in judged.analysis["warnings"]] == ["ASSUME_EMPTY_CACHE"]
    assert codes(judged) == {"RESET_REFUSED"}
    assert {cached for _, cached in judged.requests_seen.values()} == {None}
    assert judged.analysis["requests"]["compared"] == 0


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
def test_a_stranger_during_the_run(server: Any, scenario_for: Any, judge: Any) -> None:
    with fault_proxy(server.real.url) as proxy:

        def rule(seen: Seen) -> Any:
            if seen.formal and seen.number in (10, 20):
                send(server, f"A stranger asks {seen.number} times: " + "why? " * 40)
            return "pass"

        proxy.rule = rule
        judged = judge(scenario_for(server, service={"inference_url": f"{proxy.url}/v1/completions"}))
    assert codes(judged) == {"FOREIGN_TRAFFIC"}
    excess = judged.counted_total[0] - judged.planned_total[0]
    assert evidence(judged, "FOREIGN_TRAFFIC")["difference"] == excess > 0
    assert {warning["code"] for warning in judged.analysis["warnings"]} == {"QUERIES_MISMATCH"}
    assert judged.requests_seen == judged.requests_planned


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
def test_requests_that_were_sent_again(server: Any, scenario_for: Any, judge: Any) -> None:
    with fault_proxy(server.real.url) as proxy:
        proxy.rule = lambda seen: "cut" if seen.formal and seen.number in (10, 20) else "pass"
        scenario = scenario_for(
            server,
            service={"inference_url": f"{proxy.url}/v1/completions"},
            aisbench={"model": {"retry": 2}},
        )
        judged = judge(scenario)
    assert codes(judged) == {"RETRIES"}
    assert evidence(judged, "RETRIES")["retried_requests"] == 2


@pytest.mark.parametrize("server", ["two-engines"], indirect=True)
def test_a_reset_that_reaches_the_idle_rank_only(server: Any, scenario_for: Any, refusal: Any, judge: Any) -> None:
    with fault_proxy(server.real.url) as proxy, BusyAtEveryReset(server, rank=1) as busy:
        proxy.rule = busy.rule
        service = {
            "timeout_seconds": 30,
            "reset_url": f"{proxy.url}/reset_prefix_cache",
            "metrics_url": f"{proxy.url}/metrics",
        }
        found, stderr = refusal(scenario_for(server, service=service))
        assert found == {"RESET_REFUSED"}
        assert "requests are running there" in stderr
        judged = judge(scenario_for(server, service={**service, "assume_empty_cache": True}))
    assert codes(judged) == {"RESET_PARTIAL"}
    shown = evidence(judged, "RESET_PARTIAL")
    assert set(shown["hits_after"]) == {"1"}
    assert [warning["code"] for warning in judged.analysis["warnings"]] == ["ASSUME_EMPTY_CACHE"]
    assert judged.counted_total == judged.planned_total


@pytest.mark.parametrize("server", ["forty-blocks"], indirect=True)
@pytest.mark.parametrize(
    ("prefix_cache", "input_length"),
    [
        (EIGHT_GROUPS, {"mode": "fixed", "value": 320}),
        # The end of the one prefix is evicted while only shorter parts of it are shared.
        (
            {"target_hit_rate": 0.6, "order": {"strategy": "global_shuffle"}},
            {"mode": "truncated_normal", "min": 96, "max": 640, "mean": 300, "std": 120},
        ),
    ],
    ids=["eight-groups", "one-group"],
)
def test_a_cache_too_small_hits_what_was_predicted(
    server: Any, scenario_for: Any, judge: Any, prefix_cache: dict[str, Any], input_length: dict[str, Any]
) -> None:
    judged = judge(
        scenario_for(server, prefix_cache={"mode": "cold", **prefix_cache}, requests={"input_length": input_length})
    )
    assert codes(judged) == {"CACHE_TOO_SMALL"}
    shown = evidence(judged, "CACHE_TOO_SMALL")
    assert shown["capacity_tokens"] == 1280
    assert shown["predicted_hits"] == judged.counted_total[1] < judged.planned_total[1]
    assert shown["reachable_hit_rate"] == judged.counted_total[1] / judged.counted_total[0]


@pytest.mark.parametrize("server", ["forty-blocks"], indirect=True)
def test_preemptions(server: Any, scenario_for: Any, judge: Any) -> None:
    judged = judge(
        scenario_for(
            server,
            requests={"count": 16, "output_length": {"mode": "fixed", "value": 300}},
            aisbench={"model": {"batch_size": 8}},
        )
    )
    assert "PREEMPTIONS" in codes(judged)
    assert judged.counted_total[0] == judged.planned_total[0]


def send(server: Any, prompt: str, **options: Any) -> None:
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    body = {"model": SERVED_MODEL, "prompt": prompt, "max_tokens": 1, **options}
    httpx.post(
        f"{server.real.url}/v1/completions", json=body, headers=headers, timeout=60, trust_env=False
    ).raise_for_status()


class BusyAtEveryReset:
    """As the rule of a proxy before the reset endpoint: a rank generates tokens whenever a reset reaches the server.

    Each reset is held until a request of its own has brought tokens. That request goes on until the proxy sees the next
    request, or for its 8000 tokens: on no machine, quick or slow, is the rank idle when the reset arrives.
    """

    def __init__(self, server: Any, rank: int) -> None:
        self._body = {"model": SERVED_MODEL, "prompt": "On", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        self._headers = {"X-data-parallel-rank": str(rank)}
        self._client = httpx.Client(base_url=server.real.url, timeout=60, trust_env=False)
        self._running = ExitStack()

    def __enter__(self) -> BusyAtEveryReset:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
        self._client.close()

    def rule(self, seen: Seen) -> Any:
        self._running.close()
        if seen.path != "/reset_prefix_cache":
            return "pass"
        request = self._client.stream("POST", "/v1/completions", json=self._body, headers=self._headers)
        # An iterator that is forgotten closes its response, and vLLM aborts the request.
        self._lines = self._running.enter_context(request).iter_lines()
        # The first token may be here before the request is counted; the third is not.
        for _ in range(3):
            next(line for line in self._lines if line)
        return "pass"
