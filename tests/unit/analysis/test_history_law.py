"""The law on the numbers that a chat server told, worked out by hand: blocks of 16 tokens."""

from __future__ import annotations

from ais_bench_prefix_cache.analysis.history_law import law_of_answers
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.run_facts import HistoryFact, RunFacts
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.datasets.conversations.plan_replay import TurnLinks
from ais_bench_prefix_cache.foundation.token_share import TokenShare

COLUMNS = RequestColumns(
    group_ids=["group-0"] * 4,
    dp_ranks=[0, 0, 0, 1],
    lane_sequences=[0, 1, 2, 0],
    input_tokens=[40, 70, 100, 50],
    hit_tokens=[0, 48, 80, 32],
    shared_prefix_tokens=[0, 49, 80, 40],
    max_tokens=[10, 10, 10, 10],
    links=[TurnLinks(), TurnLinks(continues=0), TurnLinks(continues=1), TurnLinks()],
)


def seen(index: int, prompt: int, cached: int | None, answer: int = 10) -> SeenRequest:
    state = "absent" if cached is None else "reported"
    return SeenRequest(index, state, cached, prompt, completion_tokens=answer)  # type: ignore[arg-type]


def test_generated_answers_count_but_for_their_last_token() -> None:
    # A template adds 9 tokens: 49, 88, 127. K: 49 + 9 = 58 -> 48; 88 + 9 = 97 -> 96.
    told = [seen(0, 49, 0), seen(1, 88, 48), seen(2, 127, 64), seen(3, 59, 48)]
    columns, history = law_of_answers(COLUMNS, told, block_size=16, scripted=False)
    assert columns.input_tokens == [49, 88, 127, 59]
    # A first turn is held to its system prompt alone, 32; what its template shares is hit besides.
    assert columns.hit_tokens == [0, 48, 96, 48]
    first = {
        "sequence_index": 2,
        "turn": 3,
        "input_tokens": 127,
        "history_tokens": 97,
        "prompt_tokens_before": 88,
        "differs_from": 64,
        "differs_before": 80,
    }
    assert history == HistoryFact({"0": [264, 144], "1": [59, 48]}, 2, 1, 32, first)
    assert history.shares() == {0: TokenShare(264, 144), 1: TokenShare(59, 48)}
    assert RunFacts.from_json(RunFacts(history=history).as_json()).history == history


def test_of_a_script_the_prompt_before_is_known() -> None:
    # K: 49 -> 48; 88 -> 80.
    told = [seen(0, 49, 0), seen(1, 88, 48), seen(2, 127, 80)]
    columns, history = law_of_answers(COLUMNS, told, block_size=16, scripted=True)
    assert columns.hit_tokens == [0, 48, 80, 32] and columns.input_tokens[3] == 50
    assert (history.turns, history.lost_turns, history.lost_tokens, history.first) == (2, 0, 0, None)


def test_what_the_server_did_not_tell_is_not_judged() -> None:
    told = [seen(0, 49, None), seen(1, 88, None), seen(2, 127, 16)]
    failed = SeenRequest(1, "absent", prompt_tokens=88, success=False)
    _, history = law_of_answers(COLUMNS, told, block_size=16, scripted=False)
    assert (history.turns, history.lost_tokens) == (1, 80)
    columns, history = law_of_answers(COLUMNS, [told[0], failed, told[2]], block_size=16, scripted=False)
    assert (history.turns, history.lost_turns) == (0, 0) and columns.input_tokens[1] == 70
