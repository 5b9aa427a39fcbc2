"""What others say, as it may be shown: in one line, without what steers a terminal, without the secret."""

from __future__ import annotations

import base64
import codecs
import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from html.entities import html5
from urllib.parse import quote

_COMMAND = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
"""What colours a terminal's text or moves its cursor: of these the letters go, too."""
_STEERING = re.compile(
    f"{_COMMAND}|"
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

    These are percent, JSON, HTML, MIME and backslash escapes and wide forms of any of its characters, its bytes as
    numbers, base64 (of itself, too) and base32 of it alone or amid other bytes, base85 of it alone; what steers a
    terminal may stand anywhere within. Of a secret that is no word also: in other case, backwards, rotated by 13
    letters or 47 characters, with spaces and punctuation between its characters.
    """
    if not secret:
        return text
    forms, seen = _forms(secret), _STEERING.sub("", text)
    if len(seen) != len(text) and forms.search(seen):
        text = seen
    return forms.sub("***", text)


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
        ways = dict.fromkeys([secret, secret[::-1], codecs.encode(secret, "rot13"), _rot47(secret)])
        spelled = [f"(?i:{_spelled(way, between=_BREAK)})" for way in ways]
    hexadecimal = r"[\W_]*(?:00[\W_]*)?(?:0x)?".join(f"{byte:02x}" for byte in data)
    numbers = [r"\W+".join(format(byte, form) for byte in data) for form in ("d", "03d", "o", "03o", "b", "08b")]
    once = dict.fromkeys([*_inner_forms(data, base64.b64encode, 6, 3), *_inner_forms(data, base64.b32encode, 5, 5)])
    # Of the spellings of base64 for URLs nobody makes another form.
    usual = _inner_forms(data, base64.b64encode, 6, 3)
    inner = [form for form in dict.fromkeys(usual) if len(form) > _SHORTEST_UNLIKE_WORDS and not set(form) & set("-_%")]
    twice = dict.fromkeys(form for each in inner for form in _inner_forms(each.encode(), base64.b64encode, 6, 3))
    others = [base64.b85encode(data).decode(), base64.a85encode(data).decode()]
    encoded = [*once, *(form[::-1] for form in inner), *twice, *(each for each in others if len(each) > len("12345"))]
    digits = f"(?<!\\d)(?:{'|'.join(numbers)})(?!\\d)|(?i:(?:0x)?{hexadecimal})"
    literal = (r"\s*".join(map(re.escape, form)) for form in encoded)
    return re.compile("|".join([*spelled, f"(?=[0-9A-Fa-f])(?:{digits})", *literal]))


_BREAK = r"[\s\"',;:.|_-]*"
"""What breaks a long word over lines, or keeps its characters apart."""


def _spelled(word: str, *, between: str) -> str:
    return between.join(f"(?:{'|'.join(_spellings(character))})" for character in word)


def _rot47(text: str) -> str:
    return "".join(chr(33 + (ord(each) - 33 + 47) % 94) if "!" <= each <= "~" else each for each in text)


@lru_cache(maxsize=1)
def _entity_names() -> dict[str, list[str]]:
    """HTML's names of each character, without semicolons."""
    names: dict[str, list[str]] = {}
    for name, character in html5.items():
        names.setdefault(character, []).append(re.escape(name.rstrip(";")))
    return names


def _spellings(character: str) -> list[str]:
    """Patterns for one character in the escapes of URLs, JSON, HTML, MIME and program texts, and last as itself."""
    number = ord(character)
    spellings = [
        rf"%(?:25)*(?i:{number:02x})",
        rf"=(?i:{number:02x})",
        rf"\\+[uU]\{{?0*(?i:{number:x})\}}?",
        rf"\\+x(?i:{number:02x})",
        rf"\\+{number:03o}",
        rf"&(?:amp;)*#0*{number};",
        rf"&(?:amp;)*#[xX]0*(?i:{number:x});",
    ]
    if names := _entity_names().get(character):
        spellings.append(f"&(?:amp;)*(?:{'|'.join(names)});?")
    if not character.isalnum():
        spellings.append(rf"\\+{re.escape(character)}")
    if "!" <= character <= "~":
        spellings.append(chr(number + 0xFEE0))
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
