"""What others say, as it may be shown: in one line, without what steers a terminal, without the secret."""

from __future__ import annotations

import base64
import html
import re
from functools import lru_cache

_STEERING = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters but for white space, zero-width and bidirectional ones, halves of surrogate pairs, tags."""
_SHORTEST_ENCODED = 4
"""Of a base64 text fewer characters than this belong to nobody in particular."""


def plain(text: str) -> str:
    """``text`` in one line: white space of any kind is one space, what steers a terminal is left out."""
    return " ".join(_STEERING.sub("", text).split())


def without_secret(text: str, secret: str) -> str:
    """``text`` with *** for the secret, as it is or in its usual encodings.

    These are percent, JSON, HTML and backslash escapes of any of its characters, hexadecimal, and base64 of it alone or
    amid other bytes.
    """
    return _forms(secret).sub("***", text) if secret else text


def quoted_words(text: str, secret: str, longest: int) -> str:
    """:func:`plain` words without the secret, at most ``longest`` characters of them: cleaned before they are cut."""
    line = without_secret(plain(text), secret)
    return line if len(line) <= longest else line[: longest - 1] + "…"


@lru_cache(maxsize=8)
def _forms(secret: str) -> re.Pattern[str]:
    data = secret.encode()
    spelled = "".join(f"(?:{'|'.join(_spellings(character))})" for character in secret)
    encoded = {data.hex(), *_base64_forms(data)}
    others = [f"(?i:{re.escape(form)})" if form == data.hex() else re.escape(form) for form in sorted(encoded)]
    return re.compile("|".join([spelled, *others]))


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


def _base64_forms(data: bytes) -> list[str]:
    """The characters of a base64 text that hold only bytes of ``data``, wherever it begins in groups of three."""
    forms = []
    for before in range(3):
        text = base64.b64encode(b"\0" * before + data).decode("ascii")
        first = -(-before * 8 // 6)
        last = (before + len(data)) * 8 // 6
        for form in (text[first:last], text[first:last].translate(str.maketrans("+/", "-_"))):
            if len(form) >= _SHORTEST_ENCODED:
                forms.append(form)
    return forms
