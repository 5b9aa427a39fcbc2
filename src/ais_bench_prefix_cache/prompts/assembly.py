"""Token-exact prompts from a Plan, a tokenizer and a corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ais_bench_prefix_cache.planning.plan import Plan
    from ais_bench_prefix_cache.prompts.corpus import Corpus
    from ais_bench_prefix_cache.prompts.prompt_set import PromptSet
    from ais_bench_prefix_cache.prompts.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.scenario.model import Scenario

VerifyMode = Literal["proof", "full"]


def build_prompt_set(
    scenario: Scenario, plan: Plan, tokenizer: PromptTokenizer, corpus: Corpus, *, verify: VerifyMode = "proof"
) -> PromptSet:
    """All prompts of a plan, exact to the token, or a :class:`GenerationError` before the first of them."""
    raise NotImplementedError
