"""Every metric family of the embedded server is one of a real vLLM 0.32 or SGLang 0.5.23, with its type and labels."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

# What `/metrics` of the embedded server tells of cache_config_info is a part of what vLLM tells.
INFORMATION = "vllm:cache_config_info"

# What this tool reads, or what people look at beside it.
NEEDED = {
    INFORMATION,
    "process_start_time_seconds",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_queries_created",
    "vllm:prefix_cache_hits",
    "vllm:external_prefix_cache_queries",
    "vllm:external_prefix_cache_hits",
    "vllm:prompt_tokens",
    "vllm:prompt_tokens_cached",
    "vllm:prompt_tokens_by_source",
    "vllm:generation_tokens",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_preemptions",
    "vllm:request_success",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
}


def families(text: str) -> dict[str, tuple[str, set[tuple[str, ...]]]]:
    """Family name → its type and the label names of its samples."""
    return {
        family.name: (
            family.type,
            {(sample.name, *sorted(sample.labels.keys() - {"le"})) for sample in family.samples},
        )
        for family in text_string_to_metric_families(text)
    }


@pytest.mark.parametrize(
    ("recorded", "ranks"),
    [
        ("01_vllm0320_single_fresh.prom", 1),
        ("02_vllm0320_single_active_sleeping.prom", 1),
        ("08_vllm0320_dp2_apiserver1_active.prom", 2),
    ],
)
def test_every_family_is_vllm_s(project_root: Path, deepseek_tokenizer_dir: Path, recorded: str, ranks: int) -> None:
    real = families((project_root / "tests" / "data" / "prom" / recorded).read_text(encoding="utf-8"))
    configuration = ServerConfiguration(tokenizer=deepseek_tokenizer_dir, model="tiny", data_parallel_size=ranks)
    with running_server(configuration) as url:
        httpx.post(f"{url}/v1/completions", json={"prompt": [1, 2, 3]}, trust_env=False).raise_for_status()
        response = httpx.get(f"{url}/metrics", trust_env=False)
    ours = families(response.text)
    assert ours.keys() >= NEEDED
    assert {name: described for name, described in ours.items() if name != INFORMATION} == {
        name: real[name] for name in ours if name != INFORMATION
    }
    [ours_labels], [real_labels] = ours[INFORMATION][1], real[INFORMATION][1]
    assert ours[INFORMATION][0] == real[INFORMATION][0]
    assert set(ours_labels) <= set(real_labels)
    assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"


def test_the_cache_is_described_for_each_engine(deepseek_tokenizer_dir: Path) -> None:
    configuration = ServerConfiguration(
        tokenizer=deepseek_tokenizer_dir, data_parallel_size=2, block_size=32, num_blocks=2000
    )
    with running_server(configuration) as url:
        text = httpx.get(f"{url}/metrics", trust_env=False).text
    [information] = [family for family in text_string_to_metric_families(text) if family.name == INFORMATION]
    described = [
        {
            name: sample.labels[name]
            for name in ("engine", "block_size", "kv_cache_size_tokens", "num_gpu_blocks", "enable_prefix_caching")
        }
        for sample in information.samples
    ]
    assert described == [
        {
            "engine": engine,
            "block_size": "32",
            "kv_cache_size_tokens": "64000",
            "num_gpu_blocks": "4000",
            "enable_prefix_caching": "True",
        }
        for engine in ("0", "1")
    ]


SGLANG_NEEDED = {
    *(f"sglang:{name}" for name in ("prompt_tokens", "cached_tokens", "generation_tokens", "num_requests")),
    *(f"sglang:{name}" for name in ("prefill_effective_tokens", "page_size", "num_pages", "max_total_num_tokens")),
    *(f"sglang:{name}" for name in ("context_len", "token_usage", "num_running_reqs", "num_queue_reqs")),
}


@pytest.mark.parametrize(
    ("recorded", "ranks"), [("32_sglang0523_active.prom", 1), ("34_sglang0523_dp2_active.prom", 2)]
)
def test_every_family_is_sglang_s(project_root: Path, deepseek_tokenizer_dir: Path, recorded: str, ranks: int) -> None:
    real = families((project_root / "tests" / "data" / "prom" / recorded).read_text(encoding="utf-8"))
    configuration = ServerConfiguration(
        tokenizer=deepseek_tokenizer_dir, engine="sglang", model="tiny", data_parallel_size=ranks, block_size=1
    )
    with running_server(configuration) as url:
        fresh = families(httpx.get(f"{url}/metrics", trust_env=False).text)
        for _ in range(2):
            body = {"prompt": [1, 2, 3], "max_tokens": 3 - ranks, "routed_dp_rank": 0}
            httpx.post(f"{url}/v1/completions", json=body, trust_env=False).raise_for_status()
        ours = families(httpx.get(f"{url}/metrics", trust_env=False).text)
    assert ours.keys() >= SGLANG_NEEDED
    assert ours == {name: real[name] for name in ours}
    # On a server just started the counters of the front end do not exist yet.
    name = {1: "31_sglang0523_fresh.prom", 2: "33_sglang0523_dp2_fresh.prom"}[ranks]
    started = families((project_root / "tests" / "data" / "prom" / name).read_text(encoding="utf-8"))
    assert {name for name in SGLANG_NEEDED if name in fresh} == {name for name in SGLANG_NEEDED if name in started}
