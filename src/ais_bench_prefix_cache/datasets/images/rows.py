"""The rows of an image data set: an OpenAI-style message with references in place of images.

A data URL of 2 MB in every row would make files and memory grow with the requests; the manifest holds each image once,
and the model adapter puts it in when a request is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ais_bench_prefix_cache.datasets.text.rows import ANSWER, request_id

REFERENCE_KEY = "base64_ref"
MAX_TOKENS_KEY = "max_out_len"


def image_row(
    sequence_index: int, text: str, *, reference: str, images: int, text_tokens: int, max_tokens: int
) -> dict[str, Any]:
    """One row; the images stand before the text."""
    return {
        "request_id": request_id(sequence_index),
        "question": text,
        "answer": ANSWER,
        "image_refs": [reference] * images,
        "prompt": [
            {
                "role": "user",
                "content": [
                    *({"type": "image_url", REFERENCE_KEY: reference} for _ in range(images)),
                    {"type": "text", "text": text},
                ],
            }
        ],
        "text_tokens": text_tokens,
        MAX_TOKENS_KEY: max_tokens,
    }


def image_urls(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Reference → data URL of every image in a manifest."""
    images = (dataset["image"] for dataset in manifest["datasets"].values())
    return {image["ref"]: image["data_url"] for image in images}


def messages_with_images(messages: list[dict[str, Any]], urls: Mapping[str, str]) -> list[dict[str, Any]]:
    """``messages`` as the chat endpoint takes them: each reference is the data URL that ``urls`` has for it."""
    return [{**message, "content": list(_parts(message["content"], urls))} for message in messages]


def _parts(content: list[dict[str, Any]], urls: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for part in content:
        if REFERENCE_KEY in part:
            yield {"type": part["type"], "image_url": {"url": urls[part[REFERENCE_KEY]]}}
        else:
            yield part
