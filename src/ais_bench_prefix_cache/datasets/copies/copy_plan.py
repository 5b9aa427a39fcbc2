"""Which prompt copies how many tokens of which earlier one. Pure.

The first prompt is cold. Every other one copies the beginning of one of the ``window`` prompts before it. What can be
copied is limited by the prompt itself (it needs tokens of its own), by the longest prompt in the window, and by whole
blocks; the budget ``rate * all input tokens`` is handed out within these limits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.planning.plan import Int64Column
from ais_bench_prefix_cache.scenario.groups import zipf_weights

PrefixAlgorithm = Literal["uniform", "zipf"]

COLD = -1
"""The parent of the first prompt."""
MOST_SPECIAL_TOKENS = 3
"""Before or after a text; tokenizers add one or none."""
MOST_OWN_TOKENS = 256
_WEIGHT_DIGITS = 24
_DIRECT_DRAWS = 16
"""Parents drawn from the whole window before the long enough ones are listed."""


@dataclass(frozen=True)
class CopyRules:
    """``own_tokens``: the least that follows a copied prefix (marker, closing special tokens, and what no words fill).

    ``first_tokens``: special tokens before every text; a prefix holds them and at least one more, or is empty.
    ``closing_tokens``: tokens at the end of every text that no other prompt can copy. ``copy_short``: whether prompts
    shorter than a block copy, token by token.
    """

    block_size: int
    window: int
    own_tokens: int
    first_tokens: int = 0
    closing_tokens: int = 0
    copy_short: bool = True


@dataclass(frozen=True)
class CopyPlan:
    """Columns in file order. ``parent[0]`` is :data:`COLD`, ``prefix_tokens[0]`` 0.

    ``reachable_tokens`` is the most that the limits allow.
    """

    input_tokens: Int64Column
    prefix_tokens: Int64Column
    parent: Int64Column
    reachable_tokens: int


def plan_copies(
    input_tokens: Int64Column,
    rate: float,
    rules: CopyRules,
    *,
    algorithm: PrefixAlgorithm = "uniform",
    exponent: float = 1.0,
    seed: int,
) -> CopyPlan:
    """Prefix lengths that add up to the reachable total nearest to ``rate * sum(input_tokens)``, and their parents."""
    capacity = prefix_capacity(input_tokens, rules)
    total = int(np.cumsum(input_tokens)[-1])
    reachable = int(np.cumsum(capacity)[-1])
    units = np.where(input_tokens >= rules.block_size, rules.block_size, 1).astype(np.int64)
    weights = _weights(len(input_tokens), algorithm, exponent, seed)
    prefix = share_budget(min(round(rate * total), reachable), capacity, units, weights)
    prefix[prefix <= rules.first_tokens] = 0
    return CopyPlan(input_tokens, prefix, _parents(input_tokens, prefix, rules, seed), reachable)


def prefix_capacity(input_tokens: Int64Column, rules: CopyRules, longest: Int64Column | None = None) -> Int64Column:
    """The longest prefix that each prompt may copy. ``longest`` is :func:`longest_in_window`, where it is known."""
    if longest is None:
        longest = longest_in_window(input_tokens, rules.window)
    room = np.minimum(input_tokens - rules.own_tokens, longest - rules.closing_tokens)
    short = input_tokens < rules.block_size
    room = np.where(short, room if rules.copy_short else 0, room - room % rules.block_size)
    room[:1] = 0
    return np.where(room > rules.first_tokens, room, 0).astype(np.int64)


def longest_in_window(input_tokens: Int64Column, window: int) -> Int64Column:
    """For each prompt the longest of the ``window`` prompts before it; 0 for the first."""
    result = np.zeros(len(input_tokens), dtype=np.int64)
    # Indices of the window whose lengths fall: the first is the longest.
    longest: deque[int] = deque()
    lengths = input_tokens.tolist()
    for index, length in enumerate(lengths):
        if index:
            while longest[0] < index - window:
                longest.popleft()
            result[index] = lengths[longest[0]]
        while longest and lengths[longest[-1]] <= length:
            longest.pop()
        longest.append(index)
    return result


def possible_plan(
    input_tokens: Int64Column,
    rate: float,
    *,
    block_size: int,
    window: int,
    copy_short: bool,
    algorithm: PrefixAlgorithm,
    exponent: float,
    seed: int,
    reachable_tokens: int,
    prefix_tokens: Int64Column,
) -> CopyPlan | None:
    """The plan that has this reachable total and these prefixes for some tokenizer; None where there is none.

    What a tokenizer decides are small numbers: its special tokens before and after a text, and the least that follows a
    copied prefix. A larger least never allows more, so the ones with the right total are found by halving, and all of
    them allow the same.
    """
    longest = longest_in_window(input_tokens, window)
    for first, closing in product(range(MOST_SPECIAL_TOKENS + 1), repeat=2):

        def reachable(own: int, first: int = first, closing: int = closing) -> int:
            rules = CopyRules(block_size, window, own, first, closing, copy_short)
            return -int(prefix_capacity(input_tokens, rules, longest).sum())

        own = bisect_left(range(MOST_OWN_TOKENS + 1), -reachable_tokens, lo=1, key=reachable)
        if own > MOST_OWN_TOKENS or reachable(own) != -reachable_tokens:
            continue
        rules = CopyRules(block_size, window, own, first, closing, copy_short)
        plan = plan_copies(input_tokens, rate, rules, algorithm=algorithm, exponent=exponent, seed=seed)
        if np.array_equal(plan.prefix_tokens, prefix_tokens):
            return plan
    return None


def share_budget(
    budget: int, capacity: Int64Column, units: Int64Column, weights: npt.NDArray[np.float64]
) -> Int64Column:
    """``budget`` tokens in proportion to ``weights``, at most ``capacity`` each, in multiples of ``units``.

    Where a prompt is full, the others share the rest in proportion (water filling). The sum is the one nearest to
    ``budget`` that the units allow. Only correctly rounded operations decide, in a fixed order.
    """
    shares = _water_level(budget, capacity, weights)
    exact = shares / units
    given = np.floor(exact).astype(np.int64) * units
    by_remainder = np.argsort(-(exact - np.floor(exact)), kind="stable").tolist()
    left = budget - int(np.cumsum(given)[-1])
    while left > 0:
        before = left
        for index in by_remainder:
            unit = int(units[index])
            if unit <= left and given[index] + unit <= capacity[index]:
                given[index] += unit
                left -= unit
        if left == before:
            break
    if left > 0:
        _round_up(given, capacity, units, left, by_remainder)
    return np.asarray(given, dtype=np.int64)


def _round_up(
    given: Int64Column, capacity: Int64Column, units: Int64Column, left: int, by_remainder: list[int]
) -> None:
    """Give one more unit where that, less what single tokens can take back, comes nearer to the budget."""
    index = next((index for index in by_remainder if given[index] + units[index] <= capacity[index]), None)
    if index is None:
        return
    over = int(units[index]) - left
    singles = np.flatnonzero((units == 1) & (given > 0)).tolist()
    back = min(over, sum(int(given[single]) for single in singles))
    if over - back >= left:
        return
    given[index] += units[index]
    for single in reversed(singles):
        taken = min(back, int(given[single]))
        given[single] -= taken
        back -= taken


def _water_level(budget: int, capacity: Int64Column, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """``min(capacity, level * weight)`` with the level at which they add up to the budget."""
    full_at = capacity / weights
    order = np.argsort(full_at, kind="stable")
    filled = np.concatenate([[0], np.cumsum(capacity[order])[:-1]])
    unfilled_weight = np.cumsum(weights[order][::-1])[::-1]
    levels = (budget - filled) / unfilled_weight
    # The first prompt, by the level at which it is full, that is not full at its own level.
    open_at = np.flatnonzero(levels <= full_at[order])
    if not open_at.size:
        return capacity.astype(np.float64)
    return np.minimum(capacity, levels[open_at[0]] * weights)


def _weights(count: int, algorithm: PrefixAlgorithm, exponent: float, seed: int) -> npt.NDArray[np.float64]:
    """Equal weights, or ``1 / rank**exponent`` with ranks in a random order."""
    if algorithm == "uniform" or exponent == 0:
        return np.ones(count, dtype=np.float64)
    by_rank = zipf_weights(count, exponent, _WEIGHT_DIGITS)
    weights = np.empty(count, dtype=np.float64)
    # A weight that rounds to nothing would never be served, even with a budget for everyone.
    weights[RandomStream(seed, "zipf-ranks").permutation(count)] = [max(w, 1) / 10**_WEIGHT_DIGITS for w in by_rank]
    return weights


def _parents(input_tokens: Int64Column, prefix: Int64Column, rules: CopyRules, seed: int) -> Int64Column:
    """For each prompt one of the window that is long enough, each with the same chance."""
    count = len(input_tokens)
    parent = np.full(count, COLD, dtype=np.int64)
    room = input_tokens - rules.closing_tokens
    words = RandomStream(seed, "parents").words(max(count, 1)).tolist()
    for index in range(1, count):
        first = max(0, index - rules.window)
        size = index - first
        word = words[index]
        for _ in range(_DIRECT_DRAWS):
            candidate = first + (word >> 16) % size
            if room[candidate] >= prefix[index]:
                parent[index] = candidate
                break
            # The next state of a 64-bit linear congruential generator (Knuth's MMIX).
            word = (word * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        else:
            fitting = np.flatnonzero(room[first:index] >= prefix[index])
            parent[index] = first + int(fitting[word % fitting.size])
    return parent
