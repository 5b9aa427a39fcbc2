"""What a pre-tokenizer's regular expression does at a single space, decided from the expression itself.

Two questions are answered for prompts in which words are joined by one *space symbol* (``' '``, or what a normalizer
made of it) and hold no other white space and no control characters:

* **local**: does finding all matches in ``A + space + B`` (A not ending, B not beginning with a space) give the matches
  of A followed by those of ``space + B``? It does if no match can hold a word character followed directly by the space,
  no look-behind or anchor sees across, and no look-ahead can tell the space from the end of the text.
* **splits**: does a match always begin at such a space? It does if, besides, some branch matches the space alone
  whatever follows.

The expression is read into its Glushkov positions (one per character class, with the "may follow" relation), each class
reduced to two bits: may it match the space symbol, may it match anything else that a prompt holds. Both reductions err
towards "may", so a wrong "yes" is impossible and an unusual expression is merely not proven.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

_SCRIPTS_WITHOUT_SPACE = frozenset(
    [
        "alpha",
        "alphabetic",
        "letter",
        "han",
        "hiragana",
        "katakana",
        "hangul",
        "latin",
        "greek",
        "cyrillic",
        "arabic",
        "hebrew",
        "thai",
        "lao",
        "devanagari",
        "bengali",
        "tamil",
        "telugu",
        "khmer",
        "myanmar",
        "armenian",
        "georgian",
        "ethiopic",
        "mongolian",
        "tibetan",
        "bopomofo",
        "punct",
        "digit",
        "upper",
        "lower",
    ]
)


class UnprovablePattern(Exception):
    """The expression uses something whose effect at a space this module does not decide."""


@dataclass(frozen=True)
class PatternAtSpace:
    """``holds_space``: whether any match may hold the space symbol."""

    local: bool
    splits: bool
    reason: str | None = None
    holds_space: bool = True


@dataclass(frozen=True)
class _Class:
    """One character class: may it match the space symbol, and may it match any other character of a prompt."""

    space: bool
    other: bool


@dataclass
class _Node:
    """Glushkov sets of a sub-expression over position numbers.

    ``bare_space``: it can always match one space symbol alone, whatever text follows. ``skippable``: it can always
    match nothing.
    """

    nullable: bool
    first: set[int]
    last: set[int]
    bare_space: bool = False
    skippable: bool = True


def pattern_at_space(pattern: str, space: str) -> PatternAtSpace:
    """Analyse one expression (Oniguruma syntax, as the ``tokenizers`` library uses) for a space symbol."""
    try:
        reader = _Reader(pattern, space)
        node = reader.read_all()
    except UnprovablePattern as error:
        return PatternAtSpace(False, False, str(error))
    if node.nullable:
        return PatternAtSpace(False, False, "it may match nothing")
    for position, following in reader.follow.items():
        if reader.classes[position].other and any(reader.classes[q].space for q in following):
            return PatternAtSpace(False, False, "a match may hold a word character followed by a space")
    return PatternAtSpace(True, node.bare_space, holds_space=any(kind.space for kind in reader.classes))


class _Reader:
    """Recursive descent over the expression; fills ``classes`` and ``follow``."""

    def __init__(self, pattern: str, space: str) -> None:
        self.pattern = pattern
        self.space = space
        self.index = 0
        self.classes: list[_Class] = []
        self.follow: dict[int, set[int]] = {}
        self.ahead_depth = 0

    def read_all(self) -> _Node:
        node = self._alternatives()
        if self.index != len(self.pattern):
            raise UnprovablePattern(f"unbalanced {self.pattern[self.index]!r}")
        return node

    def _peek(self, length: int = 1) -> str:
        return self.pattern[self.index : self.index + length]

    def _take(self) -> str:
        if self.index >= len(self.pattern):
            raise UnprovablePattern("the expression ends too early")
        character = self.pattern[self.index]
        self.index += 1
        return character

    def _alternatives(self) -> _Node:
        node = self._sequence()
        while self._peek() == "|":
            self.index += 1
            other = self._sequence()
            node = _Node(
                node.nullable or other.nullable,
                node.first | other.first,
                node.last | other.last,
                node.bare_space or other.bare_space,
                node.skippable or other.skippable,
            )
        return node

    def _sequence(self) -> _Node:
        node = _Node(True, set(), set())
        while self.index < len(self.pattern) and self._peek() not in ("|", ")"):
            if self._peek() == "$":
                self.index += 1
                # Directly after a space the end of the text is the same in the whole and in its right part alone.
                if node.nullable or any(self.classes[position].other for position in node.last):
                    raise UnprovablePattern("the anchor '$' after a word character")
                node = self._concatenate(node, _Node(True, set(), set(), skippable=False))
                continue
            node = self._concatenate(node, self._quantified())
        return node

    def _concatenate(self, left: _Node, right: _Node) -> _Node:
        for position in left.last:
            self.follow[position] |= right.first
        # A bare space stays one if everything else can be skipped unconditionally.
        bare = (left.bare_space and right.skippable) or (left.skippable and right.bare_space)
        return _Node(
            left.nullable and right.nullable,
            left.first | (right.first if left.nullable else set()),
            right.last | (left.last if right.nullable else set()),
            bare,
            left.skippable and right.skippable,
        )

    def _quantified(self) -> _Node:
        node = self._atom()
        while True:
            mark = self._peek()
            if mark == "?":
                self.index += 1
                low, many = 0, False
            elif mark in ("*", "+") and mark:
                self.index += 1
                low, many = (0 if mark == "*" else 1), True
            elif mark == "{":
                low, many = self._braces()
            else:
                return node
            possessive = False
            if mark != "{" and self._peek() in ("?", "+") and self._peek():
                possessive = self._take() == "+"  # It matches a subset of what the greedy repeat can.
            if many:
                for position in node.last:
                    self.follow[position] |= node.first
            node = _Node(
                node.nullable or low == 0,
                node.first,
                node.last,
                node.bare_space and low <= 1,
                (node.skippable or low == 0) and not possessive,
            )

    def _braces(self) -> tuple[int, bool]:
        end = self.pattern.find("}", self.index)
        body = self.pattern[self.index + 1 : end] if end > 0 else ""
        low, comma, high = body.partition(",")
        if not (low or high) or not (low or "0").isdigit() or not (high or "0").isdigit():
            raise UnprovablePattern("a brace that is no repeat count")
        self.index = end + 1
        return int(low or "0"), bool(comma) or int(low) > 1

    def _atom(self) -> _Node:
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return self._position(self._bracket())
        if character == ".":
            return self._position(_Class(True, True))
        if character == "^":
            raise UnprovablePattern("the anchor '^'")
        if character == "\\":
            return self._position(self._escape(in_class=False))
        if character in "*+?{":
            raise UnprovablePattern(f"a repeat {character!r} of nothing")
        return self._position(self._literal(character))

    def _group(self) -> _Node:
        if self._peek() != "?":
            return self._closed(self._alternatives())
        self.index += 1
        if self._peek(2) in ("<=", "<!"):
            raise UnprovablePattern("a look-behind")
        mark = self._take()
        if mark in "=!":
            self.ahead_depth += 1
            self._closed(self._alternatives())
            self.ahead_depth -= 1
            # A look-ahead consumes nothing; that its classes never match the space was checked while they were read.
            return _Node(True, set(), set(), skippable=False)
        if mark == ":":
            return self._closed(self._alternatives())
        if mark == ">":
            node = self._closed(self._alternatives())
            return _Node(node.nullable, node.first, node.last, node.bare_space, skippable=False)
        flags = mark
        while self._peek() not in (":", ")", ""):
            flags += self._take()
        if set(flags) - set("i-"):
            raise UnprovablePattern(f"the option (?{flags})")
        if self._take() == ")":
            return _Node(True, set(), set())
        return self._closed(self._alternatives())

    def _closed(self, node: _Node) -> _Node:
        if self._take() != ")":
            raise UnprovablePattern("an unclosed group")
        return node

    def _position(self, kind: _Class) -> _Node:
        if self.ahead_depth:
            if kind.space:
                raise UnprovablePattern("a look-ahead that can see the space")
            return _Node(False, set(), set(), skippable=False)
        number = len(self.classes)
        self.classes.append(kind)
        self.follow[number] = set()
        if not kind.space and not kind.other:
            return _Node(False, set(), set(), skippable=False)
        return _Node(False, {number}, {number}, bare_space=kind.space, skippable=False)

    def _literal(self, character: str) -> _Class:
        if character == self.space:
            return _Class(True, False)
        # White space other than the space symbol does not occur in a prompt.
        return _Class(False, not character.isspace())

    def _escape(self, *, in_class: bool) -> _Class:
        character = self._take()
        space_is_white = self.space.isspace()
        table: dict[str, _Class] = {
            "s": _Class(space_is_white, False),
            "S": _Class(not space_is_white, True),
            "d": _Class(self.space.isdigit(), True),
            "D": _Class(not self.space.isdigit(), True),
            "w": _Class(self._is_word(), True),
            "W": _Class(not self._is_word(), True),
            "h": _Class(self.space in "0123456789abcdefABCDEF", True),
            "H": _Class(self.space not in "0123456789abcdefABCDEF", True),
        }
        if character in table:
            return table[character]
        if character in "nrtvf":
            return _Class(False, False)
        if character in "pP":
            return self._property(character == "P")
        if character in "xu":
            return self._literal(self._code_point(character))
        if character.isalnum() and not (in_class and character == "b"):
            raise UnprovablePattern(f"the escape \\{character}")
        return self._literal(character)

    def _code_point(self, kind: str) -> str:
        if self._peek() == "{":
            end = self.pattern.find("}", self.index)
            digits, self.index = self.pattern[self.index + 1 : end], end + 1
        else:
            width = 4 if kind == "u" else 2
            digits, self.index = self._peek(width), self.index + width
        try:
            return chr(int(digits, 16))
        except (ValueError, OverflowError):
            raise UnprovablePattern(f"the escape \\{kind}{digits}") from None

    def _is_word(self) -> bool:
        return self.space == "_" or unicodedata.category(self.space)[0] in "LNM"

    def _property(self, negated: bool) -> _Class:
        if self._peek() == "{":
            end = self.pattern.find("}", self.index)
            name, self.index = self.pattern[self.index + 1 : end], end + 1
        else:
            name = self._take()
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        category = unicodedata.category(self.space)
        if len(name) <= 2 and name[:1] in "LMNPSZC":
            matches = category.startswith(name)
            other = name[0] != "Z"
        elif self.space == " " and name.lower() in _SCRIPTS_WITHOUT_SPACE:
            matches, other = False, True
        else:
            raise UnprovablePattern(f"the property {name!r}")
        if negated:
            return _Class(not matches, True)
        return _Class(matches, other)

    def _bracket(self) -> _Class:
        negated = self._peek() == "^"
        if negated:
            self.index += 1
        return self._bracket_items(negated)

    def _bracket_items(self, negated: bool = False) -> _Class:
        """The items of a class up to and with the closing bracket, an intersection included."""
        space = other = every_word_character = False
        start = True
        while True:
            if self._peek(2) == "&&":
                self.index += 2
                right = self._bracket_items()
                space, other, every_word_character = space and right.space, other and right.other, False
                break
            character = self._take()
            if character == "]" and not start:
                break
            start = False
            if character == "[":
                if self._peek() == ":":
                    raise UnprovablePattern("a POSIX class")
                item = self._bracket()
            elif character == "\\":
                every_word_character |= self._peek() == "S" and self.space.isspace()
                begin = self.index
                item = self._escape(in_class=True)
                if self._peek() == "-" and self._peek(2) != "-]":
                    low = self._range_end(self.pattern[begin : self.index])
                    item = self._range(low)
            elif self._peek() == "-" and self._peek(2) != "-]":
                item = self._range(character)
            else:
                item = self._literal(character)
            space |= item.space
            other |= item.other
        if negated:
            return _Class(not space, not every_word_character)
        return _Class(space, other)

    def _range(self, low: str) -> _Class:
        self.index += 1
        high = self._take()
        if high == "\\":
            begin = self.index
            self._escape(in_class=True)
            high = self._range_end(self.pattern[begin : self.index])
        return _Class(low <= self.space <= high, True)

    @staticmethod
    def _range_end(escape: str) -> str:
        if escape[0] in "xu":
            return chr(int(escape[1:].strip("{}"), 16))
        if len(escape) == 1 and not escape.isalnum():
            return escape
        decoded: dict[str, str] = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "f": "\f"}
        if escape in decoded:
            return decoded[escape]
        raise UnprovablePattern(f"a range that begins or ends with \\{escape}")
