"""Lexicons over a few lines of text, judged by the raw tokenizers that they were made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doubles.tokenizer_families import ENGLISH

from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.exact_text.tokenizer import load_tokenizer
from ais_bench_prefix_cache.scenario.model import TokenizerConfig

OpenLexicon = Callable[..., Lexicon]


@pytest.fixture(scope="session")
def open_lexicon(tokenizer_dir: Callable[[str], Path]) -> OpenLexicon:
    """``open_lexicon(family, rows=ENGLISH)``: a lexicon of its own that has read all rows and collected fillers."""

    def opened(family: str, rows: list[str] | None = None) -> Lexicon:
        texts = ENGLISH if rows is None else rows
        lexicon = Lexicon(load_tokenizer(TokenizerConfig(str(tokenizer_dir(family)), 16, None, False)))
        lexicon.read(texts, range(len(texts)))
        lexicon.collect_fillers()
        return lexicon

    return opened
