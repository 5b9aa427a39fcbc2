"""Where the text of a row stands, in the forms that public data sets of requests have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

USUAL_FIELDS = ("question", "prompt", "text", "instruction", "messages[].content", "conversations[].value")
"""In the order in which they are looked for."""


def field_value(row: Mapping[str, Any], field: str) -> Any:
    """What stands under a key or, for a path such as ``messages[].content``, the texts there, joined by line breaks.

    ``[]`` stands for every element of a list. None where there is nothing.
    """
    if field in row or not ("." in field or "[]" in field):
        return row.get(field)
    texts = [text for value in _values(row, field.split(".")) for text in texts_in(value)]
    return "\n".join(texts) if texts else None


def find_field(row: Mapping[str, Any], fields: Sequence[str]) -> str | None:
    """The first of ``fields`` under which the row has something; a key may also hold null."""
    return next((field for field in fields if field in row or field_value(row, field) is not None), None)


def _values(value: Any, keys: Sequence[str]) -> Iterator[Any]:
    if not keys:
        yield value
        return
    name = keys[0].removesuffix("[]")
    if not isinstance(value, dict) or name not in value:
        return
    inner = value[name]
    if keys[0] == name:
        yield from _values(inner, keys[1:])
    elif isinstance(inner, list):
        for element in inner:
            yield from _values(element, keys[1:])


def texts_in(value: Any) -> Iterator[str]:
    """A text, or the texts of a message in parts: ``[{"type": "text", "text": "…"}, …]``."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))


def has_half_character(text: str) -> bool:
    """Whether a lone surrogate stands in a text, which no encoding has."""
    return any("\ud800" <= character <= "\udfff" for character in text)
