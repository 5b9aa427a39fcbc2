"""What Python's own parser takes and strict JSON does not, beside what both take."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_bench_prefix_cache.foundation.strict_json import JsonError, parse_json, parse_json_with_defects

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_what_json_writes_is_read_back(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (b"\xef\xbb\xbf{}", "BYTE_ORDER_MARK", "begins with a byte-order mark"),
        (b" ", "EMPTY_FILE", "is empty"),
        (b'"\xff"', "WRONG_ENCODING", "is not UTF-8: byte 0xff at position 1 (line 1)"),
        (b'{"a": 1, "a": 2}', "DUPLICATE_KEY", "is not strict JSON: the key 'a' appears more than once"),
        (b"[NaN]", "NOT_A_NUMBER", "is not strict JSON: NaN is not a JSON number"),
        (b"[1e999]", "NUMBER_TOO_LARGE", "is not strict JSON: the number is too large"),
        (b"[" * 65 + b"]" * 65, "NESTED_TOO_DEEPLY", "is nested more than 64 levels deep"),
        (b"[" * 100_000, "NESTED_TOO_DEEPLY", "is nested more than 64 levels deep"),
        (b"[1,", "INVALID_JSON", "is not JSON: Expecting value (line 1, column 4)"),
    ],
)
def test_what_is_refused(data: bytes, code: str, message: str) -> None:
    with pytest.raises(JsonError) as caught:
        parse_json(data)
    assert (caught.value.code, str(caught.value)) == (code, message)


def test_an_integer_of_more_digits_than_python_converts() -> None:
    with pytest.raises(JsonError) as caught:
        parse_json(b"9" * 5000)
    assert caught.value.code == "NUMBER_TOO_LARGE"
    assert parse_json(b"9" * 40) == int("9" * 40)


def test_64_levels_and_any_number_of_brackets_in_texts_are_allowed() -> None:
    assert parse_json(b"[" * 64 + b"]" * 64)
    assert parse_json(json.dumps("[" * 500).encode()) == "[" * 500


def test_defects_are_named_with_their_places() -> None:
    data = b'{"a": [1, NaN, {"b": 1, "b": 2}], "c": "\\ud800", "d": 9223372036854775808}'
    _, defects = parse_json_with_defects(data)
    assert [(defect.path, defect.code) for defect in defects] == [
        (("a", 1), "NOT_A_NUMBER"),
        (("a", 2, "b"), "DUPLICATE_KEY"),
        (("c",), "UNUSABLE_TEXT"),
        (("d",), "NUMBER_TOO_LARGE"),
    ]
