"""Images in chat requests of the embedded server: tokens, block keys, counters, refusals."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.doubles.mmmu_directory import drawn
from transformers import AutoTokenizer

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server


@pytest.fixture
def client(qwen3_tokenizer_dir: Path) -> Iterator[httpx.Client]:
    configuration = ServerConfiguration(
        tokenizer=qwen3_tokenizer_dir,
        model="tiny",
        block_size=16,
        prefill_tokens_per_second=None,
        decode_tokens_per_second=None,
    )
    with running_server(configuration) as url, httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        yield client


def image(content: bytes) -> dict[str, Any]:
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(content).decode()}"},
    }


def ask(client: httpx.Client, *parts: dict[str, Any], **options: Any) -> httpx.Response:
    return client.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 2, **options},
    )


def usage(response: httpx.Response) -> tuple[int, int]:
    assert response.status_code == 200, response.text
    said = response.json()["usage"]
    return said["prompt_tokens"], said["prompt_tokens_details"]["cached_tokens"]


def mm_cache(client: httpx.Client) -> tuple[int, int]:
    text = client.get("/metrics").text
    queries, hits = (
        int(float(re.findall(rf"^vllm:mm_cache_{name}_total{{[^}}]*}} (\S+)$", text, re.MULTILINE)[0]))
        for name in ("queries", "hits")
    )
    return queries, hits


TEXT = {"type": "text", "text": "How many apples are left on the table after lunch?"}


def test_an_image_takes_a_token_for_each_square_of_28_pixels(client: httpx.Client, qwen3_tokenizer_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(qwen3_tokenizer_dir))
    alone, _ = usage(ask(client, TEXT))
    for (width, height), tokens in {(28, 28): 1, (29, 56): 4, (1920, 1080): 2691, (1280, 720): 1196}.items():
        assert usage(ask(client, image(drawn(width, height)), TEXT))[0] == alone + tokens
    five = [image(drawn(1280, 720))] * 5
    body = {"messages": [{"role": "user", "content": [*five, TEXT]}]}
    tokens = client.post("/tokenize", json=body).json()["tokens"]
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert len(tokens) == alone + 5 * 1196
    assert tokens.count(pad) == 5 * 1196
    # The text stands after the images, in the tokens that it has alone.
    text_ids = tokenizer.encode(TEXT["text"], add_special_tokens=False)
    after = len(tokens) - tokens[::-1].index(pad)
    assert tokens[after : after + len(text_ids)] == text_ids


def test_equal_images_share_blocks_and_other_images_do_not(client: httpx.Client) -> None:
    one, other = image(drawn(280, 280, noise=1)), image(drawn(280, 280, noise=2))
    tokens, cached = usage(ask(client, one, TEXT))
    assert cached == 0
    assert usage(ask(client, one, TEXT)) == (tokens, (tokens - 1) // 16 * 16)
    # The same token ids: the text before the image is less than a block, so nothing is shared.
    assert usage(ask(client, other, TEXT)) == (tokens, 0)
    # Another text after the image: the image's whole blocks are shared.
    other_text = {"type": "text", "text": "Seven people walk along the river and sing."}
    before = tokens - 100 - len(TEXT["text"].split())
    _, cached = usage(ask(client, one, other_text))
    assert 0 < before < 100 and 96 <= cached < tokens and cached % 16 == 0


def test_the_image_cache_is_counted_item_by_item(client: httpx.Client) -> None:
    assert mm_cache(client) == (0, 0)
    ask(client, TEXT)
    assert mm_cache(client) == (0, 0)
    ask(client, *[image(drawn(56, 56, noise=1))] * 5, TEXT)
    assert mm_cache(client) == (5, 4)
    ask(client, image(drawn(56, 56, noise=1)), image(drawn(56, 56, noise=2)), TEXT)
    assert mm_cache(client) == (7, 5)
    assert client.post("/reset_prefix_cache").json() == {"success": True}
    ask(client, image(drawn(56, 56, noise=2)), TEXT)
    assert mm_cache(client) == (8, 6)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1/a.png", "only data URLs of images, data:image/...;base64,..., are taken"),
        ("data:image/png;base64,***", "the data URL is not base64"),
        ("data:image/png;base64,", "cannot identify image: no bytes"),
        ("data:image/png;base64,QUJDRA==", "cannot identify image: neither PNG, JPEG, WebP nor GIF"),
    ],
)
def test_what_is_no_image_is_refused(client: httpx.Client, url: str, reason: str) -> None:
    answer = ask(client, {"type": "image_url", "image_url": {"url": url}}, TEXT)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, f"Failed to load image: {reason}")


def test_a_stream_opens_with_the_role_when_its_first_token_is_there(client: httpx.Client) -> None:
    answer = ask(client, image(drawn(56, 56)), TEXT, stream=True)
    first, second = answer.text.split("\n\n")[:2]
    assert '"delta":{"role":"assistant","content":""}' in first
    assert '"delta":{"content":"' in second
