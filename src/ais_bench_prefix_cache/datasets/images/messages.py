"""Messages with references in place of images, and the images put in for sending."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

REFERENCE_KEY = "base64_ref"


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
