"""Strict JSON: what Python's parser lets pass in silence is refused or named with its place; one form for digests."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError

FieldPath = tuple[str | int, ...]
"""Keys and list positions from the top of a document; ``()`` is the document itself."""

LARGEST_FILE_BYTES = 256 << 20
DEEPEST_NESTING = 64
_MOST_DIGITS = 20


@dataclass(frozen=True)
class JsonDefect:
    """What is wrong at one place of a document that could be parsed."""

    path: FieldPath
    code: Code
    message: str


class JsonError(ValueError):
    """There is no document to go on with. The message is a predicate: "is not JSON: …"."""

    def __init__(self, code: Code, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


def read_file(path: Path, what: str, error: type[PrefixCacheError]) -> bytes:
    """The bytes of a file that the user named; ``what`` ("the Scenario file") says in errors what it was to be.

    Raises:
        PrefixCacheError: of the class ``error``, with a sentence for each way in which a file cannot be read.
    """
    name = os.fspath(path).encode("utf-8", "backslashreplace").decode("utf-8")
    try:
        # Opening a FIFO waits for a writer, unless told not to.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise IsADirectoryError if stat.S_ISDIR(mode) else OSError(None, "it is a device, socket or FIFO")
            data = stream.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise error.of(Code.MISSING_FILE, name, f"{what} does not exist") from None
    except IsADirectoryError:
        raise error.of(Code.UNREADABLE_FILE, name, f"{what} is a directory", hint="name the file in it") from None
    except PermissionError:
        raise error.of(Code.UNREADABLE_FILE, name, f"{what} may not be read by this user") from None
    except (OSError, ValueError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) and failure.strerror else str(failure)
        raise error.of(Code.UNREADABLE_FILE, name, f"{what} cannot be read: {reason}") from None
    if len(data) > LARGEST_FILE_BYTES:
        raise error.of(Code.FILE_TOO_LARGE, name, f"{what} is larger than {LARGEST_FILE_BYTES >> 20} MiB")
    return data


def decode_utf8(data: bytes) -> str:
    """The text of UTF-8 bytes; raises :class:`JsonError` with the position of the first byte that is not UTF-8."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise JsonError(Code.WRONG_ENCODING, "is UTF-16", "save it as UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        place = f"byte 0x{data[error.start]:02x} at position {error.start} (line {line})"
        raise JsonError(Code.WRONG_ENCODING, f"is not UTF-8: {place}", "save it as UTF-8") from None


def parse_json(data: bytes) -> Any:
    """One JSON value: UTF-8 without a byte-order mark, unique keys, finite numbers, not nested too deeply.

    Raises:
        JsonError: at the first thing that is not so.
    """
    return _parsed(data, _refuse_duplicates, _refuse_number, int)


def parse_json_with_defects(data: bytes) -> tuple[Any, list[JsonDefect]]:
    """As :func:`parse_json`, but duplicates and numbers that cannot be used are all named, in the document's order.

    So are texts that cannot be written everywhere (halves of surrogate pairs, control characters), and integers of
    more than 64 bits.
    """
    value = _parsed(data, _ObjectWithDuplicates, _Unusable, _integer)
    return value, list(_defects(value))


def canonical_json(value: Any) -> bytes:
    """``value`` as UTF-8 JSON with sorted keys and no spaces: the form that digests are taken of."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


def canonical_sha256(value: Any) -> str:
    """SHA-256, in hex, of :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


class _Unusable:
    """Stands for a number that JSON or this program cannot hold."""

    def __init__(self, code: Code, message: str) -> None:
        self.code = code
        self.message = message


class _ObjectWithDuplicates(dict[str, Any]):
    """An object in which keys appeared more than once."""

    def __init__(self, content: dict[str, Any], duplicates: list[str]) -> None:
        super().__init__(content)
        self.duplicates = duplicates


def _refuse_duplicates(_: dict[str, Any], duplicates: list[str]) -> NoReturn:
    raise JsonError(Code.DUPLICATE_KEY, f"is not strict JSON: the key {duplicates[0]!r} appears more than once")


def _refuse_number(code: Code, message: str) -> NoReturn:
    raise JsonError(code, f"is not strict JSON: {message}")


def _integer(text: str) -> int | _Unusable:
    # Python refuses to convert more than 4300 digits, and no field needs more than 64 bits.
    if len(text) <= _MOST_DIGITS and -(1 << 63) <= int(text) < 1 << 63:
        return int(text)
    return _Unusable(Code.NUMBER_TOO_LARGE, "the integer does not fit into 64 bits")


def _parsed(
    data: bytes,
    with_duplicates: Callable[[dict[str, Any], list[str]], Any],
    unusable: Callable[[Code, str], Any],
    parse_int: Callable[[str], Any],
) -> Any:
    """The value; what Python lets pass is replaced by what the functions return, if they do not raise."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise JsonError(Code.BYTE_ORDER_MARK, "begins with a byte-order mark", "save it without")
    text = decode_utf8(data)
    if not text.strip():
        raise JsonError(Code.EMPTY_FILE, "is empty")

    def parse_object(pairs: list[tuple[str, Any]]) -> Any:
        content = dict(pairs)
        if len(content) == len(pairs):
            return content
        keys = [key for key, _ in pairs]
        return with_duplicates(content, [key for key in content if keys.count(key) > 1])

    def parse_float(text: str) -> Any:
        value = float(text)
        return value if math.isfinite(value) else unusable(Code.NUMBER_TOO_LARGE, "the number is too large")

    def parse_constant(text: str) -> Any:
        return unusable(Code.NOT_A_NUMBER, f"{text} is not a JSON number")

    try:
        value = json.loads(
            text,
            object_pairs_hook=parse_object,
            parse_constant=parse_constant,
            parse_float=parse_float,
            parse_int=parse_int,
        )
        # No value is nested more deeply than it has opening brackets.
        if data.count(b"[") + data.count(b"{") > DEEPEST_NESTING and _depth(value) > DEEPEST_NESTING:
            raise RecursionError
    except json.JSONDecodeError as error:
        message = f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        raise JsonError(Code.INVALID_JSON, message) from None
    except RecursionError:
        raise JsonError(Code.NESTED_TOO_DEEPLY, f"is nested more than {DEEPEST_NESTING} levels deep") from None
    except JsonError:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise JsonError(Code.NUMBER_TOO_LARGE, f"is not strict JSON: {error}") from None
    return value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= DEEPEST_NESTING:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, (dict, list)):
                inner.extend(item.values() if isinstance(item, dict) else item)
        depth, level = depth + 1, inner
    return depth


def _defects(value: Any, path: FieldPath = ()) -> Iterator[JsonDefect]:
    if isinstance(value, _Unusable):
        yield JsonDefect(path, value.code, value.message)
    elif isinstance(value, str):
        if reason := _unusable_text(value, path):
            yield JsonDefect(path, Code.UNUSABLE_TEXT, f"the text holds {reason}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            if type(item) is not int:
                yield from _defects(item, (*path, number))
    elif isinstance(value, dict):
        for key in getattr(value, "duplicates", ()):
            yield JsonDefect((*path, key), Code.DUPLICATE_KEY, "the key appears more than once")
        for key in value:
            if reason := _unusable_text(key, path):
                yield JsonDefect((*path, key), Code.UNUSABLE_TEXT, f"the key holds {reason}")
        for key, item in value.items():
            yield from _defects(item, (*path, key))


def _unusable_text(text: str, path: FieldPath) -> str | None:
    if text.isascii() and text.isprintable():
        return None
    for character in text:
        number = ord(character)
        if 0xD800 <= number <= 0xDFFF:
            return f"half of a surrogate pair (\\u{number:04x})"
        if number == 0:
            return "a NUL character (\\u0000)"
        # A stop string or a chat template may well be a line break.
        if (number < 0x20 or number == 0x7F) and path[:3] != ("aisbench", "model", "generation_kwargs"):
            return f"a control character (\\u{number:04x})"
    return None
