"""Corpora, tokenizers and requests by hand, for tests of what makes prompts."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ais_bench_prefix_cache.exact_text.corpus import Corpus, load_corpus
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.scenario.model import CorpusSelection, TokenizerConfig


def scenario(random_seed: int = 42, selection: CorpusSelection | None = None) -> Any:
    """The parts of a Scenario that prompts depend on."""
    return SimpleNamespace(
        run=SimpleNamespace(random_seed=random_seed),
        corpus=SimpleNamespace(selection=selection or CorpusSelection("random")),
        prefix_cache=SimpleNamespace(groups=SimpleNamespace(overrides={})),
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
