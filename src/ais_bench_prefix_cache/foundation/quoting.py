"""What others say, as it may be shown: in one line, without what steers a terminal, without the secret."""

from __future__ import annotations

import base64
import codecs
import html
import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from urllib.parse import quote

_STEERING = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters but for white space, zero-width and bidirectional ones, halves of surrogate pairs, tags."""
_ODD_BREAKS = re.compile("[\r\v\f\x85\u2028\u2029]")
_SHORTEST_ENCODED = 4
"""Of a base64 text fewer characters than this belong to nobody in particular."""
_SHORTEST_UNLIKE_WORDS = 8
"""A shorter key may be a word ("test"), which other words may hold: only its own spelling is taken for it."""


def plain(text: str) -> str:
    """``text`` in one line: white space of any kind is one space, what steers a terminal is left out."""
    return " ".join(_STEERING.sub("", text).split())


def printable(text: str) -> str:
    """``text`` for a terminal: its own lines, without what steers one or breaks lines where nobody expects it."""
    return _STEERING.sub("", _ODD_BREAKS.sub(" ", text))


def printable_json(text: str) -> str:
    """JSON that means the same, with escapes for what :func:`printable` leaves out."""
    return _ODD_BREAKS.sub(_escape, _STEERING.sub(_escape, text))


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def without_secret(text: str, secret: str) -> str:
    """``text`` with *** for the secret, as it is or in its usual encodings.

    These are percent, JSON, HTML and backslash escapes of any of its characters, its bytes as hexadecimal or decimal
    numbers, base64 and base32 of it alone or amid other bytes; and of a secret that is no word: in other case,
    backwards, rotated by 13 letters, broken over lines.
    """
    return _forms(secret).sub("***", text) if secret else text


def quoted_words(text: str, secret: str, longest: int) -> str:
    """:func:`plain` words without the secret, at most ``longest`` characters of them: cleaned before they are cut."""
    line = without_secret(plain(text), secret)
    return line if len(line) <= longest else line[: longest - 1] + "…"


@lru_cache(maxsize=8)
def _forms(secret: str) -> re.Pattern[str]:
    data = secret.encode()
    if len(secret) < _SHORTEST_UNLIKE_WORDS:
        spelled = [_spelled(secret, between="")]
    else:
        ways = dict.fromkeys([secret, secret[::-1], codecs.encode(secret, "rot13")])
        spelled = [f"(?i:{_spelled(way, between=_BREAK)})" for way in ways]
    hexadecimal = r"[\s:,;_-]*(?:0x)?".join(f"{byte:02x}" for byte in data)
    decimal = r"[\s:,;]+".join(map(str, data))
    encoded = dict.fromkeys([*_inner_forms(data, base64.b64encode, 6, 3), *_inner_forms(data, base64.b32encode, 5, 5)])
    return re.compile(
        "|".join(
            [
                *spelled,
                f"(?i:(?:0x)?{hexadecimal})",
                rf"(?<!\d){decimal}(?!\d)",
                *(_BREAK.join(map(re.escape, form)) for form in encoded),
            ]
        )
    )


_BREAK = r"\s*"
"""Where a long word is broken over lines."""


def _spelled(word: str, *, between: str) -> str:
    return between.join(f"(?:{'|'.join(_spellings(character))})" for character in word)


def _spellings(character: str) -> list[str]:
    """Patterns for one character in the escapes of URLs, JSON, HTML and program texts, and last as itself."""
    number = ord(character)
    spellings = [
        rf"%(?:25)*(?i:{number:02x})",
        rf"\\+u(?i:{number:04x})",
        rf"\\+x(?i:{number:02x})",
        rf"\\+{number:03o}",
        rf"&(?:amp;)*#0*{number};",
        rf"&(?:amp;)*#[xX]0*(?i:{number:x});",
    ]
    named = html.escape(character, quote=True)
    if named != character:
        spellings.append(f"&(?:amp;)*{re.escape(named[1:])}")
    if not character.isalnum():
        spellings.append(rf"\\+{re.escape(character)}")
    if character == " ":
        spellings.append(r"\+")
    return [*spellings, re.escape(character)]


def _inner_forms(data: bytes, encode: Callable[[bytes], bytes], bits: int, places: int) -> Iterator[str]:
    """The characters, of ``bits`` each, that hold only bytes of ``data``, at any of ``places`` in an encoded text."""
    for before in range(places):
        text = encode(b"\0" * before + data).decode("ascii")
        form = text[-(-before * 8 // bits) : (before + len(data)) * 8 // bits]
        if len(form) >= _SHORTEST_ENCODED:
            yield form
            yield form.translate(str.maketrans("+/", "-_"))
            yield quote(form, safe="")
