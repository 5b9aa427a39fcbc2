"""SGLang's prefix cache: a tree whose edges are runs of tokens, looked up, grown, cut and evicted as SGLang does.

The rules are those of SGLang 0.5.23 with its default settings, for one group of full-attention layers:

- a request hits the longest prefix that the tree holds, in whole pages and at most ``N - 1`` tokens;
- it enters the tree when its tokens *have been* computed: after each chunk of its prompt, and once more when it ends.
  So requests that are computed together do not hit each other;
- generated tokens enter the tree, except the last one, which is never computed;
- a segment is split where a look-up or an insertion ends within it, and where a request's prompt ends;
- room is made by dropping whole segments: of those without children that no running request uses, the least recently
  used one first. What is left over after a split counts as used at that moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import numpy as np
import numpy.typing as npt

TokenIds = Union[Sequence[int], "npt.NDArray[np.integer[Any]]"]


@dataclass(eq=False)
class Segment:
    """A run of whole pages after those of ``parent``."""

    token_ids: npt.NDArray[np.int64]
    parent: Segment | None
    key: Hashable
    """Under which ``parent`` finds it: its first page, at the root together with the namespace."""
    last_used: int
    """Time by the cache's own clock, which counts operations."""
    children: dict[Hashable, Segment] = field(default_factory=dict)
    users: int = 0
    """Running requests whose prefix goes through this segment."""


@dataclass(eq=False)
class RadixSequence:
    """A request as the cache sees it: its tokens so far, and how many of them the tree and the request itself hold."""

    token_ids: list[int]
    namespace: Hashable
    """Requests of different namespaces share nothing (SGLang: ``cache_salt``, the name of a LoRA)."""
    num_prompt_tokens: int
    end: Segment
    """Where the part of the sequence ends that the tree holds for it."""
    num_tree_tokens: int = 0
    """Tokens up to ``end``: whole pages."""
    num_computed_tokens: int = 0
    """Tokens with slots: those in the tree, and those in pages of the request's own."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class RadixCache:
    """``num_pages`` pages of ``page_size`` tokens (SGLang's ``max_total_num_tokens``), or ``None`` for no limit."""

    def __init__(self, page_size: int = 1, num_pages: int | None = None, *, enabled: bool = True) -> None:
        if page_size < 1 or (num_pages is not None and num_pages < 1):
            raise ValueError("page_size and num_pages must be at least 1")
        self.page_size = page_size
        self.num_pages = num_pages
        self.enabled = enabled
        self.evicted_tokens = 0
        """Tokens dropped so far to make room."""
        self._clock = 0
        self._num_running = 0
        self._empty()

    @property
    def num_free_tokens(self) -> int | None:
        """Tokens for which there are slots that neither the tree nor a request holds; ``None`` without a limit."""
        if self.num_pages is None:
            return None
        return (self.num_pages - self._num_own_pages) * self.page_size - self.num_tree_tokens

    @property
    def num_locked_tokens(self) -> int:
        """Tokens that running requests hold, in the tree or in pages of their own."""
        return self._num_locked_tree_tokens + self._num_own_pages * self.page_size

    @property
    def usage(self) -> float:
        """The share of slots that running requests hold, 0 … 1; 0 without a limit."""
        return 0.0 if self.num_pages is None else self.num_locked_tokens / (self.num_pages * self.page_size)

    def sequence(self, token_ids: TokenIds, namespace: Hashable = None) -> RadixSequence:
        """A request that has not been admitted yet."""
        ids = np.asarray(token_ids, dtype=np.int64).tolist()
        return RadixSequence(ids, namespace, len(ids), self._root)

    def lookup(self, sequence: RadixSequence) -> int:
        """How many of its tokens a sequence would hit now. Changes nothing."""
        tokens = self._whole_pages(sequence, sequence.num_tokens - 1)
        node, found = self._root, 0
        while (child := self._child(node, sequence.namespace, tokens[found:])) is not None:
            common = self._common(child, tokens[found:])
            found += common
            if common < len(child.token_ids):
                break
            node = child
        return found

    def admit(self, sequence: RadixSequence) -> int:
        """Look a request up and keep what it hits from being dropped; returns the hit tokens."""
        tokens = self._whole_pages(sequence, sequence.num_tokens - 1 if self.enabled else 0)
        node, found, _ = self._descend(sequence.namespace, tokens)
        # The whole path counts as used at one moment, after whatever the look-up has split off.
        now = self._tick()
        step: Segment | None = node
        while step is not None:
            self._use(step, now)
            step = step.parent
        self._num_running += 1
        self._lock(sequence, node, found)
        sequence.num_computed_tokens = found
        return found

    def num_missing_tokens(self, sequence: RadixSequence, num_tokens: int) -> int:
        """Slots that an admitted request still needs until ``num_tokens`` of its tokens are computed: whole pages."""
        held = sequence.num_tree_tokens // self.page_size + self._own_pages(sequence)
        return (-(-num_tokens // self.page_size) - held) * self.page_size

    def make_room(self, num_tokens: int) -> bool:
        """Drop segments until there are slots for ``num_tokens`` tokens; ``False`` where all that may go is gone."""
        while (free := self.num_free_tokens) is not None and free < num_tokens:
            if not self._drop_one():
                return False
        return True

    def compute(self, sequence: RadixSequence, num_tokens: int) -> bool:
        """Give the next ``num_tokens`` tokens of an admitted request slots in whole pages, if there are any free."""
        before = self._own_pages(sequence)
        sequence.num_computed_tokens += num_tokens
        wanted = self._own_pages(sequence) - before
        free = self.num_free_tokens
        if free is not None and wanted * self.page_size > free:
            sequence.num_computed_tokens -= num_tokens
            return False
        self._num_own_pages += wanted
        return True

    def insert(self, sequence: RadixSequence, num_tokens: int | None = None) -> None:
        """Put the computed tokens of a request, or its first ``num_tokens``, into the tree: whole pages."""
        if num_tokens is None:
            num_tokens = sequence.num_computed_tokens
        tokens = self._whole_pages(sequence, num_tokens if self.enabled else 0)
        if not len(tokens):
            return
        self._num_own_pages -= self._own_pages(sequence)
        node = self._grow(sequence.namespace, tokens)
        if 0 < (prompt := sequence.num_prompt_tokens // self.page_size * self.page_size) < len(tokens):
            # Splits at the prompt's end, so that its output can go without it, and counts as one more use of it.
            self._grow(sequence.namespace, tokens[:prompt])
        self._unlock(sequence)
        self._lock(sequence, node, len(tokens))
        self._num_own_pages += self._own_pages(sequence)

    def release(self, sequence: RadixSequence) -> None:
        """A request has ended or has to start again: what of it is not in the tree is gone."""
        self._num_own_pages -= self._own_pages(sequence)
        self._unlock(sequence)
        self._num_running -= 1
        sequence.end = self._root
        sequence.num_tree_tokens = sequence.num_computed_tokens = 0

    def reset(self) -> bool:
        """Empty the tree; ``False``, and nothing happens, while a request is running."""
        if self._num_running:
            return False
        self._empty()
        return True

    def _empty(self) -> None:
        self._root = Segment(np.empty(0, np.int64), None, None, 0)
        self._num_own_pages = 0
        self.num_tree_tokens = 0
        self._num_locked_tree_tokens = 0
        # Candidates to be dropped: (last use, entry number, segment). Outdated entries are passed over.
        self._candidates: list[tuple[int, int, Segment]] = []
        self._entries = 0
        self._num_segments = 0

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _whole_pages(self, sequence: RadixSequence, num_tokens: int) -> npt.NDArray[np.int64]:
        length = max(num_tokens, 0) // self.page_size * self.page_size
        return np.asarray(sequence.token_ids[:length], dtype=np.int64)

    def _own_pages(self, sequence: RadixSequence) -> int:
        return -(-(sequence.num_computed_tokens - sequence.num_tree_tokens) // self.page_size)

    def _key(self, parent: Segment, namespace: Hashable, tokens: npt.NDArray[np.int64]) -> Hashable:
        page = tokens[: self.page_size].tobytes()
        return (namespace, page) if parent is self._root else page

    def _child(self, parent: Segment, namespace: Hashable, tokens: npt.NDArray[np.int64]) -> Segment | None:
        return parent.children.get(self._key(parent, namespace, tokens)) if len(tokens) else None

    def _common(self, segment: Segment, tokens: npt.NDArray[np.int64]) -> int:
        """How many tokens of ``segment``, in whole pages, ``tokens`` begin with."""
        length = min(len(segment.token_ids), len(tokens))
        differing = np.flatnonzero(segment.token_ids[:length] != tokens[:length])
        return (int(differing[0]) if len(differing) else length) // self.page_size * self.page_size

    def _descend(
        self, namespace: Hashable, tokens: npt.NDArray[np.int64]
    ) -> tuple[Segment, int, npt.NDArray[np.int64]]:
        """The segment where the longest known prefix ends (after a split, if need be), its length, what comes after."""
        node, found = self._root, 0
        while (child := self._child(node, namespace, tokens[found:])) is not None:
            common = self._common(child, tokens[found:])
            found += common
            if common < len(child.token_ids):
                return self._split(child, namespace, common), found, tokens[found:]
            node = child
        return node, found, tokens[found:]

    def _split(self, segment: Segment, namespace: Hashable, length: int) -> Segment:
        """Cut ``segment`` after ``length`` tokens; returns the first part."""
        parent = segment.parent
        assert parent is not None
        front = Segment(segment.token_ids[:length], parent, segment.key, self._tick(), users=segment.users)
        parent.children[front.key] = front
        segment.token_ids = segment.token_ids[length:]
        segment.parent = front
        segment.key = self._key(front, namespace, segment.token_ids)
        front.children[segment.key] = segment
        self._num_segments += 1
        self._use(segment, self._tick())
        return front

    def _grow(self, namespace: Hashable, tokens: npt.NDArray[np.int64]) -> Segment:
        """Insert ``tokens``; returns the segment where they end."""
        node, _, rest = self._descend(namespace, tokens)
        now = self._tick()
        step: Segment | None = node
        while step is not None:
            self._use(step, now)
            step = step.parent
        if not len(rest):
            return node
        leaf = Segment(rest, node, self._key(node, namespace, rest), 0)
        node.children[leaf.key] = leaf
        self._num_segments += 1
        self.num_tree_tokens += len(rest)
        self._use(leaf, self._tick())
        return leaf

    def _use(self, segment: Segment, now: int) -> None:
        segment.last_used = now
        self._offer(segment)

    def _offer(self, segment: Segment) -> None:
        """Make ``segment`` a candidate, if it may be dropped now."""
        if self.num_pages is None or not self._may_go(segment):
            return
        self._entries += 1
        heapq.heappush(self._candidates, (segment.last_used, self._entries, segment))
        if len(self._candidates) > 2 * self._num_segments + 64:
            valid = [entry for entry in self._candidates if self._is_current(entry)]
            self._candidates = list({id(entry[2]): entry for entry in valid}.values())
            heapq.heapify(self._candidates)

    @staticmethod
    def _may_go(segment: Segment) -> bool:
        return segment.parent is not None and not segment.users and not segment.children

    def _is_current(self, candidate: tuple[int, int, Segment]) -> bool:
        last_used, _, segment = candidate
        return self._may_go(segment) and segment.last_used == last_used

    def _drop_one(self) -> bool:
        while self._candidates:
            candidate = heapq.heappop(self._candidates)
            if not self._is_current(candidate):
                continue
            segment = candidate[2]
            parent = segment.parent
            assert parent is not None
            del parent.children[segment.key]
            segment.parent = None
            self._num_segments -= 1
            self.num_tree_tokens -= len(segment.token_ids)
            self.evicted_tokens += len(segment.token_ids)
            self._offer(parent)
            return True
        return False

    def _lock(self, sequence: RadixSequence, end: Segment, num_tokens: int) -> None:
        sequence.end, sequence.num_tree_tokens = end, num_tokens
        node: Segment | None = end
        while node is not None:
            if not node.users:
                self._num_locked_tree_tokens += len(node.token_ids)
            node.users += 1
            node = node.parent

    def _unlock(self, sequence: RadixSequence) -> None:
        node: Segment | None = sequence.end
        while node is not None:
            node.users -= 1
            if not node.users:
                self._num_locked_tree_tokens -= len(node.token_ids)
                self._offer(node)
            node = node.parent
