"""Which chunks of a chat stream are timed as tokens."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.aisbench


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {"role": "assistant", "content": "Yes"}}]}, True),
        ({"choices": [{"delta": {"content": " apples"}}]}, True),
        ({"choices": [{"delta": {"content": ""}}]}, True),
        ({"choices": [{"delta": {"reasoning_content": "hm"}}]}, True),
        ({"choices": [], "usage": {"prompt_tokens": 9}}, False),
    ],
    ids=["role", "role and text", "text", "token without text", "reasoning", "usage"],
)
def test_the_role_alone_is_no_token(chunk: dict[str, Any], expected: bool) -> None:
    from ais_bench_prefix_cache.aisbench.adapters.model import ImageChatAPI

    assert ImageChatAPI._brings_token(chunk) is expected
