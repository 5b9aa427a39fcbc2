"""How the names of metrics are spelt, and which of them are read."""

from __future__ import annotations

import pytest

from ais_bench_prefix_cache.counters.names import MetricName, ServerFamily, is_read, says_which_server, split_name


@pytest.mark.parametrize(
    ("written", "family", "prefix", "name"),
    [
        ("vllm:prefix_cache_hits_total", "vllm", "vllm:", "prefix_cache_hits_total"),
        ("vllm_prefix_cache_hits_total", "vllm", "vllm_", "prefix_cache_hits_total"),
        ("vllm.prefix_cache_hits_total", "vllm", "vllm.", "prefix_cache_hits_total"),
        ("ray_vllm_prefix_cache_hits_total", "vllm", "ray_vllm_", "prefix_cache_hits_total"),
        ("kserve_vllm:prefix_cache_hits_total", "vllm", "kserve_vllm:", "prefix_cache_hits_total"),
        ("my.own.vllm.prefix_cache.hits.total", "vllm", "my.own.vllm.", "prefix_cache_hits_total"),
        ("sglang:cached_tokens_total", "sglang", "sglang:", "cached_tokens_total"),
        ("ray_sglang_cached_tokens_total", "sglang", "ray_sglang_", "cached_tokens_total"),
        ("lmdeploy:cached_tokens_total", "lmdeploy", "lmdeploy:", "cached_tokens_total"),
        ("vllm:router_vllm_hits", "vllm", "vllm:", "router_vllm_hits"),
    ],
)
def test_prefixes_are_told_from_names(written: str, family: ServerFamily, prefix: str, name: str) -> None:
    assert split_name(written) == MetricName(family, prefix, name)


@pytest.mark.parametrize("written", ["vllm", "vllm:", "myvllm:prefix_cache_hits_total", "prefix_cache_hits_total", ""])
def test_other_names_are_of_no_known_server(written: str) -> None:
    assert split_name(written) is None
    assert not is_read(written)


def test_whole_names_are_read() -> None:
    assert is_read("vllm:prefix_cache_hits_total")
    assert is_read("vllm:prefix_cache_hits")
    assert is_read("vllm:prefix_cache_hits_created")
    assert is_read("process_start_time_seconds")
    assert not is_read("vllm:prefix_cache_hits_total_more")
    assert not is_read("vllm:cached_tokens_total")


def test_the_name_of_a_histogram_says_which_server_it_is_and_is_not_read() -> None:
    assert says_which_server("vllm:e2e_request_latency_seconds_bucket")
    assert not is_read("vllm:e2e_request_latency_seconds_bucket")
    assert says_which_server("python_info")
    assert not says_which_server("http_requests_total")
