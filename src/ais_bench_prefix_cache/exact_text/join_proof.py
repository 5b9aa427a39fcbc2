"""May words joined by single spaces be encoded one by one? Decided from the tokenizer's own definition.

A tokenizer of the ``tokenizers`` library is a chain: split at added tokens → normalizer → pre-tokenizer → model →
special tokens. Prompts are words joined by one space, hold no added token, and no word begins with a combining mark or
ends with a joiner (:mod:`.words`). :func:`prove_joins` walks the chain and looks for one of two arguments that the ids
of ``A + " " + B`` are the ids of ``A`` followed by those of ``" " + B`` in the middle of a text:

1. *Split*: every stage before some pre-tokenizer works on both sides of a single space independently, and that
   pre-tokenizer always splits there. Whatever comes later sees the two sides apart.
2. *Vocabulary*: every stage works independently, the model is BPE, and no token of its vocabulary holds a space after a
   word character. A merge makes a vocabulary token, so none crosses the space, and merges on one side never depend on
   the other. A few such tokens do no harm where no word of a prompt begins with what follows the space in them.

``docs/exact-prompts.md`` has the argument in full.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.exact_text.split_pattern import pattern_at_space

METASPACE = "▁"
BYTE_LEVEL_SPACE = "Ġ"

MAX_CROSSING_TOKENS = 16
"""So few tokens across a space (Gemma 3 has one) are kept from forming by leaving out the words that they need."""

_LOCAL_NORMALIZERS = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Nmt", "Precompiled"}
)


@dataclass(frozen=True)
class JoinProof:
    """``proven`` with the argument that holds, or not, with what stands in the way.

    ``unsafe_starts``: what no word may begin with, after normalization, for the proof to hold.
    """

    proven: bool
    reason: str
    unsafe_starts: tuple[str, ...] = ()


class _Obstacle(Exception):
    pass


def prove_joins(backend: Any | None) -> JoinProof:
    """Whether words joined by single spaces provably encode independently on this ``tokenizers.Tokenizer``."""
    if backend is None:
        return JoinProof(False, "the tokenizer encodes in Python code, which cannot be examined")
    try:
        space, adds_spaces = _normalizers(_state(backend.normalizer))
        splitter, space = _pre_tokenizers(_state(backend.pre_tokenizer), space, adds_spaces)
        if splitter is not None:
            return JoinProof(True, f"the pre-tokenizer {splitter} splits before every single space")
        unsafe_starts = _model_never_crosses(backend, space)
    except _Obstacle as obstacle:
        return JoinProof(False, str(obstacle))
    reason = f"no token of the BPE vocabulary holds {space!r} after another character"
    if unsafe_starts:
        reason += f" and before a word that does not begin with {' or '.join(map(repr, unsafe_starts))}"
    return JoinProof(True, reason, unsafe_starts)


def _state(component: Any | None) -> dict[str, Any] | None:
    """The JSON definition of a normalizer or pre-tokenizer."""
    if component is None:
        return None
    try:
        state = json.loads(component.__getstate__())
    except Exception as error:  # A component written in Python has no definition.
        raise _Obstacle(f"{type(component).__name__} is custom code") from error
    assert isinstance(state, dict)
    return state


def _members(state: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if state is None:
        return []
    if state.get("type") == "Sequence":
        return [leaf for member in state[key] for leaf in _members(member, key)]
    return [state]


def _normalizers(state: dict[str, Any] | None) -> tuple[str, bool]:
    """What the space becomes, and whether further spaces may appear around characters."""
    space, adds_spaces = " ", False
    for normalizer in _members(state, "normalizers"):
        kind = normalizer["type"]
        if kind == "Replace":
            space = _replace(normalizer, space)
        elif kind == "Prepend":
            if normalizer["prepend"] not in (METASPACE, " "):
                raise _Obstacle(f"the normalizer puts {normalizer['prepend']!r} before the text")
        elif kind == "ByteLevel":
            if space != " ":
                raise _Obstacle("the ByteLevel normalizer meets a space that was already replaced")
            space = BYTE_LEVEL_SPACE
        elif kind == "BertNormalizer":
            adds_spaces |= bool(normalizer.get("handle_chinese_chars"))
        elif kind not in _LOCAL_NORMALIZERS:
            raise _Obstacle(f"the normalizer {kind} is not known")
        elif space == BYTE_LEVEL_SPACE:
            raise _Obstacle(f"the normalizer {kind} follows the byte-level alphabet")
    return space, adds_spaces


def _replace(normalizer: dict[str, Any], space: str) -> str:
    pattern, content = normalizer["pattern"], normalizer["content"]
    text = pattern.get("String")
    if text is not None:
        if text == space:
            if content not in (METASPACE, " "):
                raise _Obstacle(f"the normalizer replaces the space by {content!r}")
            return str(content)
        if space in text or text == "":
            raise _Obstacle(f"the normalizer replaces {text!r}, which holds a space")
        # A space that this inserts into a word takes the word out of the prompts (TextCleaner.keeps).
        return space
    expression = pattern.get("Regex", "")
    if space == " " and re.fullmatch(r"(?: |\\s)(?:\+|\{1,\})?", expression):
        if content not in (METASPACE, " "):
            raise _Obstacle(f"the normalizer replaces spaces by {content!r}")
        return str(content)
    found = pattern_at_space(expression, space)
    if not found.local:
        raise _Obstacle(f"the normalizer replaces {expression!r}: {found.reason}")
    # It must leave a single space alone: only an expression of two or more spaces, or of none at all, does.
    if not re.fullmatch(r"(?: |\\s)\{2,\}", expression) and space in expression:
        raise _Obstacle(f"the normalizer replaces {expression!r}, which may match a single space")
    if "\\s" in expression and not re.fullmatch(r"\\s\{2,\}", expression):
        raise _Obstacle(f"the normalizer replaces {expression!r}, which may match a single space")
    return space


def _pre_tokenizers(state: dict[str, Any] | None, space: str, adds_spaces: bool) -> tuple[str | None, str]:
    """The stage that always splits before a single space (or None), and what the space has become."""
    for stage in _members(state, "pretokenizers"):
        kind = stage["type"]
        if kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer"):
            if space != " ":
                raise _Obstacle(f"the pre-tokenizer {kind} meets the space as {space!r}")
            return kind, space
        if adds_spaces:
            raise _Obstacle(
                "the normalizer puts spaces around Chinese characters before something else than a white-space split"
            )
        if kind == "ByteLevel":
            if space != " ":
                raise _Obstacle(f"the pre-tokenizer ByteLevel meets the space as {space!r}")
            if stage.get("use_regex", True):
                return "ByteLevel", BYTE_LEVEL_SPACE
            space = BYTE_LEVEL_SPACE
        elif kind == "Metaspace":
            if stage.get("replacement", METASPACE) != METASPACE:
                raise _Obstacle(f"the pre-tokenizer Metaspace writes the space as {stage['replacement']!r}")
            space = METASPACE
            if stage.get("split", True):
                return "Metaspace", space
        elif kind == "Split":
            if _split(stage, space):
                return "Split", space
        elif kind == "CharDelimiterSplit":
            if stage["delimiter"] == space:
                return kind, space
        elif kind == "Punctuation":
            if stage.get("behavior", "Isolated") not in ("Isolated", "Removed", "Contiguous"):
                raise _Obstacle(f"the pre-tokenizer Punctuation joins neighbours ({stage['behavior']})")
        elif kind != "Digits":
            raise _Obstacle(f"the pre-tokenizer {kind} looks at both sides of a space")
    return None, space


def _split(stage: dict[str, Any], space: str) -> bool:
    """Whether a Split stage always splits before the space; an obstacle if it is not even local there."""
    behavior, invert = stage["behavior"], stage.get("invert", False)
    text = stage["pattern"].get("String")
    if text is not None:
        if any(character.isspace() and character != space for character in text):
            return False  # It never matches: the space is the only white space of a prompt, or was replaced too.
        if text == space and not invert and behavior in ("Isolated", "Removed", "MergedWithNext"):
            return True
        if space not in text and text and not invert and behavior in ("Isolated", "Removed"):
            return False
        raise _Obstacle(f"the pre-tokenizer splits at {text!r} ({behavior}), which is not known to end at a space")
    if behavior not in ("Isolated", "Removed"):
        raise _Obstacle(f"the pre-tokenizer joins matches with their neighbours ({behavior})")
    found = pattern_at_space(stage["pattern"]["Regex"], space)
    if not found.local:
        raise _Obstacle(f"the pre-tokenizer's expression is not known to stop at a space: {found.reason}")
    # Where only matches are kept, a space that none of them holds is taken out, and its sides lie apart.
    return found.splits or (behavior == "Removed" and invert and not found.holds_space)


def _model_never_crosses(backend: Any, space: str) -> tuple[str, ...]:
    """What no word may begin with so that no merge crosses a space; an obstacle if that is too much."""
    model = backend.model
    kind = type(model).__name__
    if kind != "BPE":
        raise _Obstacle(f"nothing splits the text at spaces before the {kind} model")
    if getattr(model, "ignore_merges", False):
        raise _Obstacle("nothing splits the text at spaces before a BPE model that ignores merges for whole words")
    if model.end_of_word_suffix or model.continuing_subword_prefix:
        raise _Obstacle("nothing splits the text at spaces before a BPE model that marks the ends of words")
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if space not in vocabulary:
        raise _Obstacle(f"the vocabulary does not hold the space {space!r}")
    crossing = sorted(token for token in vocabulary if _crosses(token, space))
    # The first merge that crosses a space makes one of these tokens, so its second word begins as the token goes on.
    unsafe_starts = sorted({_after_space(token, space) for token in crossing})
    if len(crossing) > MAX_CROSSING_TOKENS or "" in unsafe_starts or (crossing and space != METASPACE):
        raise _Obstacle(
            f"{len(crossing)} tokens of the vocabulary hold a space after another character, such as {crossing[0]!r}"
        )
    return tuple(unsafe_starts)


def _crosses(token: str, space: str) -> bool:
    return space in token.lstrip(space)


def _after_space(token: str, space: str) -> str:
    """What follows the first space that a token holds after another character, up to the next space."""
    return token.lstrip(space).partition(space)[2].partition(space)[0]
