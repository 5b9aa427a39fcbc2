"""Corpus text as words: what may stand in a prompt, and what each word is in tokens.

A prompt is words joined by single spaces. :class:`TextCleaner` takes out of a row what must not reach a prompt;
:class:`WordTable` holds every distinct word with its ids *in the middle of a text*, that is, after a space.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import regex

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

MAX_WORD_CHARACTERS = 64
"""Longer runs without a space (Chinese sentences, hashes) are divided, after punctuation where there is some."""

WORDS_ENCODED_TOGETHER = 64

MAX_VOCABULARY_WORDS = 2048
"""Words of the vocabulary that are taken where the corpus has too few."""

# Controls, surrogates, non-characters, the replacement character and byte-order mark, SentencePiece's metaspace, and
# braces: AISBench fills `{name}` in a prompt as a template.
_NEVER = "\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffc-\uffff\ufeff▁{}"
_SENTENCE_MARKS = frozenset("。！？；，、：.!?;,:…")


# What belongs together: graphemes, and those that a format character (a joiner, a soft hyphen) stands between.
_TOGETHER = regex.compile(r"\X(?:(?<=\p{Cf})\X|(?=\p{Cf})\X)*+")
# What would combine with the space before a word, or after it.
_LOOSE_JOINERS = regex.compile(r"^[\p{M}\p{Cf}\p{GCB=Extend}\p{GCB=SpacingMark}]+|\p{Cf}+$")


def cuts(word: str) -> list[int]:
    """The places, in characters, at which a word may be divided so that whole graphemes lie on both sides."""
    return [match.end() for match in _TOGETHER.finditer(word)][:-1]


class TextCleaner:
    """Turns a row into words that may stand in a prompt.

    What must not stand there is cut out and what surrounds it kept: characters no prompt should hold, braces, and the
    literal text of any added token, which the tokenizer would read as that token.
    """

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        fragments: set[str] = set()
        for text in tokenizer.added_token_texts():
            # White space between words is one space in a prompt; the rest of the token's text must be absent.
            parts = text.split()
            if parts:
                fragments.add(max(parts, key=len))
        normalized = {tokenizer.normalize(fragment).strip().replace("▁", "") for fragment in fragments}
        self._normalize = tokenizer.normalize
        self._unsafe_starts = tokenizer.join_proof.unsafe_starts
        self._may_add_spaces = tokenizer.normalizer_adds_spaces()
        self._unsafe = _any_of(fragments, _NEVER)
        self._normalized_unsafe = _any_of((fragments | normalized) - {""}, "\x00")

    def words(self, text: str) -> list[str]:
        """The words of a row, in order; possibly none."""
        text = self._unsafe.sub(" ", text)
        if text.isascii():
            words = text.split()
            if len(max(words, key=len, default="")) <= MAX_WORD_CHARACTERS:
                return words
            return [part for word in words for part in _divide(word)]
        return [part for word in text.split() for part in _divide(_LOOSE_JOINERS.sub("", word))]

    def keeps(self, word: str) -> bool:
        """Whether a word is still one word without added tokens after the tokenizer's normalizer."""
        normalized = self._normalize(word)
        inside = normalized.removeprefix("▁")  # which SentencePiece's normalizers put before every text
        if not self._may_add_spaces and ("▁" in inside or inside.split() != [inside]):
            return False
        if inside.startswith(self._unsafe_starts):
            return False
        return not self._normalized_unsafe.search(normalized)


class WordTable:
    """Distinct words by number.

    ``texts[i]``; ``ids[i]``: the ids of ``" " + text`` in the middle of a text; ``counts[i]``: how many (0: the word
    cannot be used, because it is not the same between other words as alone, or it has no tokens).
    """

    def __init__(self, tokenizer: PromptTokenizer, cleaner: TextCleaner) -> None:
        self._tokenizer = tokenizer
        self._cleaner = cleaner
        self.texts: list[str] = []
        self.ids: list[tuple[int, ...]] = []
        self.counts: list[int] = []
        self.number: dict[str, int] = {}
        self.anchor, self.anchor_first, self.anchor_middle = _find_anchor(tokenizer, cleaner)

    def add(self, words: Iterable[str]) -> None:
        """Encode the words that are new, each between two anchors."""
        new = [word for word in dict.fromkeys(words) if word not in self.number]
        keeps = self._cleaner.keeps
        for start in range(0, len(new), 8192):
            part = new[start : start + 8192]
            kept = [word for word in part if keeps(word)]
            encoded = dict(zip(kept, self._encode_between_anchors(kept), strict=True))
            for word in part:
                ids = encoded.get(word, ())
                self.number[word] = len(self.texts)
                self.texts.append(word)
                self.ids.append(ids)
                self.counts.append(len(ids))

    def _encode_between_anchors(self, words: list[str]) -> list[tuple[int, ...]]:
        """The ids of each word between two anchors; () where they are not the same as alone, or none.

        Where words provably encode independently, many stand in one text, an anchor between each two, as long as the
        anchor's id occurs nowhere else.
        """
        if len(self.anchor_middle) != 1 or not self._tokenizer.join_proof.proven:
            return self._encode_alone(words)
        (separator,) = self.anchor_middle
        groups = [
            words[start : start + WORDS_ENCODED_TOGETHER] for start in range(0, len(words), WORDS_ENCODED_TOGETHER)
        ]
        texts = [f" {self.anchor} ".join(["", *group, ""])[1:-1] for group in groups]
        found: list[tuple[int, ...]] = []
        head = len(self.anchor_first)
        for group, ids in zip(groups, self._tokenizer.encode_plain_batch(texts), strict=True):
            inner = ids[head:]
            if tuple(ids[:head]) != self.anchor_first or inner.count(separator) != len(group):
                found += self._encode_alone(group)
                continue
            position = 0
            for _ in group:
                end = inner.index(separator, position)
                found.append(tuple(inner[position:end]))
                position = end + 1
        return found

    def _encode_alone(self, words: list[str]) -> list[tuple[int, ...]]:
        head, tail = self.anchor_first, self.anchor_middle
        encoded = self._tokenizer.encode_plain_batch([f"{self.anchor} {word} {self.anchor}" for word in words])
        found: list[tuple[int, ...]] = []
        for ids in encoded:
            inner = tuple(ids[len(head) : len(ids) - len(tail)])
            found.append(inner if (*head, *inner, *tail) == tuple(ids) else ())
        return found

    def usable(self) -> list[int]:
        """The numbers of all words that may stand in a prompt."""
        return [number for number, count in enumerate(self.counts) if count]

    def first_ids(self, numbers: Sequence[int]) -> list[tuple[int, ...]]:
        """The ids of words at the start of a text; () where they are not the same before another word."""
        texts = [self.texts[number] for number in numbers]
        found: list[tuple[int, ...]] = []
        for start in range(0, len(texts), 8192):
            part = texts[start : start + 8192]
            alone = self._tokenizer.encode_plain_batch(part)
            followed = self._tokenizer.encode_plain_batch([f"{text} {self.anchor}" for text in part])
            for ids, longer in zip(alone, followed, strict=True):
                found.append(tuple(ids) if (*ids, *self.anchor_middle) == tuple(longer) else ())
        return found


def _find_anchor(tokenizer: PromptTokenizer, cleaner: TextCleaner) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """A word that stays the same beside others, with its ids at the start and in the middle of a text."""
    for anchor in ("a", "the", "x", "1", "of", "的", "to"):
        one, two, three = tokenizer.encode_plain_batch([anchor, f"{anchor} {anchor}", f"{anchor} {anchor} {anchor}"])
        middle = two[len(one) :]
        if one and middle and two[: len(one)] == one and three == one + middle + middle and cleaner.words(anchor):
            return anchor, tuple(one), tuple(middle)
    raise GenerationError.of(
        Code.TOKENIZER_JOINS_WORDS,
        "scenario: tokenizer.path",
        "the tokenizer encodes words that are joined by a space as one, so that a prompt cannot be cut between words",
    )


def _any_of(fragments: Iterable[str], characters: str) -> re.Pattern[str]:
    """An expression for any of the characters (the inside of a class) and of the texts.

    The look-ahead lets the engine skip characters that begin none of a thousand texts at once.
    """
    longest_first = sorted(fragments, key=lambda text: (-len(text), text))
    if not longest_first:
        return re.compile(f"[{characters}]")
    first = "".join(sorted({re.escape(text[0]) for text in longest_first}))
    return re.compile(f"[{characters}]|(?=[{first}])(?:{'|'.join(re.escape(text) for text in longest_first)})")


def _divide(word: str) -> list[str]:
    """Parts of at most :data:`MAX_WORD_CHARACTERS`, cut between graphemes, after punctuation if possible.

    One grapheme of more characters is left out.
    """
    if len(word) <= MAX_WORD_CHARACTERS:
        return [word] if word else []
    parts: list[str] = []
    start = 0
    places = [*cuts(word), len(word)]
    while len(word) - start > MAX_WORD_CHARACTERS:
        first = bisect_right(places, start)
        near = places[first : bisect_right(places, start + MAX_WORD_CHARACTERS)]
        if not near:
            start = places[first]
            continue
        least = start + MAX_WORD_CHARACTERS // 4
        after_marks = [place for place in near if place > least and word[place - 1] in _SENTENCE_MARKS]
        cut = (after_marks or near)[-1]
        parts.append(word[start:cut])
        start = cut
    return [*parts, word[start:]] if start < len(word) else parts


def vocabulary_words(
    tokenizer: PromptTokenizer, cleaner: TextCleaner, *, common: bool, most: int | None = None
) -> list[str]:
    """Words that the vocabulary holds as one token after a space, in the order of their ids; the first ``most``.

    ``common`` keeps plain ASCII words of three letters and more; otherwise every word that may stand in a prompt.
    """
    found: dict[str, None] = {}
    for token, _ in sorted(tokenizer.vocabulary().items(), key=lambda item: item[1]):
        text = token[1:] if token.startswith(("▁", "Ġ", " ")) else token
        if common:
            if not (len(text) >= 3 and text.isascii() and text.isalpha()):
                continue
        elif not text.isascii() and not token.startswith("▁"):
            text = _from_byte_level(token).removeprefix(" ")
        if text and cleaner.words(text) == [text]:
            found[text] = None
            if len(found) == most:
                break
    return list(found)


def _byte_level_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-ins for the 256 bytes, each with its byte; what is none of them with no byte at all."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {256 + n: chr(byte) for n, byte in enumerate(others)}
    return dict.fromkeys(others, "\uffff") | {byte: chr(byte) for byte in printable} | stand_ins


_BYTE_LEVEL = _byte_level_alphabet()


def _from_byte_level(token: str) -> str:
    """The text of a byte-level token; the token itself where it is none."""
    try:
        return token.translate(_BYTE_LEVEL).encode("latin-1").decode("utf-8")
    except UnicodeError:
        return token
