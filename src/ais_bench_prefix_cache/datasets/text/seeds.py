"""How much of each prompt its seed is, and the codes that make all seeds different.

A prompt's token positions are those of its shared prefix, of its seed (whole blocks) and of its natural suffix. Special
tokens that the endpoint adds before a prompt lie in the first of these that there is, those after it in the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ais_bench_prefix_cache.exact_text.seed_codes import SeedCodes, find_alphabets
from ais_bench_prefix_cache.exact_text.words import MAX_VOCABULARY_WORDS
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
    from ais_bench_prefix_cache.exact_text.seed_codes import Alphabet
    from ais_bench_prefix_cache.planning.plan import Int64Column, Plan

MAX_CANDIDATES = 2048
"""Words of the corpus that are examined for the seeds' alphabet, those of few tokens first."""
SMALL_COUNT = 256
"""Only sums below this are examined for being reachable with the words at hand; beyond it they always are."""
MAX_DIGITS = 64


@dataclass(frozen=True)
class WordTokens:
    """Tokens of words, special ones left out, in each request's seed and natural suffix; one entry a request."""

    seed: Int64Column
    suffix: Int64Column


def word_tokens(plan: Plan, lexicon: Lexicon) -> WordTokens:
    """What is left for words in the seeds and suffixes of a plan.

    Raises:
        GenerationError: special tokens fill a block, so that every request would hit it; a request is shorter than its
            shared prefix and its seed.
    """
    before, after = lexicon.before, lexicon.after
    if plan.block_size <= before:
        raise GenerationError.of(
            Code.BLOCK_SIZE_TOO_SMALL,
            "scenario: tokenizer.block_size",
            f"the tokenizer puts {before} special token(s) before every prompt, so with blocks of {plan.block_size} "
            "the first block of all prompts is the same and every request hits it",
            allowed=f"a block size of at least {before + 1}",
        )
    natural = plan.input_tokens - plan.shared_prefix_tokens - plan.seed_tokens
    if natural.size and int(natural.min()) < 0:
        index = int(natural.argmin())
        raise GenerationError.of(
            Code.PLAN_TOO_SHORT,
            f"request {index}",
            f"{int(plan.input_tokens[index])} tokens do not hold {int(plan.shared_prefix_tokens[index])} shared "
            f"and {plan.seed_tokens} seed tokens",
        )
    at_start = np.where(plan.shared_prefix_tokens == 0, before, 0)
    return WordTokens(
        seed=plan.seed_tokens - at_start - np.maximum(after - natural, 0), suffix=np.maximum(natural - after, 0)
    )


def choose_codes(lexicon: Lexicon, plan: Plan, words: WordTokens, random_seed: int) -> SeedCodes:
    """Codes that are different for every request and group, and fit into the first block after every shared prefix.

    Raises:
        GenerationError: a seed has no room for one.
    """
    block, table = plan.block_size, lexicon.table
    shares = plan.shared_prefix_tokens > 0
    room_middle = [min(block, int(tokens)) for tokens in np.unique(words.seed[shares])]
    room_first = [min(block - lexicon.before, int(tokens)) for tokens in np.unique(words.seed[~shares])]
    groups = int((plan.canonical_prefix_tokens > 0).sum())
    if groups:
        room_first.append(block - lexicon.before)
        room_middle.append(min(block, plan.seed_tokens - lexicon.after))
    wanted = 2 * groups + len(plan) + int(plan.canonical_prefix_tokens.sum()) // block
    rests = {int(tokens) for tokens in np.unique(words.seed)} if plan.seed_tokens <= SMALL_COUNT else set()
    best: SeedCodes | None = None
    # Words of the corpus suffice unless blocks are tiny; then the vocabulary's common words, then as many as should
    # do, then all of them.
    for step, most in enumerate((0, MAX_VOCABULARY_WORDS, max(4 * MAX_VOCABULARY_WORDS, 8 * wanted), None)):
        if step:
            lexicon.add_vocabulary(common=step == 1, most=most)
        candidates = table.usable()
        if not step:
            counts, texts = table.counts, table.texts
            candidates.sort(key=lambda n: (counts[n], not texts[n].isalpha(), len(texts[n]) < 3))
            del candidates[MAX_CANDIDATES:]
        alphabets = find_alphabets(table, candidates, random_seed=random_seed)
        for alphabet in sorted(alphabets, key=lambda a: (a.middle_tokens + a.first_tokens, -len(a.words))):
            digits = _fitting_digits(lexicon, alphabet, wanted, room_first, room_middle, rests)
            if not digits:
                continue
            codes = SeedCodes(alphabet, digits, random_seed)
            if best is None or codes.capacity > best.capacity:
                best = codes
            if codes.capacity >= 2 * wanted:
                return codes
    if best is None:
        raise GenerationError.of(
            Code.SEED_TOO_SHORT,
            "scenario: prefix_cache.seed_blocks",
            f"a seed of {plan.seed_tokens} tokens in blocks of {block} has no room for a word that tells requests "
            f"apart, with {lexicon.before} special token(s) before and {lexicon.after} after every prompt",
            hint="Use a larger block size, or one more seed block.",
        )
    return best


def _fitting_digits(
    lexicon: Lexicon, alphabet: Alphabet, wanted: int, room_first: list[int], room_middle: list[int], rests: set[int]
) -> int:
    """Digits of the shortest codes that suffice, or of the longest that fit; 0 where none do.

    ``rests`` are seeds whose words must add up to what the code leaves of them.
    """
    found = 0
    for digits in range(1, MAX_DIGITS + 2):
        middle = digits * alphabet.middle_tokens
        first = middle - alphabet.middle_tokens + alphabet.first_tokens
        if any(first > room for room in room_first) or any(middle > room for room in room_middle):
            break
        left = {rest - code for rest in rests for code in (middle, first)}
        if all(lexicon.fillers.can_make(tokens) for tokens in left if tokens >= 0):
            found = digits
            if len(alphabet.words) ** digits >= 2 * wanted:
                break
    return found


def check_short_texts(lexicon: Lexicon, plan: Plan, words: WordTokens, codes: SeedCodes) -> None:
    """Refuse lengths that no words add up to, while nothing is built yet.

    Raises:
        GenerationError: a seed, with a suffix too short for words of its own, cannot be filled.
    """
    suffix = np.minimum(words.suffix, SMALL_COUNT + 1)
    shapes = np.stack([plan.shared_prefix_tokens > 0, words.seed, suffix], axis=1)
    for shares, seed_tokens, suffix_tokens in np.unique(shapes, axis=0).tolist():
        rest = seed_tokens - (codes.middle_tokens if shares else codes.first_tokens)
        if no_words_are_as_short(lexicon, suffix_tokens):
            rest += suffix_tokens
        if no_words_are_as_short(lexicon, rest):
            raise lexicon.not_reachable("a seed", rest)


def no_words_are_as_short(lexicon: Lexicon, tokens: int) -> bool:
    """Whether no words add up to so few tokens; a suffix so short is written together with its seed."""
    return tokens <= SMALL_COUNT and not lexicon.fillers.can_make(tokens)
