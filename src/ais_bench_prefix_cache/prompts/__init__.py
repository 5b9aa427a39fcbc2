"""Tokenizer, corpus and the token-exact assembly of prompts; prompt sources as a public API."""

from ais_bench_prefix_cache.prompts.source_texts import (
    MIN_CONTROLLED_TOKENS,
    CountsText,
    ExactTokens,
    TokenCount,
    TokenCounter,
    WordEstimate,
)
from ais_bench_prefix_cache.prompts.sources import (
    GENERATOR_VERSION,
    PROMPT_MODES,
    REPEAT,
    SHARED_PREFIX,
    UNIQUE,
    Prompt,
    PromptSource,
    PromptSpec,
    PromptSpecError,
)

__all__ = [
    "GENERATOR_VERSION",
    "MIN_CONTROLLED_TOKENS",
    "PROMPT_MODES",
    "REPEAT",
    "SHARED_PREFIX",
    "UNIQUE",
    "CountsText",
    "ExactTokens",
    "Prompt",
    "PromptSource",
    "PromptSpec",
    "PromptSpecError",
    "TokenCount",
    "TokenCounter",
    "WordEstimate",
]
