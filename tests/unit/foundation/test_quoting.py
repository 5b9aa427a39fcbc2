"""Words of others: one line, nothing that steers a terminal, the secret in none of its usual encodings."""

from __future__ import annotations

import base64
import codecs
import html
import html.entities
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_bench_prefix_cache.foundation.quoting import (
    plain,
    printable,
    printable_json,
    quoted_words,
    without_secret,
)

keys = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=8, max_size=64)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\r\n\tb", "a b"),
        ("a\u2028b\u2029c\x85d", "a b c d"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\u202eb\u2066c\u200fd\u200be", "abcde"),
        ("\ud800x\U000e0041", "x"),
        ("naïve 你好 🙂", "naïve 你好 🙂"),
    ],
)
def test_plain_words(text: str, shown: str) -> None:
    assert plain(text) == shown


@settings(deadline=None, max_examples=40)
@given(keys)
def test_no_usual_encoding_of_a_key_is_left(key: str) -> None:
    for encoded in (
        key,
        quote(key, safe=""),
        quote_plus(key),
        quote(quote(key, safe=""), safe=""),
        html.escape(key),
        html.escape(html.escape(key)),
        json.dumps(key)[1:-1],
        json.dumps(json.dumps(key))[3:-3],
        key.encode().hex(),
        key.encode().hex(":").upper(),
        " ".join(f"0x{byte:02x}" for byte in key.encode()),
        ", ".join(map(str, key.encode())),
        key.upper(),
        key.swapcase(),
        key[::-1],
        codecs.encode(key, "rot13"),
        f"{key[:5]}\n  {key[5:]}",
        "\x1b[1m".join(key),
        "\u200b".join(key),
        " ".join(key),
        json.dumps(list(key))[2:-2],
        "".join(chr(ord(each) + 0xFEE0) for each in key),
        "".join(f"={ord(each):02X}" for each in key),
        "".join(f"\\u{{{ord(each):x}}}" for each in key),
        " ".join(f"{byte:o}" for byte in key.encode()),
        " ".join(f"{byte:08b}" for byte in key.encode()),
        "-".join(map(str, key.encode())),
        key.encode("utf-16-le").hex(" ")[:-3],
        "".join(f"&{html.entities.codepoint2name.get(ord(each), f'#{ord(each)}')};" for each in key),
        base64.b85encode(key.encode()).decode(),
        base64.a85encode(key.encode()).decode(),
        "".join(chr(33 + (ord(each) + 14) % 94) for each in key),
    ):
        assert without_secret(f"before {encoded} after", key) == "before *** after", encoded


@settings(deadline=None)
@given(keys, st.binary(max_size=9), st.sampled_from([base64.b64encode, base64.urlsafe_b64encode]))
def test_base64_with_a_key_in_it_shows_no_more_than_its_edges(key: str, before: bytes, encode: object) -> None:
    text = encode(before + key.encode()).decode()  # type: ignore[operator]
    shown = without_secret(text, key)
    assert "***" in shown
    assert len(shown.replace("***", "").rstrip("=")) <= -(-len(before) * 4 // 3) + 2


@settings(deadline=None)
@given(keys, st.binary(max_size=4), st.binary(max_size=4))
def test_base64_of_base64_shows_no_more_than_its_edges(key: str, before: bytes, after: bytes) -> None:
    text = base64.b64encode(base64.b64encode(before + key.encode() + after)).decode()
    shown = without_secret(text, key)
    assert "***" in shown
    assert len(shown.replace("***", "").rstrip("=")) <= 26


@settings(deadline=None)
@given(st.integers(0, 300), keys)
def test_words_are_cleaned_before_they_are_cut(padding: int, key: str) -> None:
    before = "é" * padding
    shown = quoted_words(before + key, key, 100)
    assert len(shown) <= 100
    assert shown == (f"{before}***" if padding + 3 <= 100 else f"{before}***"[:99] + "…")


def test_a_key_that_is_a_word_hides_no_other_words() -> None:
    assert without_secret("an empty body, EMPTY", "EMPTY") == "an empty body, ***"


def test_base32_hides_a_key() -> None:
    key = "sk-a-key-of-the-tests"
    for before in (b"", b"a", b"Bearer "):
        shown = without_secret(base64.b32encode(before + key.encode()).decode(), key)
        assert "***" in shown
        assert len(shown.replace("***", "").rstrip("=")) <= -(-len(before) * 8 // 5) + 2


def test_without_a_secret_nothing_is_replaced() -> None:
    assert without_secret("sk-1", "") == "sk-1"


def test_lines_for_a_terminal() -> None:
    assert printable("one\n  two\x1b[31m\u202e\u2028three\r\x9b4four\x1b\ttab") == "one\n  two three our\ttab"


def test_json_for_a_terminal_means_the_same() -> None:
    value = {"k\x9b\u202e": ["\u2028\x7f\x1b \U000e0041", "你好"]}
    text = printable_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert printable(text) == text
    assert "你好" in text
