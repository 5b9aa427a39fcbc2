"""SGLang's cache: examples seen on a real server, and a brute force that knows prefixes instead of a tree."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache, RadixSequence

Prefix = tuple[Hashable, ...]


class PrefixLists:
    """The same rules over plain prefixes: where segments end, when each was last used, who holds it.

    A segment is named by the whole prefix up to its end; the end before it is the longest shorter one on the way.
    """

    def __init__(self, page: int, tokens: int) -> None:
        self.page, self.tokens = page, tokens
        self.ends: dict[Prefix, int] = {}
        self.held: list[Prefix] = []
        self.clock = 0

    def now(self) -> int:
        self.clock += 1
        return self.clock

    def whole(self, ids: Prefix) -> Prefix:
        return ids[: len(ids) // self.page * self.page]

    def stored(self) -> int:
        return sum(len(end) - self.before(end) for end in self.ends)

    def before(self, end: Prefix) -> int:
        return max((len(e) for e in self.ends if len(e) < len(end) and end[: len(e)] == e), default=0)

    def known(self, ids: Prefix) -> Prefix:
        """The longest stored beginning of ``ids``, in pages."""
        best = 0
        for end in self.ends:
            common = 0
            while common < min(len(end), len(ids)) and end[common] == ids[common]:
                common += 1
            best = max(best, common // self.page * self.page)
        return ids[:best]

    def cut(self, at: Prefix) -> None:
        if at and at not in self.ends:
            beyond = min((e for e in self.ends if e[: len(at)] == at), key=len)
            self.ends[at] = self.now()
            self.ends[beyond] = self.now()

    def use(self, path: Prefix) -> None:
        time = self.now()
        for end in self.ends:
            if path[: len(end)] == end:
                self.ends[end] = time

    def admit(self, ids: Prefix) -> Prefix:
        found = self.known(self.whole(ids[:-1]))
        self.cut(found)
        self.use(found)
        self.held.append(found)
        return found

    def insert(self, ids: Prefix) -> None:
        ids = self.whole(ids)
        if ids:
            found = self.known(ids)
            self.cut(found)
            self.use(found)
            if found != ids:
                self.ends[ids] = self.now()

    def drop_one(self) -> bool:
        free = [
            end
            for end in self.ends
            if not any(len(e) > len(end) and e[: len(end)] == end for e in self.ends)
            and not any(h[: len(end)] == end for h in self.held)
        ]
        if not free:
            return False
        del self.ends[min(free, key=self.ends.__getitem__)]
        return True


def finish(cache: RadixCache, sequence: RadixSequence, output: list[int]) -> None:
    """Compute what is left of a request, with its output, and let it end."""
    num_left = sequence.num_tokens - sequence.num_computed_tokens
    assert cache.make_room(num_left + cache.page_size) and cache.compute(sequence, num_left)
    cache.insert(sequence)
    sequence.token_ids += output
    if len(output) > 1:
        assert cache.make_room(len(output) - 1 + cache.page_size) and cache.compute(sequence, len(output) - 1)
        cache.insert(sequence)
    cache.release(sequence)


def run(cache: RadixCache, prompt: list[int], output: list[int] | None = None, namespace: Hashable = None) -> int:
    sequence = cache.sequence(prompt, namespace)
    hits = cache.admit(sequence)
    finish(cache, sequence, output or [-1])
    return hits


@pytest.mark.parametrize(
    ("page", "length", "hits"),
    [(1, 64, 63), (16, 16, 0), (16, 17, 16), (16, 32, 16), (16, 33, 32), (16, 256, 240), (16, 257, 256)],
)
def test_a_prompt_sent_twice_hits_whole_pages_and_never_its_last_token(page: int, length: int, hits: int) -> None:
    cache = RadixCache(page)
    prompt = list(range(length))
    assert (run(cache, prompt), run(cache, prompt)) == (0, hits)


def test_a_prefix_of_a_known_prompt_and_a_known_output_hit() -> None:
    cache = RadixCache()
    prompt, output = list(range(100)), list(range(500, 508))
    run(cache, prompt, output)
    assert run(cache, prompt[:40]) == 39
    assert run(cache, [*prompt, *output, 1, 2, 3, 4, 5]) == 107


def test_requests_that_are_computed_together_do_not_hit_each_other() -> None:
    cache = RadixCache()
    prompt = list(range(2000))
    together = [cache.sequence(prompt) for _ in range(2)]
    assert [cache.admit(sequence) for sequence in together] == [0, 0]
    for sequence in together:
        finish(cache, sequence, [7])
    assert cache.num_tree_tokens == 2000
    assert run(cache, prompt) == 1999


def test_a_prompt_can_be_hit_chunk_by_chunk_while_it_is_computed() -> None:
    cache = RadixCache(16)
    long = cache.sequence(list(range(100)))
    cache.admit(long)
    assert cache.compute(long, 64)
    cache.insert(long)
    assert run(cache, list(range(100))) == 64
    finish(cache, long, [7])
    assert run(cache, list(range(100))) == 96


def test_namespaces_share_nothing() -> None:
    cache = RadixCache()
    prompt = list(range(50))
    assert [run(cache, prompt, namespace=name) for name in (None, "a", "b", "a", None)] == [0, 0, 0, 49, 49]


def test_running_requests_keep_what_they_use_and_forbid_a_reset() -> None:
    cache = RadixCache(1, 100)
    run(cache, list(range(60)))
    sequence = cache.sequence(list(range(61)))
    assert cache.admit(sequence) == 60
    assert cache.num_locked_tokens == 60
    assert not cache.make_room(41)
    assert not cache.reset()
    assert cache.compute(sequence, 1)
    assert not cache.compute(sequence, 40)
    cache.release(sequence)
    assert (cache.num_locked_tokens, cache.num_free_tokens) == (0, 40)
    assert cache.reset()
    assert (cache.num_free_tokens, run(cache, list(range(60)))) == (100, 0)


def test_a_look_up_changes_nothing() -> None:
    cache = RadixCache(1, 10)
    run(cache, [1, 2, 3, 4])
    run(cache, [1, 2, 9])
    assert cache.lookup(cache.sequence([1, 2, 3, 7])) == 3
    # Had it cut or used 3, 4, then 9 would have gone first.
    assert cache.make_room(6)
    assert [cache.lookup(cache.sequence(ids)) for ids in ([1, 2, 3, 4, 5], [1, 2, 9, 9])] == [2, 3]


@pytest.mark.parametrize("page", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_hits_and_room_are_those_of_a_brute_force(page: int, seed: int) -> None:
    random_numbers = random.Random(seed)
    pages = 40 // page
    cache, brute = RadixCache(page, pages), PrefixLists(page, pages * page)
    running: list[tuple[RadixSequence, Prefix]] = []
    past: list[list[int]] = [[0]]
    dropped = 0
    for _ in range(250):
        if len(running) < 2:
            base = random_numbers.choice(past[-20:])
            prompt = base[: random_numbers.randint(0, len(base))]
            prompt = (prompt + [random_numbers.randrange(3) for _ in range(random_numbers.randint(1, 6))])[:14]
            sequence = cache.sequence(prompt)
            assert cache.lookup(sequence) == len(brute.known(brute.whole(tuple(prompt)[:-1])))
            assert cache.admit(sequence) == len(brute.admit(tuple(prompt)))
            running.append((sequence, brute.held[-1]))
            past.append(prompt)
        if len(running) == 2 or random_numbers.random() < 0.5:
            sequence, held = running.pop(random_numbers.randrange(len(running)))
            output = [random_numbers.randrange(3) for _ in range(random_numbers.randint(1, 4))]
            before = cache.evicted_tokens
            # The brute force knows only the tree, so it drops as many segments as make the same room.
            room = len(sequence.token_ids) + len(output) + 2 * page
            while brute.tokens - brute.stored() < room and brute.drop_one():
                pass
            cache.make_room(room)
            dropped += cache.evicted_tokens - before
            assert cache.num_tree_tokens == brute.stored()
            finish(cache, sequence, output)
            ids = tuple(sequence.token_ids)
            brute.insert(ids[: sequence.num_prompt_tokens])
            if len(output) > 1:
                brute.insert(ids[:-1])
                if 0 < len(brute.whole(ids[: sequence.num_prompt_tokens])) < len(brute.whole(ids[:-1])):
                    brute.insert(ids[: sequence.num_prompt_tokens])
            brute.held.remove(held)
            past.append(list(ids[:14]))
            assert cache.num_tree_tokens == brute.stored()
    assert dropped > 150


@pytest.mark.parametrize(("page", "pages"), [(0, 1), (1, 0)])
def test_impossible_sizes_are_refused(page: int, pages: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RadixCache(page, pages)
