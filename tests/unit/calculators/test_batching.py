"""The lab's examples of static and continuous batching, from the command line and against the lab's own loop."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_bench_prefix_cache.calculators.batching import BatchRequest, schedule, slot_picture
from ais_bench_prefix_cache.cli import main


@pytest.fixture
def batching(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Any:
        assert main(["batching", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def times(plan: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: (request["start"], request["finish"]) for name, request in plan["requests"].items()}


def test_continuous_batching_starts_the_third_request_earlier(batching: Any) -> None:
    document = batching("--slots", "2", "--output-tokens", "2,4,2", "--arrivals", "0,0,1")
    static, continuous = document["static"], document["continuous"]
    assert times(static) == {"A": (0, 2), "B": (0, 4), "C": (4, 6)}
    assert times(continuous) == {"A": (0, 2), "B": (0, 4), "C": (2, 4)}
    assert [
        (plan["makespan_steps"], plan["occupied_slot_steps"], plan["total_slot_steps"]) for plan in (static, continuous)
    ] == [(6, 8, 12), (4, 8, 8)]
    assert (static["picture"], continuous["picture"]) == (["AA..CC", "BBBB.."], ["AACC", "BBBB"])
    assert continuous["utilisation"] == 1.0


def test_the_boundary_case_in_which_both_are_equal(batching: Any) -> None:
    document = batching("--slots", "2", "--output-tokens", "2,2,2", "--arrivals", "0,0,1")
    assert document["static"] == document["continuous"]
    assert times(document["static"]) == {"A": (0, 2), "B": (0, 2), "C": (2, 4)}


def step_by_step(
    requests: list[BatchRequest], slots: int, continuous: bool, listed: bool
) -> dict[str, tuple[int, int]]:
    """The same policies as a loop over steps."""
    waiting = list(requests) if listed else sorted(requests, key=lambda request: request.arrival)
    active: dict[str, int] = {}
    result: dict[str, tuple[int, int]] = {}
    step = 0
    while waiting or active:
        if continuous or not active:
            for request in [request for request in waiting if request.arrival <= step][: slots - len(active)]:
                waiting.remove(request)
                active[request.name] = request.output_tokens
                result[request.name] = (step, step + request.output_tokens)
        active = {name: left - 1 for name, left in active.items() if left > 1}
        step += 1
    return result


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.sampled_from(["static", "continuous"]),
    st.sampled_from(["arrival", "listed"]),
)
def test_events_give_what_steps_give(numbers: list[tuple[int, int]], slots: int, policy: Any, admission: Any) -> None:
    requests = [BatchRequest(str(number), *pair) for number, pair in enumerate(numbers)]
    plan = schedule(requests, slots=slots, policy=policy, admission=admission)
    assert {o.request.name: (o.start, o.finish) for o in plan.occupancies} == step_by_step(
        requests, slots, policy == "continuous", admission == "listed"
    )
    # No slot is held by two requests at once.
    for slot in range(slots):
        held = sorted((o.start, o.finish) for o in plan.occupancies if o.slot == slot)
        assert all(before[1] <= after[0] for before, after in pairwise(held))


def test_the_labs_order_of_admission(batching: Any) -> None:
    # A is listed first, but arrives when B and C have been waiting.
    arguments = ("--slots", "1", "--output-tokens", "1,3,1", "--arrivals", "2,0,1")
    assert batching(*arguments)["continuous"]["start"] == {"B": 0, "C": 3, "A": 4}
    listed = batching(*arguments, "--admit", "listed")
    assert (listed["admission"], listed["continuous"]["start"]) == ("listed", {"B": 0, "A": 3, "C": 4})


def test_the_labs_trace_by_steps(batching: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--slots", "2", "--output-tokens", "2,4,2", "--arrivals", "0,0,1", "--trace")
    document = batching(*arguments)
    assert document["static"]["trace"] == [
        *({"step": step, "slots": ["A", "B"]} for step in (0, 1)),
        *({"step": step, "slots": [None, "B"]} for step in (2, 3)),
        *({"step": step, "slots": ["C", None]} for step in (4, 5)),
    ]
    assert document["continuous"]["makespan_steps"] == 4
    assert document["continuous"]["finish"] == {"A": 2, "B": 4, "C": 4}
    assert main(["batching", *arguments]) == 2
    assert capsys.readouterr().err == "error [WRONG_OPTION] --trace: means nothing without --json\n"
    assert main(["batching", "--slots", "1", "--output-tokens", "10001", "--trace", "--json"]) == 2
    assert "--trace: the schedule has 10001 steps (allowed: 10000)" in capsys.readouterr().err


def test_a_long_schedule_is_drawn_in_bounded_width() -> None:
    plan = schedule([BatchRequest("A", 0, 900), BatchRequest("B", 950, 50)], slots=1, policy="continuous")
    lines, steps = slot_picture(plan, columns=20)
    assert (lines, steps) == (["A" * 18 + ".B"], 50)


def test_tables_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batching", "--slots", "2", "--output-tokens", "2,4,2", "--arrivals", "0,0,1"]) == 0
    output = capsys.readouterr().out
    assert "│ C       │ 1       │ 2      │ 4            │ 6      │ 2                │ 4      │" in output
    assert "static: 6 steps, 8 of 12 slot steps used (66.7%)\n  slot 0 |AA..CC|\n  slot 1 |BBBB..|" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--slots", "0", "--output-tokens", "1"), "error [IMPOSSIBLE_VALUE] slots: is 0 (allowed: 1 or more)\n"),
        (
            ("--slots", "1", "--output-tokens", "1,0"),
            "error [IMPOSSIBLE_VALUE] request B: output_tokens: is 0 (allowed: 1 or more)\n",
        ),
        (
            ("--slots", "1", "--output-tokens", "1", "--arrivals=-1"),
            "error [IMPOSSIBLE_VALUE] request A: arrival: is -1 (allowed: 0 or more)\n",
        ),
        (
            ("--slots", "1", "--output-tokens", "1,2", "--arrivals", "0"),
            "error [WRONG_OPTION] --arrivals: has 1 steps for 2 requests (allowed: one a request)\n",
        ),
    ],
)
def test_impossible_inputs(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batching", *arguments]) == 2
    assert capsys.readouterr().err == message
