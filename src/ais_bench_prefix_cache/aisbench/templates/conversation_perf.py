"""AISBench configuration of a formal run of conversations: that of text, but with token ids."""

from ais_bench_prefix_cache.aisbench.templates.prefix_cache_perf import datasets, infer, models, summarizer

__all__ = ["datasets", "infer", "models", "summarizer"]

datasets[0]["infer_cfg"]["inferencer"].update(
    type="ais_bench_prefix_cache.aisbench.adapters.conversation.ConversationInferencer"
)
models[0].update(type="ais_bench_prefix_cache.aisbench.adapters.conversation.ConversationAPI")
