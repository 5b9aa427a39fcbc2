"""AISBench configuration of a formal run of conversations: that of text, but with histories that grow."""

from ais_bench_prefix_cache.aisbench.templates.prefix_cache_perf import datasets, infer, manifest, models, summarizer

__all__ = ["datasets", "infer", "models", "summarizer"]

form = manifest["conversations"]["form"]
adapters = "ais_bench_prefix_cache.aisbench.adapters.conversation"
datasets[0]["infer_cfg"]["inferencer"].update(type=f"{adapters}.ConversationInferencer", form=form)
models[0].update(
    type=f"{adapters}." + {"token_ids": "ConversationAPI", "text": "TextTurnAPI", "chat": "ChatTurnAPI"}[form]
)
