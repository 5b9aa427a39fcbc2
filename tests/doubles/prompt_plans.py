"""Plans, corpora and tokenizers by hand, for tests of what makes prompts."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ais_bench_prefix_cache.exact_text.corpus import Corpus, load_corpus
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.planning.plan import Plan, Reachability, Trajectory
from ais_bench_prefix_cache.scenario.model import CorpusSelection, TokenizerConfig


def scenario(random_seed: int = 42, selection: CorpusSelection | None = None) -> Any:
    """The parts of a Scenario that prompts depend on."""
    return SimpleNamespace(
        run=SimpleNamespace(random_seed=random_seed),
        corpus=SimpleNamespace(selection=selection or CorpusSelection("random")),
        prefix_cache=SimpleNamespace(groups=SimpleNamespace(overrides={})),
    )


def plan_of(
    requests: Sequence[tuple[int, int, int]], *, block: int, seed_blocks: int = 1, mode: str = "warmup"
) -> Plan:
    """A plan from ``(group, input tokens, shared blocks)`` of each request."""
    count, groups = len(requests), max(group for group, _, _ in requests) + 1
    shared = np.array([blocks * block for _, _, blocks in requests], dtype=np.int64)
    group = np.array([group for group, _, _ in requests], dtype=np.int32)
    lengths = np.array([tokens for _, tokens, _ in requests], dtype=np.int64)
    canonical = np.array([shared[group == g].max(initial=0) for g in range(groups)], dtype=np.int64)
    zero = np.zeros(count, dtype=np.int64)
    reach = Reachability(int(lengths.sum()), 0, int(shared.sum()))
    return Plan(
        mode=mode,  # type: ignore[arg-type]
        block_size=block,
        seed_tokens=seed_blocks * block,
        minimum_non_shared_tokens=seed_blocks * block,
        dp_size=1,
        group_count=groups,
        generation_index=np.arange(count, dtype=np.int64),
        group=group,
        occurrence_in_group=zero,
        dp_rank=zero.astype(np.int32),
        lane_sequence=zero,
        input_tokens=lengths,
        max_tokens=zero + 8,
        shared_prefix_tokens=shared,
        hit_tokens=shared,
        watermark_before=shared,
        watermark_after=shared,
        canonical_prefix_tokens=canonical,
        max_shared_prefix_tokens=canonical,
        requested_target_hit_rate=0.5,
        effective_hit_tokens=int(shared.sum()),
        reachability=reach,
        group_reachability=(reach,) * groups,
        trajectory=Trajectory("warmup", "PASS"),
    )


def corpus_at(path: Path, rows: Sequence[str]) -> Corpus:
    path.write_text("".join(json.dumps({"question": row}) + "\n" for row in rows), encoding="utf-8")
    return load_corpus(path, "question")


@functools.lru_cache(maxsize=32)
def load(directory: Path) -> tuple[PromptTokenizer, Any]:
    """The tokenizer under test, and the raw one that judges it."""
    from transformers import AutoTokenizer

    config = TokenizerConfig(str(directory), 16, None, False)
    return load_tokenizer(config), AutoTokenizer.from_pretrained(str(directory))


def requests_around_edges(block: int, seed_blocks: int = 1, groups: int = 3) -> list[tuple[int, int, int]]:
    """Lengths at, below and above every edge: seed alone, seed and one, a block more, long."""
    found: list[tuple[int, int, int]] = []
    for shared in (0, 1, 2, 5, 9):
        for extra in (0, 1, 2, block - 1, block, block + 1, 5 * block + 3):
            found.append((len(found) % groups, (shared + seed_blocks) * block + extra, shared))
    return found
