"""AISBench configuration of a formal run with images, as ais-bench-prefix-cache uses it.

It is run as plain Python before AISBench starts; `datasets`, `models`, `infer` and `summarizer` are then written out as
literals. The messages are read from the rows when they are sent, and their images from the manifest.
"""

import json
import os
from pathlib import Path

manifest_path = Path(os.environ["AISBENCH_PREFIX_CACHE_MANIFEST"])
manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
(image_scenario,) = manifest["datasets"]
rows_path = manifest_path.with_name(manifest_path.name.replace(".manifest.json", f".{image_scenario}.requests.jsonl"))

scenario = manifest["effective_config"]
tokenizer = scenario["tokenizer"]
service = scenario["service"]
dataset = scenario["aisbench"]["dataset"]
model = scenario["aisbench"]["model"]

run_id = manifest["run_id"]
inference_url = service["inference_url"]

datasets = [
    {
        "abbr": dataset["abbr"] or run_id,
        "type": "ais_bench_prefix_cache.aisbench.adapters.dataset.PrefixCacheDataset",
        "path": str(rows_path),
        "max_tokens_key": "max_out_len",
        "reader_cfg": {"input_columns": dataset["input_columns"], "output_column": dataset["output_column"]},
        "infer_cfg": {
            "prompt_template": {
                "type": "ais_bench.benchmark.openicl.icl_prompt_template.icl_prompt_template_mm.MMPromptTemplate",
                "template": {"round": [{"role": "HUMAN", "prompt_mm": {"text": "{question}"}}]},
            },
            "retriever": {"type": "ais_bench.benchmark.openicl.icl_retriever.ZeroRetriever"},
            # Sends each message exactly as the data set has it, images before text.
            "inferencer": {
                "type": "ais_bench_prefix_cache.aisbench.adapters.inferencer.PrefixCacheInferencer",
                "path": str(rows_path),
                "prompt_key": "prompt",
            },
        },
        "eval_cfg": {
            "evaluator": {"type": "ais_bench.benchmark.openicl.icl_evaluator.AccEvaluator"},
            "pred_role": dataset["pred_role"],
        },
    }
]

models = [
    {
        "abbr": model["abbr"] or f"{run_id}-vllm",
        "attr": model["attr"],
        # Makes the images' data URLs when a request is sent and keeps what the server says about each request.
        "type": "ais_bench_prefix_cache.aisbench.adapters.model.ImageChatAPI",
        "manifest_path": str(manifest_path),
        "path": tokenizer["path"],
        "trust_remote_code": tokenizer["trust_remote_code"],
        "inference_urls": [inference_url] if isinstance(inference_url, str) else inference_url,
        "model": service["model"],
        "stream": model["stream"],
        "max_out_len": model["max_out_len"],
        "retry": model["retry"],
        "batch_size": model["batch_size"],
        "generation_kwargs": model["generation_kwargs"],
    }
]

infer = {
    "partitioner": {"type": "ais_bench.benchmark.partitioners.NaivePartitioner"},
    "runner": {
        # AISBench's LocalRunner works, too, but starts everything a second time.
        "type": "ais_bench_prefix_cache.aisbench.adapters.runner.ForkingRunner",
        "task": {"type": "ais_bench.benchmark.tasks.OpenICLApiInferTask"},
    },
}

summarizer = {
    "attr": "performance",
    # Leaves out what was not measured, such as TTFT without streaming.
    "calculator": {
        "type": "ais_bench_prefix_cache.aisbench.adapters.metrics.MeasuredMetricCalculator",
        "stream": model["stream"],
    },
}
