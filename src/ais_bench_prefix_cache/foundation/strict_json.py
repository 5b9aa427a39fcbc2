"""Reading a JSON file strictly: what Python's parser lets pass in silence is a problem with a place here."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.scenario.findings import FieldPath, Findings, quoted

LARGEST_FILE_BYTES = 256 << 20
DEEPEST_NESTING = 64
_MOST_DIGITS = 20


@dataclass(frozen=True)
class JsonDocument:
    """A parsed file. ``sha256`` is the digest of the very bytes that were parsed."""

    content: dict[str, Any]
    sha256: str


class _Unusable:
    """Stands for a number that JSON or this program cannot hold."""

    def __init__(self, code: Code, message: str) -> None:
        self.code = code
        self.message = message


class _ObjectWithDuplicates(dict[str, Any]):
    """An object in which keys appeared more than once."""

    duplicates: tuple[str, ...] = ()


def read_file_bytes(path: Path, kind: str) -> bytes:
    """The bytes of a file that the user named; ``kind`` ("Scenario") says in errors what it was to be.

    Raises :class:`ScenarioError` with a sentence of its own for each way in which a file cannot be read.
    """
    name = os.fspath(path).encode("utf-8", "backslashreplace").decode("utf-8")
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        _refuse(Code.MISSING_FILE, name, f"the {kind} file does not exist")
    except IsADirectoryError:
        _refuse(Code.NOT_A_FILE, name, f"the {kind} file is a directory", hint="name the file in it")
    except PermissionError:
        _refuse(Code.UNREADABLE_FILE, name, f"the {kind} file may not be read by this user")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        _refuse(Code.UNREADABLE_FILE, name, f"the {kind} file cannot be read: {reason}")
    if len(data) > LARGEST_FILE_BYTES:
        _refuse(Code.FILE_TOO_LARGE, name, f"the {kind} file is larger than {LARGEST_FILE_BYTES >> 20} MiB")
    return data


def decode_utf8(data: bytes, name: str, kind: str) -> str:
    """The text of UTF-8 bytes; names the position of the first byte that is not UTF-8."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        _refuse(Code.WRONG_ENCODING, name, f"the {kind} file is UTF-16", hint="save it as UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        _refuse(
            Code.WRONG_ENCODING,
            name,
            f"the {kind} file is not UTF-8: byte 0x{data[error.start]:02x} at position {error.start} (line {line})",
            hint="save it as UTF-8",
        )


def read_json_object(path: Path, findings: Findings) -> JsonDocument:
    """Parse a Scenario file; problems with a place inside it go to ``findings``.

    Raises :class:`ScenarioError` where there is no document to go on with: no file, not UTF-8, not JSON, not an
    object, nested too deeply.
    """
    name = findings.document_name
    data = read_file_bytes(path, "Scenario")
    if data.startswith(b"\xef\xbb\xbf"):
        _refuse(Code.BYTE_ORDER_MARK, name, "the Scenario file begins with a byte-order mark", hint="save it without")
    text = decode_utf8(data, name, "Scenario")
    if not text.strip():
        _refuse(Code.EMPTY_FILE, name, "the Scenario file is empty", hint="an empty Scenario is written {}")
    try:
        content = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        position = _syntax_position(error, text)
        line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
        sentence = _syntax_sentence(error.msg, text, position)
        _refuse(Code.INVALID_JSON, name, f"this is not JSON: {sentence} at line {line}, column {column}")
    except RecursionError:
        _refuse(Code.NESTED_TOO_DEEPLY, name, f"the document is nested more than {DEEPEST_NESTING} levels deep")
    if not isinstance(content, dict):
        _refuse(Code.NOT_AN_OBJECT, name, "the Scenario is not a JSON object", allowed='an object: { "run": … }')
    for place, value in _walk(content, name):
        _report_unusable(place, value, findings)
    return JsonDocument(content, hashlib.sha256(data).hexdigest())


def _refuse(code: Code, where: str, message: str, *, allowed: str | None = None, hint: str | None = None) -> NoReturn:
    raise ScenarioError.of(code, where, message, allowed=allowed, hint=hint)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    seen: set[str] = set()
    twice: dict[str, None] = {}
    for key, _ in pairs:
        if key in seen:
            twice[key] = None
        seen.add(key)
    marked = _ObjectWithDuplicates(plain)
    marked.duplicates = tuple(twice)
    return marked


def _constant(text: str) -> _Unusable:
    return _Unusable(Code.NOT_A_NUMBER, f"{text} is not a JSON number")


def _float(text: str) -> float | _Unusable:
    value = float(text)
    if math.isfinite(value):
        return value
    return _Unusable(Code.NUMBER_TOO_LARGE, "the number is too large")


def _integer(text: str) -> int | _Unusable:
    # Python refuses to convert more than 4300 digits, and no field needs more than 64 bits.
    if len(text) <= _MOST_DIGITS:
        value = int(text)
        if -(1 << 63) <= value < 1 << 63:
            return value
    return _Unusable(Code.NUMBER_TOO_LARGE, "the integer does not fit into 64 bits")


def _syntax_position(error: json.JSONDecodeError, text: str) -> int:
    """Where the parser stumbled; since Python 3.13 it names a trailing comma, before that what follows the comma."""
    position = error.pos
    if error.msg.startswith("Illegal trailing comma"):
        position += 1
        while text[position] in " \t\r\n":
            position += 1
    return position


def _syntax_sentence(parser_message: str, text: str, position: int) -> str:
    """What the parser stumbled over, in words that do not depend on the Python release."""
    if position >= len(text.rstrip()):
        return "it ends too early"
    found = text[position]
    if parser_message.startswith("Extra data"):
        return f"something follows the end of the document: {quoted(found)}"
    if parser_message.startswith("Unterminated string"):
        return "a string is not closed"
    if parser_message.startswith("Invalid control character"):
        return "a string holds a raw control character"
    if parser_message.startswith("Invalid \\"):
        return "a string holds an invalid escape"
    if found in "}]" and text[:position].rstrip().endswith(","):
        return f"a comma stands before the closing {found}"
    if found == "'":
        return "strings are written in double quotes, found '"
    if text.startswith(("//", "/*", "#"), position):
        return f"JSON has no comments, found {quoted(found)}"
    if parser_message.startswith("Expecting property name"):
        return f"a key in double quotes must stand here, found {quoted(found)}"
    if parser_message.startswith("Expecting ','"):
        return f"a comma or a closing bracket is missing before {quoted(found)}"
    if parser_message.startswith("Expecting ':'"):
        return f"a colon is missing before {quoted(found)}"
    return f"a value must stand here, found {quoted(found)}"


def _walk(content: Any, name: str) -> Iterator[tuple[FieldPath, Any]]:
    """Every value with its place, in document order; lists of plain integers are passed over."""
    pending: list[tuple[FieldPath, Any]] = [((), content)]
    while pending:
        place, value = pending.pop()
        yield place, value
        if len(place) > DEEPEST_NESTING:
            _refuse(Code.NESTED_TOO_DEEPLY, name, f"the document is nested more than {DEEPEST_NESTING} levels deep")
        if isinstance(value, dict):
            pending.extend([((*place, key), item) for key, item in reversed(value.items())])
        elif isinstance(value, list):
            pending.extend(
                [((*place, n), item) for n, item in reversed(list(enumerate(value))) if type(item) is not int]
            )


def _report_unusable(place: FieldPath, value: Any, findings: Findings) -> None:
    if isinstance(value, _Unusable):
        findings.report(place, value.code, value.message)
    elif isinstance(value, dict):
        if isinstance(value, _ObjectWithDuplicates):
            for key in value.duplicates:
                findings.report((*place, key), Code.DUPLICATE_KEY, "the key appears more than once", hint="keep one")
        for key in value:
            reason = _unusable_text(key, place)
            if reason:
                findings.report((*place, key), Code.UNUSABLE_TEXT, f"the key holds {reason}")
    elif isinstance(value, str):
        reason = _unusable_text(value, place)
        if reason:
            findings.report(place, Code.UNUSABLE_TEXT, f"the text holds {reason}")


def _unusable_text(text: str, place: FieldPath) -> str | None:
    if text.isascii() and text.isprintable():
        return None
    for character in text:
        number = ord(character)
        if 0xD800 <= number <= 0xDFFF:
            return f"half of a surrogate pair (\\u{number:04x})"
        if number == 0:
            return "a NUL character (\\u0000)"
        # A stop string or a chat template may well be a line break.
        if (number < 0x20 or number == 0x7F) and place[:3] != ("aisbench", "model", "generation_kwargs"):
            return f"a control character (\\u{number:04x})"
    return None
