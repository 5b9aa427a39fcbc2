"""Preflight: the whole sentence of every check that can fail, and silence where nothing is wrong."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import httpx
import pytest
from tests.doubles.fake_service import URL, FakeService, service_config

from ais_bench_prefix_cache.counters.reader import CacheConfig
from ais_bench_prefix_cache.datasets.images.decoding import decode
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.preflight import (
    PROBE_IMAGE_URL,
    Preflight,
    SamplePrompt,
    Workload,
    check_engines,
    check_inference,
    tokenizer_difference,
)
from ais_bench_prefix_cache.service.readings import EngineId

PROMPT = "How many clips did Natalia sell altogether?"
ASKED = Workload(
    mode="warmup",
    block_size=16,
    longest_request_tokens=1000,
    canonical_prefix_tokens={"group-0": 512, "group-1": 256},
    samples=(SamplePrompt("group-0", PROMPT, 11), SamplePrompt("group-1", PROMPT[::-1], 11)),
)
GOOD = CacheConfig(16, True, 10_000)


def inference(service: FakeService, workload: Workload = ASKED, **changes: Any) -> Preflight:
    kwargs = changes.pop("generation_kwargs", {})
    client = ServiceClient(service_config(**changes), generation_kwargs=kwargs, transport=service.transport())
    return check_inference(client, workload, FakeService().encode)


def engines(facts: dict[str, CacheConfig], workload: Workload = ASKED, **changes: Any) -> Preflight:
    client = ServiceClient(service_config(**changes), transport=FakeService().transport())
    return check_engines(client, workload, {EngineId(0, label): each for label, each in facts.items()})


def problems(action: Any) -> list[str]:
    with pytest.raises(ServiceError) as caught:
        action()
    return [f"[{problem.code}] {problem}" for problem in caught.value.problems]


def test_a_fit_service_is_described() -> None:
    found = inference(FakeService())
    assert found.notes == []
    assert found.facts == {"max_model_len": {URL: 8192}, "tokenized_alike": {URL: 2}}


def test_a_model_that_is_not_served() -> None:
    assert problems(lambda: inference(FakeService(), model="model-name")) == [
        f"[MODEL_NOT_SERVED] {URL}/v1/models: the model 'model-name' is not served (allowed: tiny)\n"
        "    Set service.model to one of them."
    ]


def test_a_request_that_is_too_long() -> None:
    long = Workload("cold", 16, 8193, {}, ())
    assert problems(lambda: inference(FakeService(), long)) == [
        f"[MODEL_LENGTH] {URL}/v1/models: the longest request needs 8193 tokens (input and output), max_model_len is "
        "8192\n    Shorten requests.input_length or output_length and prepare again, or raise --max-model-len."
    ]
    assert inference(FakeService(), Workload("cold", 16, 8192, {}, ())).notes == []


def test_what_the_server_does_not_tell_is_a_note() -> None:
    service = FakeService()
    models = httpx.Response(200, json={"data": [{"id": "tiny"}]})
    service.override = lambda request: (
        models if request.url.path == "/v1/models" else httpx.Response(404) if request.url.path == "/tokenize" else None
    )
    found = inference(service)
    assert found.notes == [
        f"{URL}/v1/models does not tell max_model_len: whether the longest request fits is not checked",
        f"{URL}/tokenize is not offered: the server's tokenizer is compared by token counts only",
    ]
    assert engines({"0": CacheConfig(), "1": CacheConfig()}).notes == [
        "the server does not tell its block size: not checked before the probes",
        "the server does not tell its cache capacity: not checked before the probes",
    ]


def test_a_bos_on_one_side() -> None:
    assert problems(lambda: inference(FakeService(extra_prompt_tokens=1))) == [
        f"[TOKENIZER_BOS] {URL}/tokenize: the server puts the special token 0 before the prompt of group-0, the other "
        "side does not (12 tokens there, 11 here)\n    Set tokenizer.add_special_tokens to true and prepare again; or, "
        "where the server has other tokenizer files, use those as tokenizer.path."
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ((5, 6, 7), (5, 6, 7), None),
        ((1, 5, 6), (5, 6), "our tokenizer puts the special token 1 before the prompt of g, the other side does not"),
        ((5, 6, 7), (5, 9, 7), "the server encodes the prompt of g otherwise from token 1 on: 9 there, 6 here"),
        ((5, 6, 7), (5, 6), "the server encodes the prompt of g otherwise from token 2 on: the end there, 7 here"),
        ((5, 6), (5, 6, 2), "the server encodes the prompt of g otherwise from token 2 on: 2 there, the end here"),
    ],
)
def test_tokenizer_difference(ours: tuple[int, ...], theirs: tuple[int, ...], said: str | None) -> None:
    problem = tokenizer_difference("url", "g", ours, theirs)
    assert (problem is None) == (said is None)
    if problem is not None and said is not None:
        assert problem.message == f"{said} ({len(theirs)} tokens there, {len(ours)} here)"


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"prompt_logprobs": 1}, "makes the theory impossible: vLLM bypasses the prefix cache for it"),
        ({"n": 2}, "is 2: the server counts every prompt 2 times (allowed: 1)"),
        ({"best_of": 4}, "is 4: the server counts every prompt 4 times (allowed: 1)"),
    ],
)
def test_request_fields_that_no_theory_survives(kwargs: dict[str, Any], said: str) -> None:
    (problem,) = problems(lambda: inference(FakeService(), generation_kwargs=kwargs))
    assert problem.startswith(f"[REQUEST_FIELD] aisbench.model.generation_kwargs.{next(iter(kwargs))}: {said}")


def test_harmless_request_fields() -> None:
    kwargs = {"temperature": 0.5, "n": 1, "ignore_eos": True, "cache_salt": "x"}
    assert inference(FakeService(), generation_kwargs=kwargs).notes == []


def test_fit_engines() -> None:
    found = engines({"0": GOOD, "1": GOOD})
    assert found.notes == []
    assert found.facts["engines"]["engine '1'"] == {
        "block_size": 16,
        "prefix_caching": True,
        "capacity_tokens": 10_000,
    }


def test_more_engines_than_ranks() -> None:
    assert problems(lambda: engines({"0": GOOD, "1": GOOD, "2": GOOD})) == [
        f"[ENGINE_COUNT] {URL}/metrics: shows 3 engines (engine '0', engine '1', engine '2'), service.dp_size is 2\n"
        "    Set service.dp_size to 3 and prepare again, or name only this server's metrics URLs."
    ]


def test_fewer_engines_are_left_to_the_probes() -> None:
    assert engines({"0": GOOD}).notes == [
        f"{URL}/metrics shows 1 engines (engine '0'), service.dp_size is 2; the probes will tell whether "
        "the others exist"
    ]


def test_all_that_is_wrong_with_an_engine_at_once() -> None:
    assert problems(lambda: engines({"0": CacheConfig(32, False, 1767), "1": GOOD})) == [
        f"[PREFIX_CACHING_OFF] {URL}/metrics: engine '0' says that prefix caching is off\n"
        "    Start the server with --enable-prefix-caching.",
        f"[CACHE_TOO_SMALL] {URL}/metrics: engine '0' holds 1767 tokens, but 1768 are needed for the canonical "
        "prefixes of 2 groups and the longest request\n    Give the server more KV memory (--gpu-memory-utilization, "
        "--num-gpu-blocks-override), or use fewer groups or shorter inputs and prepare again.",
    ]


def test_a_label_of_another_block_size_is_a_note_that_the_probes_judge() -> None:
    assert engines({"0": CacheConfig(4, True, 10_000), "1": GOOD}).notes == [
        "engine '0' says that it caches in blocks of 4 tokens, tokenizer.block_size is 16; the probes will tell which "
        "of "
        "them holds"
    ]


@pytest.mark.parametrize("status", [403, 404, 405])
def test_a_gateway_that_does_not_offer_models_is_noted(status: int) -> None:
    service = FakeService(override=lambda request: httpx.Response(status) if request.url.path == "/v1/models" else None)
    client = ServiceClient(service_config(), transport=service.transport())
    result = check_inference(client, ASKED, service.encode)
    assert result.notes[0] == (
        f"{URL}/v1/models is not offered, as behind some gateways: whether the model is served and the longest request "
        "fits is not checked"
    )
    assert result.facts == {"tokenized_alike": {URL: 2}}


def test_a_cold_run_needs_room_for_one_request() -> None:
    cold = Workload("cold", 16, 1000, {"group-0": 512, "group-1": 512}, ())
    assert engines({"0": CacheConfig(16, True, 1000), "1": GOOD}, cold).notes == []
    (problem,) = problems(lambda: engines({"0": CacheConfig(16, True, 999), "1": GOOD}, cold))
    assert "engine '0' holds 999 tokens, but 1000 are needed for the longest request" in problem


@pytest.mark.parametrize(
    ("page", "mode", "needed", "what"),
    [
        (1, "cold", 1000, "the longest request"),
        (16, "cold", 1016, "the longest request and a page more"),
        (16, "warmup", 1016 + 768, "the canonical prefixes of 2 groups and the longest request and a page more"),
    ],
)
def test_sglang_makes_room_for_a_page_more(page: int, mode: str, needed: int, what: str) -> None:
    asked = Workload(mode, 16, 1000, {"group-0": 512, "group-1": 256}, ())
    client = ServiceClient(service_config())

    def told(capacity: int) -> Any:
        facts = CacheConfig(page, kv_cache_size_tokens=capacity, context_tokens=1000)
        return check_engines(client, asked, {EngineId(0, "0"): facts, EngineId(0, "1"): facts}, "sglang")

    told(needed)
    problem, _ = problems(lambda: told(needed - 1))
    assert problem == (
        f"[CACHE_TOO_SMALL] {URL}/metrics: engine '0' holds {needed - 1} tokens, but {needed} are needed for {what}\n"
        "    Give the server more KV memory (--mem-fraction-static, --max-total-tokens), or use fewer groups or "
        "shorter inputs and prepare again."
    )


def test_an_engine_that_tells_its_longest_request() -> None:
    facts = CacheConfig(16, context_tokens=999)
    (problem,) = problems(lambda: engines({"0": facts, "1": GOOD}))
    assert problem == (
        f"[MODEL_LENGTH] {URL}/metrics: the longest request needs 1000 tokens (input and output), context_len is 999\n"
        "    Shorten requests.input_length or output_length and prepare again, or raise --context-length."
    )


def test_the_image_that_servers_are_tried_with_decodes() -> None:
    head, _, encoded = PROBE_IMAGE_URL.partition(",")
    header = decode(b64decode(encoded, validate=True))
    assert (head, header.width, header.height) == (f"data:{header.mime_type};base64", 64, 64)
