"""AISBench configuration of a formal run with images: that of text, except for what is sent and where to.

The messages are read from the rows when they are sent, and their images from the manifest.
"""

from ais_bench_prefix_cache.aisbench.templates.prefix_cache_perf import (
    datasets,
    infer,
    manifest,
    manifest_path,
    models,
    summarizer,
)

__all__ = ["datasets", "infer", "models", "summarizer"]

(image_scenario,) = manifest["datasets"]
rows_path = str(
    manifest_path.with_name(manifest_path.name.replace(".manifest.json", f".{image_scenario}.requests.jsonl"))
)
rows = {"path": rows_path, "max_tokens_key": "max_out_len"}

datasets[0].update(rows)
datasets[0]["infer_cfg"]["inferencer"].update(rows, prompt_key="prompt")
datasets[0]["infer_cfg"]["prompt_template"] = {
    "type": "ais_bench.benchmark.openicl.icl_prompt_template.icl_prompt_template_mm.MMPromptTemplate",
    "template": {"round": [{"role": "HUMAN", "prompt_mm": {"text": "{question}"}}]},
}
# Makes the images' data URLs when a request is sent and keeps what the server says about each request.
models[0].update(type="ais_bench_prefix_cache.aisbench.adapters.model.ImageChatAPI", manifest_path=str(manifest_path))
