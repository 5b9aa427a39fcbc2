"""What a server tells becomes a Scenario that loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.commands.init_command import scenario_document
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import FixedLength
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.discovery import DiscoveredServer, discover, server_root, service_config_of

METRICS = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="1",num_gpu_blocks="100"} 1.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="big/model"} 0.0
vllm:prefix_cache_queries_total{engine="1",model_name="big/model"} 0.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="big/model"} 0.0
vllm:prefix_cache_hits_total{engine="1",model_name="big/model"} 0.0
"""


def answer(request: httpx.Request) -> httpx.Response:
    if request.url.path == "/v1/models":
        return httpx.Response(200, json={"data": [{"id": "big/model", "max_model_len": 900}, {"id": "lora"}]})
    if request.url.path == "/metrics":
        return httpx.Response(200, text=METRICS, headers={"content-type": "text/plain"})
    return httpx.Response(404)


def discovered() -> DiscoveredServer:
    config = service_config_of("http://h:8000", "", 1.0)
    with ServiceClient(config, transport=httpx.MockTransport(answer)) as client:
        return discover(client)


def test_model_engines_and_block_size() -> None:
    assert discovered() == DiscoveredServer("http://h:8000", "big/model", 900, "vllm", 2, 32, ("lora",))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_ranks_behind_one_port_are_counted_before_any_request(
    engine: Any, ranks: int, qwen3_tokenizer_dir: Path
) -> None:
    configuration = ServerConfiguration(tokenizer=qwen3_tokenizer_dir, engine=engine, data_parallel_size=ranks)
    with (
        running_server(configuration) as url,
        ServiceClient(service_config_of(url, "", 10.0)) as client,
    ):
        found = discover(client)
        client.complete("Hello there")
        assert discover(client) == found
    assert (found.family, found.engines, found.block_size) == (engine, ranks, 16)


@pytest.mark.parametrize(
    "url",
    [
        "http://h:8000",
        "http://h:8000/",
        "http://h:8000/v1",
        "http://h:8000/v1/",
        "http://h:8000/v1/completions",
        "http://h:8000/v1/chat/completions",
    ],
)
def test_any_url_of_the_server_will_do(url: str) -> None:
    assert server_root(url) == "http://h:8000"


def test_the_scenario_loads(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    document = scenario_document(discovered(), tokenizer=tmp_path / "tok", corpus=None)
    path.write_text(json.dumps(document), encoding="utf-8")
    scenario = load_scenario(path, environment={})
    assert (scenario.service.dp_size, scenario.block_size, scenario.service.model) == (2, 32, "big/model")
    assert (scenario.run.run_id, scenario.tokenizer.path) == ("model", str(tmp_path / "tok"))
    assert document["requests"]["input_length"]["value"] == 900 - 32


def test_an_existing_file_stays(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "s.json"
    path.write_text("mine", encoding="utf-8")
    assert main(["init", "--url", "http://127.0.0.1:1", "--output", str(path)]) == 2
    assert "[FILE_EXISTS]" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://h", "http://"])
def test_what_is_no_server(url: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["init", "--url", url, "--output", str(tmp_path / "s.json")]) == 2
    assert "[WRONG_URL] --url: this is no server (allowed: http://host:port)" in capsys.readouterr().err


def test_nothing_listens(tmp_path: Path, capsys: Any) -> None:
    assert main(["init", "--url", "http://127.0.0.1:1", "--output", str(tmp_path / "s.json")]) == 3
    assert "[CONNECTION_REFUSED]" in capsys.readouterr().err
    assert not (tmp_path / "s.json").exists()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_real_server_becomes_a_scenario_that_can_be_planned(
    engine: Any, deepseek_tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AISBENCH_PREFIX_CACHE_API_KEY", "sk-of-the-init-test")
    configuration = ServerConfiguration(
        tokenizer=deepseek_tokenizer_dir,
        engine=engine,
        model="big/model",
        block_size=32,
        data_parallel_size=2,
        max_model_len=700,
    )
    output = tmp_path / "scenario.json"
    with running_server(configuration, api_key="sk-of-the-init-test") as url:
        words = ["--output", str(output), "--tokenizer", str(deepseek_tokenizer_dir)]
        assert main(["init", "--url", url, *words]) == 0
    text = output.read_text(encoding="utf-8")
    assert "sk-of-the-init-test" not in text
    scenario = load_scenario(output)
    assert (scenario.service.model, scenario.service.dp_size, scenario.service.engine) == ("big/model", 2, engine)
    assert scenario.service.inference_urls == (f"{url}/v1/completions",)
    assert scenario.requests.input_length == FixedLength(668)  # what 32 tokens of an answer leave of 700
    assert scenario.block_size == 32
    assert main(["inspect", "--scenario", str(output)]) == 0
