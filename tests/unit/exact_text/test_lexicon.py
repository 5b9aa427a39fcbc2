"""How many rows are read, what is refused in which words, and the loop that writes again what is not exact."""

from __future__ import annotations

import pytest
from tests.doubles.tokenizer_families import ENGLISH

from ais_bench_prefix_cache.exact_text.exact_rows import MAX_ATTEMPTS
from ais_bench_prefix_cache.exact_text.lexicon import made_exact
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError

from .conftest import OpenLexicon


def test_as_many_rows_are_read_as_texts_can_use(open_lexicon: OpenLexicon) -> None:
    lexicon = open_lexicon("gpt2", ["a b c d e f g h"])
    read = lexicon.read(ENGLISH * 10, range(len(ENGLISH) * 10), tokens=100, starts=2, at_once=1)
    rows = lexicon.rows
    longest = max(rows.tokens[1:])
    last = rows.tokens[-1]
    assert read - last <= 100 + 2 * longest < read
    everything = lexicon.read(ENGLISH, range(len(ENGLISH)))
    assert everything == sum(rows.tokens[rows.slot[row]] for row in range(len(ENGLISH)))


def test_refusals_name_what_and_where(open_lexicon: OpenLexicon) -> None:
    lexicon = open_lexicon("gpt2")
    (problem,) = lexicon.not_exact("request 7 differs").problems
    assert (problem.code, problem.where) == ("PROMPTS_NOT_EXACT", "scenario: tokenizer.path")
    assert problem.message == f"request 7 differs, so its length cannot be guaranteed ({lexicon.proof.reason})"
    (problem,) = lexicon.not_reachable("request 7", 3).problems
    assert (problem.code, problem.where) == ("LENGTH_NOT_REACHABLE", "scenario: corpus.path")
    assert problem.message.startswith("request 7 needs a text of exactly 3 token(s), and neither ")


def refusal(problem: str) -> GenerationError:
    return GenerationError.of(Code.PROMPTS_NOT_EXACT, "here", problem)


def test_drafts_are_written_until_one_has_no_problem() -> None:
    written: list[tuple[int, int | None]] = []

    def write(attempt: int, last: int | None) -> int:
        written.append((attempt, last))
        return 10 * attempt

    assert made_exact(write, lambda draft: "" if draft == 30 else "too small", refusal) == 30
    assert written == [(0, None), (1, 0), (2, 10), (3, 20)]


def test_the_last_problem_is_refused() -> None:
    count = 0

    def write(attempt: int, last: int | None) -> int:
        nonlocal count
        count += 1
        return attempt

    with pytest.raises(GenerationError, match=f"draft {MAX_ATTEMPTS - 1} is wrong"):
        made_exact(write, lambda draft: f"draft {draft} is wrong", refusal)
    assert count == MAX_ATTEMPTS
    with pytest.raises(GenerationError, match="draft 0 is wrong"):
        made_exact(lambda attempt, last: 0 if last is None else None, lambda draft: f"draft {draft} is wrong", refusal)


def test_where_a_proof_holds_one_attempt_decides(open_lexicon: OpenLexicon) -> None:
    lexicon = open_lexicon("gpt2")
    with pytest.raises(GenerationError, match="the prompt of request 3 is wrong"):
        lexicon.exact("the prompt of request 3", lambda attempt, last: attempt, lambda draft: "is wrong")
    unproven = open_lexicon("unigram without split")
    assert unproven.exact("x", lambda attempt, last: attempt, lambda draft: "" if draft == 5 else "is wrong") == 5
