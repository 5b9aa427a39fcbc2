"""Reading texts of exact lengths off rows, against the raw tokenizer."""

from __future__ import annotations

import pytest
from tests.doubles.tokenizer_families import ENGLISH

from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.exact_text.row_text import RowReader, Unfillable

from .conftest import OpenLexicon


@pytest.fixture(scope="module", params=["gpt2", "llama2", "wordpiece"])
def lexicon(request: pytest.FixtureRequest, open_lexicon: OpenLexicon) -> Lexicon:
    return open_lexicon(request.param)


def reader_of(lexicon: Lexicon) -> RowReader:
    slots = list(lexicon.rows.slot.values())
    return RowReader(lexicon.rows, lexicon.fillers, lambda _number: slots)


def tokens_after_a_word(lexicon: Lexicon, text: str) -> list[int]:
    anchor = lexicon.table.anchor
    (alone, followed) = lexicon.tokenizer.encode_plain_batch([anchor, f"{anchor} {text}" if text else anchor])
    assert followed[: len(alone)] == alone
    return followed[len(alone) :]


def test_texts_have_exactly_the_tokens_that_were_asked_for(lexicon: Lexicon) -> None:
    reader, rows = reader_of(lexicon), lexicon.rows
    for tokens in (1, 2, 3, 7, 19, 64, 333, 1, 5000, 2):
        text = reader.take(tokens, tokens)
        ids = tokens_after_a_word(lexicon, rows.render(text))
        assert len(ids) == tokens
        assert ids == [token for word in rows.word_numbers(text) for token in lexicon.table.ids[word]]
        assert rows.render(text).split(" ")[0] == lexicon.table.texts[rows.first_word(text)]
        assert " ".join(rows.pieces(text)) == rows.render(text)


def test_texts_follow_each_other_through_the_rows(lexicon: Lexicon) -> None:
    reader, rows = reader_of(lexicon), lexicon.rows
    whole = reader.take(rows.tokens[0] + rows.tokens[1], 0)
    assert rows.render(whole) == f"{rows.text[0]} {rows.text[1]}"
    assert rows.used_rows(whole) == (0, 1)
    reader.seek(4)
    reader.take(1, 0)
    reader.skip_rest_of_row()
    assert reader.slot == 5
    reader.take(rows.tokens[5], 0)
    assert reader.slot == 0


def test_rows_hold_the_words_of_the_corpus(lexicon: Lexicon) -> None:
    rows, cleaner = lexicon.rows, lexicon.cleaner
    for number, text in enumerate(ENGLISH):
        assert rows.text[rows.slot[number]] == " ".join(cleaner.words(text))
        assert rows.tokens[rows.slot[number]] == len(tokens_after_a_word(lexicon, rows.text[rows.slot[number]]))


def test_fillers_reach_every_sum_of_their_counts(lexicon: Lexicon) -> None:
    fillers, counts = lexicon.fillers, lexicon.table.counts
    for tokens in range(1, 40):
        assert fillers.can_make(tokens)
        assert sum(counts[word] for word in fillers.make(tokens, 3)) == tokens


def test_a_length_that_no_words_add_up_to_is_unfillable(open_lexicon: OpenLexicon) -> None:
    lexicon = open_lexicon("bytes only", ["cats"])
    counts = {count for count in lexicon.table.counts if count}
    least = min(counts)
    assert least > 1, "a space and a letter are two bytes"
    with pytest.raises(Unfillable) as refusal:
        reader_of(lexicon).take(1, 0)
    assert refusal.value.tokens == 1
