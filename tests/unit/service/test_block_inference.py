"""What hits of repeated prompts say about a server's blocks."""

from __future__ import annotations

import pytest

from ais_bench_prefix_cache.service.block_inference import BlockRule, rules_that_explain


@pytest.mark.parametrize(
    ("observations", "rule"),
    [
        ([(49, 48), (81, 80)], BlockRule(16, 0)),
        ([(49, 32), (81, 64), (97, 96)], BlockRule(32, 0)),
        ([(49, 32), (81, 64), (97, 80)], BlockRule(16, 1)),
    ],
)
def test_rules_are_told_apart_by_several_lengths(observations: list[tuple[int, int]], rule: BlockRule) -> None:
    explaining = rules_that_explain(observations, 16)
    assert rule in explaining
    assert {each for each in explaining if each.block_size >= 16} == {rule}


def test_nothing_explains_a_cache_that_never_hits() -> None:
    assert rules_that_explain([(49, 0), (81, 0)], 16) == []
