"""Prompts of conversations, put together from what was sent and what came back."""

from __future__ import annotations

from typing import Any

from ais_bench_prefix_cache.aisbench.adapters.histories import FORMS, ChatHistories, Histories, TextHistories


def row(index: int, continues: int | None, ids: list[int], script: list[int] | None = None) -> dict[str, Any]:
    return {
        "sequence_index": index,
        "continues": continues,
        "token_ids": ids,
        "answer_token_ids": script or [],
        "spare_token_id": 99 if script else None,
    }


def test_a_turn_begins_with_all_that_was_sent_and_answered() -> None:
    histories = Histories({0: 1, 1: 1})
    rows = [row(0, None, [1, 2]), row(1, 0, [5]), row(2, 1, [8])]
    first = histories.prompt(rows[0])
    assert first == [1, 2]
    histories.answered(rows[0], first, [3, 4])
    second = histories.prompt(rows[1])
    assert second == [1, 2, 3, 4, 5]
    histories.answered(rows[1], second, [6, 7])
    assert histories.prompt(rows[2]) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_script_stands_in_place_of_the_answer_and_never_begins_like_it() -> None:
    for answer, kept in (([7, 4], [3, 4]), ([3, 4], [99, 4])):
        histories = Histories({0: 1})
        first = row(0, None, [1], script=[3, 4])
        histories.answered(first, [1], answer)
        assert histories.prompt(row(1, 0, [5])) == [1, *kept, 5]


def test_a_history_that_two_turns_continue_is_kept_for_both_and_then_dropped() -> None:
    histories = Histories({0: 2})
    histories.answered(row(0, None, [1]), [1], [2])
    assert [histories.prompt(row(index, 0, [index])) for index in (1, 2, 3)] == [[1, 2, 1], [1, 2, 2], None]


def test_without_an_answer_there_is_no_prompt_and_what_nobody_continues_is_not_kept() -> None:
    histories = Histories({0: 1})
    assert histories.prompt(row(1, 0, [5])) is None
    histories.answered(row(7, None, [1]), [1], [2])
    assert histories.prompt(row(8, 7, [5])) is None


TURNS: list[dict[str, Any]] = [
    {
        **row(0, None, [], script=[1]),
        "system_prompt": "be kind",
        "question": "q0",
        "answer": "art is long",
        "spare": "no",
    },
    {**row(1, 0, [], script=[1]), "system_prompt": "", "question": "q1 more", "answer": "art", "spare": "no"},
]


def test_texts_stand_behind_single_spaces_and_a_script_never_begins_like_the_answer() -> None:
    for answer, kept in (
        ("some words", "art is long"),
        (" artful words", "no is long"),
        ("art", "no is long"),
        (" ar", "art is long"),
    ):
        histories = TextHistories({0: 1})
        first = histories.prompt(TURNS[0])
        assert first == "be kind q0"
        histories.answered(TURNS[0], first, answer)
        assert histories.prompt(TURNS[1]) == f"be kind q0 {kept} q1 more"


def test_a_chat_sends_messages_with_the_servers_answers_or_with_the_script() -> None:
    system, first = {"role": "system", "content": "be kind"}, {"role": "user", "content": "q0"}
    unscripted = [{**turn, "answer_token_ids": [], "answer": "none"} for turn in TURNS]
    for turns, said in ((TURNS, "art is long"), (unscripted, " What?")):
        histories = ChatHistories({0: 1})
        assert histories.prompt(turns[0]) == [system, first]
        histories.answered(turns[0], [system, first], " What?")
        later = histories.prompt(turns[1])
        answer, second = {"role": "assistant", "content": said}, {"role": "user", "content": "q1 more"}
        assert later == [system, first, answer, second]


def test_every_form_of_a_scenario_has_its_histories() -> None:
    assert {"token_ids": Histories, "text": TextHistories, "chat": ChatHistories} == FORMS
