"""Hits for every cache size at once: how many blocks a cache needs for each block reference to be a hit.

The cache is vLLM's, one request after another. A request that ends gives back its last block first, so its blocks lie
in the free queue from the last to the first, behind those of all earlier requests; allocation takes from the front.
Seen from the back the queue is an LRU stack: the first block of the newest request is its top. Hence (Mattson et al.,
"Evaluation techniques for storage hierarchies", IBM Systems Journal 9, 1970) a block is still there if and only if the
cache has at least as many blocks as there are from the top of the stack down to it, and one more if the request before
ended in an unfinished block, which takes room but is never cached.

Three facts make this cheap:

- A request touches a path from the root of the tree of prefixes, and a block's parent always lies above it. Thus hits
  are a prefix of the path, at every size, and need no search for holes.
- The blocks whose last request is ``r`` are the tail of ``r``'s path, side by side in the stack. A run of them needs
  sizes that go up by one, so the work is done once for a run, not for a block.
- The depth of a run is the number of blocks of younger requests: a prefix sum over requests (Fenwick tree, O(log n)).

A whole last block (prompt length a multiple of the block size) is computed again although it is cached, so vLLM then
holds it twice. The older copy is dead weight at its place in the stack. Only if a longer prompt hits it later, vLLM
revives the older and not the newer copy; here it is the newer one. A size may then be off by the number of such copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.kvcache.block_hash import BlockHash

BlockNames = npt.NDArray[np.int64]


def block_names(block_hashes: Sequence[BlockHash]) -> BlockNames:
    """The first 8 bytes of each hash. Names are only compared below one parent, so that is plenty."""
    return np.frombuffer(b"".join(block_hashes), dtype="<i8")[::2].copy()


@dataclass(eq=False)
class _Run:
    """Consecutive blocks of a path with the same last request. ``children`` by the name of their first block."""

    names: BlockNames
    request: int
    children: dict[int, _Run] = field(default_factory=dict)


class StackDistances:
    """The LRU stack of one rank, for all numbers of blocks.

    Memory is 8 bytes for each different block and some hundred for each request.
    """

    def __init__(self) -> None:
        self.smallest_num_blocks = 1
        """What the largest request needs; with less, vLLM would never run it."""
        self._root = _Run(np.empty(0, dtype=np.int64), -1)
        self._live = _GrowingSums()
        self._dead: list[int] = []  # By request: copies of a last block that were superseded.
        self._last_block_unfinished = 0
        # Differences of the number of references that need exactly so many blocks.
        self._difference: dict[int, int] = {}

    def match(self, names: BlockNames) -> int:
        """How many of the first blocks were seen before."""
        node, position = self._root, 0
        while position < len(names):
            child = node.children.get(int(names[position]))
            if child is None:
                break
            common = _common_prefix(child.names, names[position:])
            position += common
            if common < len(child.names):
                break
            node = child
        return position

    def access(
        self, names: BlockNames, *, reusable_blocks: int, full_blocks: int, total_blocks: int, counted: bool = True
    ) -> int:
        """Run one request to its end; returns how many blocks it hits if nothing is ever forgotten.

        ``names`` are the full blocks of its prompt, of which the first ``reusable_blocks`` may be hit; its prompt and
        output together fill ``full_blocks`` and touch ``total_blocks``. Output is taken to be like no prompt. With
        ``counted=False`` its hits are no part of :meth:`hits`.
        """
        request = len(self._dead)
        node, position = self._root, 0
        last, depth, hits = -1, 0, 0  # The run being read: its last request, the depth of its top, its hits.
        while position < len(names):
            child = node.children.get(int(names[position]))
            if child is None:
                break
            common = _common_prefix(child.names, names[position:])
            if common < len(child.names):
                child = _split(node, child, common)
            if child.request != last:
                self._take(last, depth, hits, counted)
                last, hits = child.request, 0
                # The runs above have left the stack already: ``position`` blocks, as it was before this request.
                depth = position + self._live.total - self._live.up_to(last) + self._dead[last]
            # Of a last block that is computed again the old copy stays where it is.
            again = max(0, position + common - reusable_blocks)
            hits += common - again
            self._dead[last] += again
            child.request = request
            node = child
            position += common
        self._take(last, depth, hits, counted)
        if position < len(names):
            node.children[int(names[position])] = _Run(names[position:].copy(), request)
        self._dead.append(0)
        self._live.append(full_blocks)
        self._last_block_unfinished = total_blocks - full_blocks
        self.smallest_num_blocks = max(self.smallest_num_blocks, total_blocks)
        return min(position, reusable_blocks)

    def _take(self, request: int, depth: int, hits: int, counted: bool) -> None:
        """Remove the ``hits`` blocks below ``depth`` from the stack and count what they need."""
        if not hits:
            return
        self._live.add(request, -hits)
        if counted:
            needed = depth + 1 + self._last_block_unfinished
            self._difference[needed] = self._difference.get(needed, 0) + 1
            self._difference[needed + hits] = self._difference.get(needed + hits, 0) - 1

    def hits(self) -> npt.NDArray[np.int64]:
        """``hits()[n]``: block references that hit in a cache of ``n`` usable blocks; the last is as good as any more.

        Only for ``n`` from :attr:`smallest_num_blocks` on does it mean anything.
        """
        end = max(self._difference, default=1)
        needed = np.zeros(end + 1, dtype=np.int64)
        for size, change in self._difference.items():
            needed[size] = change
        return np.cumsum(np.cumsum(needed))[:end]


def _common_prefix(first: BlockNames, second: BlockNames) -> int:
    """How many names at the start are equal, given that the first ones are."""
    length = min(len(first), len(second))
    if length == 1:
        return 1
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if different.size else length


def _split(parent: _Run, run: _Run, length: int) -> _Run:
    """Divide a run after ``length`` blocks; returns the upper part."""
    upper = _Run(run.names[:length], run.request)
    lower = run
    lower.names = run.names[length:]
    upper.children[int(lower.names[0])] = lower
    parent.children[int(upper.names[0])] = upper
    return upper


class _GrowingSums:
    """A list of integers that knows the sum of its first elements.

    Fenwick, "A new data structure for cumulative frequency tables", Software: Practice and Experience 24, 1994.
    """

    def __init__(self) -> None:
        self.total = 0
        self._tree = [0]

    def append(self, value: int) -> None:
        index = len(self._tree)
        # A node holds the sum of the ``index & -index`` elements that end with its own.
        covered = value
        below = index - 1
        while below > index - (index & -index):
            covered += self._tree[below]
            below -= below & -below
        self._tree.append(covered)
        self.total += value

    def add(self, element: int, value: int) -> None:
        index = element + 1
        tree = self._tree
        while index < len(tree):
            tree[index] += value
            index += index & -index
        self.total += value

    def up_to(self, element: int) -> int:
        """The sum of the elements ``0`` … ``element``."""
        index = element + 1
        tree = self._tree
        total = 0
        while index:
            total += tree[index]
            index -= index & -index
        return total
