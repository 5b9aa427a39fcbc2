"""Frozen dataclasses from sound JSON: a field's name is its key, its type says how its value is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Model = TypeVar("Model")
Readers = Mapping[Any, Callable[[Any], Any]]
"""By type: how a value is read of which the type alone does not tell."""


def build(cls: type[Model], document: Mapping[str, Any], readers: Readers | None = None) -> Model:
    """An instance of the dataclass ``cls``; a field whose key is missing keeps its default.

    ``field(metadata={"key": "order.strategy"})`` names a key that differs from the field's name, or lies deeper. The
    document has been checked against the schema: nothing is checked here.
    """
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        *sections, key = field.metadata.get("key", field.name).split(".")
        section: Any = document
        for name in sections:
            section = section[name]
        if key in section:
            values[field.name] = _read(hints[field.name], section[key], readers or {})
    return cls(**values)


def _read(kind: Any, value: Any, readers: Readers) -> Any:
    if get_origin(kind) is tuple:
        # One text where a list may stand is a list of one; null or an empty text is none.
        items = [value] if isinstance(value, str) and value else value or ()
        return tuple(_read(get_args(kind)[0], item, readers) for item in items)
    if value is None:
        return None
    if kind in readers:
        return readers[kind](value)
    if get_origin(kind) in (Union, UnionType):
        kinds = [item for item in get_args(kind) if item is not type(None)]
        return _read(kinds[0], value, readers) if len(kinds) == 1 else value
    if isinstance(kind, type) and isinstance(value, Mapping) and is_dataclass(kind):
        return build(kind, value, readers)
    return kind(value) if kind in (float, Path) else value
