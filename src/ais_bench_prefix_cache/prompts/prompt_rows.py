"""The rows that ``prompts`` prints.

A row is what :func:`.rows.render_row` makes of it, but of short prompts there are hundreds of thousands a second to
write, and most of each is what others had before: texts that repeat are escaped once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.datasets.format.rows import ANSWER, text_in_row

if TYPE_CHECKING:
    from ais_bench_prefix_cache.prompts import Prompt


class PromptRows:
    """Writes prompts as lines. Memory grows with the different group prefixes and fillers only."""

    def __init__(self, max_tokens: int | None = None) -> None:
        answer: dict[str, Any] = {"answer": ANSWER}
        if max_tokens is not None:
            answer["max_tokens"] = max_tokens
        self._answer = _fields(answer)
        self._repeated: dict[str, str] = {}
        self._settings: dict[Any, str] = {}

    def line(self, index: int, prompt: Prompt) -> bytes:
        """The line of one prompt, with its newline."""
        prefix, nonce, filler = prompt.pieces
        repeated = self._repeated
        pieces = [
            repeated.get(prefix) or self._escaped(prefix) if prefix else "",
            text_in_row(nonce) if nonce else "",
            repeated.get(filler) or self._escaped(filler) if filler else "",
        ]
        group = prompt.prefix_group
        settings = self._settings.get(group) or self._settings_of(prompt)
        return (
            f'{{"question": "{" ".join(filter(None, pieces))}", {self._answer}, "prompt_index": {index}, '
            f'"prompt_id": "{prompt.prompt_id}", {settings}, "digest": "{prompt.digest}"}}\n'
        ).encode()

    def _escaped(self, text: str) -> str:
        self._repeated[text] = escaped = text_in_row(text)
        return escaped

    def _settings_of(self, prompt: Prompt) -> str:
        """What all prompts of a group have in common."""
        self._settings[prompt.prefix_group] = fields = _fields(
            {
                "input_tokens": prompt.planned.value,
                "exact": prompt.planned.exact,
                "prefix_group": prompt.prefix_group,
                "shared_prefix_tokens": prompt.shared_prefix_tokens,
                "shared_prefix_blocks": prompt.shared_prefix_blocks,
            }
        )
        return fields


def _fields(values: dict[str, Any]) -> str:
    return json.dumps(values)[1:-1]
