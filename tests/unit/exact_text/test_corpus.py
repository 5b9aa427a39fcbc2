"""Reading and selecting corpus rows: what is accepted, and the whole sentence for what is not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ais_bench_prefix_cache.exact_text.corpus import Corpus, load_corpus, select_rows
from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.scenario.model import CorpusSelection


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(data)
    return path


def test_blank_lines_crlf_and_a_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf{"question": " a\\t b "}\r\n\r\n   \n{"question": "c\\u00a0d"}'
    corpus = load_corpus(write(tmp_path, data), "question")
    assert corpus.rows == ("a b", "c d")
    assert corpus.sha256 == hashlib.sha256(data).hexdigest()
    assert corpus.row_sha256 == (hashlib.sha256(b"a b").hexdigest(), hashlib.sha256(b"c d").hexdigest())


def test_a_raw_line_separator_does_not_end_a_line(tmp_path: Path) -> None:
    corpus = load_corpus(write(tmp_path, '{"q": "a\u2028b\x85c"}\n'.encode()), "q")
    assert corpus.rows == ("a b c",)


BAD_LINES = {
    b"{": "the line is not JSON: Expecting property name enclosed in double quotes (line 1, column 2) (allowed: "
    "one JSON object)",
    b"[1]": "the line is not a JSON object (allowed: one JSON object)",
    b'{"answer": "x", "id": 1}': "the field 'question' is missing\n"
    "    The row has 'answer', 'id'; corpus.field names the text.",
    b"{}": "the field 'question' is missing\n    The row has no fields; corpus.field names the text.",
    b'{"question": 3}': "the field 'question' is not a string (allowed: a string)",
    b'{"question": " \\u3000\\n"}': "the field 'question' is blank (allowed: text)",
    b'{"question": "\xff"}': "the line is not UTF-8: byte 0xff at position 14 (line 1) (allowed: one JSON object)\n"
    "    save it as UTF-8",
    b'{"question": "\\ud83d"}': "the field 'question' holds half of a surrogate pair, which no UTF-8 file can hold",
}


@pytest.mark.parametrize(("line", "sentence"), BAD_LINES.items())
def test_a_bad_line_is_named(line: bytes, sentence: str, tmp_path: Path) -> None:
    path = write(tmp_path, b'{"question": "good"}\n\n' + line + b"\n")
    with pytest.raises(ScenarioError) as caught:
        load_corpus(path, "question")
    assert str(caught.value) == f"corpus.jsonl line 3: {sentence}"


def test_all_bad_lines_are_counted_in_one_error(tmp_path: Path) -> None:
    lines = [b"1", b'{"question": "x"}', b"2", b"{", b'{"question": 1}', *[b'{"answer": ""}'] * 9]
    path = write(tmp_path, b"\n".join(lines))
    with pytest.raises(ScenarioError) as caught:
        load_corpus(path, "question")
    assert len(caught.value.problems) == 1
    assert str(caught.value).split("\n") == [
        f"{path}: 13 of 14 rows cannot be used",
        "    line 1: the line is not a JSON object (allowed: one JSON object)",
        "    and 2 more of this kind: lines 3, 4",
        "    line 5: the field 'question' is not a string (allowed: a string)",
        "    line 6: the field 'question' is missing",
        "    The row has 'answer'; corpus.field names the text.",
        "    and 8 more of this kind: lines 7, 8, 9, 10, 11, …",
    ]


USUAL = {
    '{"question": " a  b"}': "question",
    '{"prompt": "a b", "text": "no"}': "prompt",
    '{"id": 1, "text": "a\\nb"}': "text",
    '{"output": "no", "instruction": "a b"}': "instruction",
    '{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": null}, {"content": "b"}]}': (
        "messages[].content"
    ),
    '{"messages": [{"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}]}': (
        "messages[].content"
    ),
    '{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}': "conversations[].value",
}


@pytest.mark.parametrize(("line", "field"), USUAL.items())
def test_the_usual_fields_are_found_where_the_default_is_missing(line: str, field: str, tmp_path: Path) -> None:
    corpus = load_corpus(write(tmp_path, line.encode()), "question")
    assert (corpus.rows, corpus.field) == (("a b",), field)


def test_a_field_that_was_named_is_not_replaced(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"text": "a", "deep": {"list": [{"say": "b"}, {"say": "c"}]}}')
    assert load_corpus(path, "deep.list[].say").rows == ("b c",)
    with pytest.raises(ScenarioError, match="the field 'prompt' is missing"):
        load_corpus(path, "prompt")
    with pytest.raises(ScenarioError, match="the field 'question' is missing"):
        load_corpus(write(tmp_path, b'{"question": "a"}\n{"text": "b"}'), "question")
    with pytest.raises(ScenarioError, match=r"corpus.field 'messages\[\].content' takes the texts in it."):
        load_corpus(write(tmp_path, b'{"messages": [{"content": "a"}]}'), "messages")


def test_a_missing_an_empty_file_and_a_directory_are_named(tmp_path: Path) -> None:
    for path, sentence in [
        (tmp_path / "no.jsonl", f"the file {str(tmp_path / 'no.jsonl')!r} does not exist"),
        (tmp_path, f"{str(tmp_path)!r} is a directory (allowed: a file of rows)"),
    ]:
        with pytest.raises(ScenarioError) as caught:
            load_corpus(path, "question")
        assert str(caught.value) == f"scenario: corpus.path: {sentence}"
    with pytest.raises(ScenarioError) as caught:
        load_corpus(write(tmp_path, b"\n \r\n"), "question")
    assert caught.value.problems[0].code == "CORPUS_EMPTY"


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    lines = b"".join(b'{"question": "%s"}\n' % text for text in (b"a", b"b", b"c", b"b"))
    return load_corpus(write(tmp_path, lines), "question")


def select(corpus: Corpus, selection: CorpusSelection) -> list[list[int]]:
    rows = select_rows(corpus, selection, random_seed=7, labels=("corpus",), where="scenario: corpus.selection")
    return [rows.cycle(number) for number in range(3)]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_random_shuffles_each_cycle_anew(tmp_path: Path) -> None:
    lines = b"".join(b'{"question": "row %d"}\n' % n for n in range(50))
    cycles = select(load_corpus(write(tmp_path, lines), "question"), CorpusSelection("random"))
    assert all(sorted(cycle) == list(range(50)) for cycle in cycles)
    assert len({tuple(cycle) for cycle in cycles}) == 3


def test_lists_repeat_and_mixed_takes_indices_first(corpus: Corpus) -> None:
    assert select(corpus, CorpusSelection("indices", (2, 0))) == [[2, 0]] * 3
    assert select(corpus, CorpusSelection("question_sha256", (), (digest("c").upper(),))) == [[2]] * 3
    assert select(corpus, CorpusSelection("mixed", (3, 1), (digest("a"),))) == [[3, 1, 0]] * 3


def test_missing_rows_and_ambiguous_digests_are_all_named(corpus: Corpus) -> None:
    with pytest.raises(ScenarioError) as caught:
        select(corpus, CorpusSelection("mixed", (0, 4), (digest("b"), digest("z"))))
    path = str(corpus.path)
    assert str(caught.value).split("\n") == [
        f"scenario: corpus.selection.indices[1]: the corpus {path!r} has no row 4 (allowed: 0 to 3)",
        f"scenario: corpus.selection.question_sha256[0]: {digest('b')} matches 2 rows (1, 3) of the corpus {path!r} "
        "(allowed: the digest of exactly one row)",
        f"scenario: corpus.selection.question_sha256[1]: {digest('z')} matches no row of the corpus {path!r} "
        "(allowed: the digest of exactly one row)",
    ]
