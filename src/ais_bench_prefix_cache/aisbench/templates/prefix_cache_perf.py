"""AISBench configuration of a formal run (text data), as ais-bench-prefix-cache uses it.

To change something, copy this file and name the copy in the Scenario's `aisbench.config` or in `run --config`. It is
run as plain Python before AISBench starts; `datasets`, `models`, `infer`, `eval` and `summarizer` are then written out
as literals. A `type` may be a class or the dotted name of one. Available in the environment:

    AISBENCH_PREFIX_CACHE_SCENARIO   the Scenario file
    AISBENCH_PREFIX_CACHE_MANIFEST   the manifest of the prepared data set
    AISBENCH_PREFIX_CACHE_WORK_DIR   `aisbench.work_dir`, absolute
    AISBENCH_PREFIX_CACHE_CONFIG     this run's effective configuration as JSON, without the API key

Do not put the API key into it: AISBench writes its configuration into the results.
"""

import json
import os
from pathlib import Path

manifest_path = Path(os.environ["AISBENCH_PREFIX_CACHE_MANIFEST"])
manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
full_path = manifest_path.with_name(manifest_path.name.replace(".manifest.json", ".full.jsonl"))

scenario = json.loads(Path(os.environ["AISBENCH_PREFIX_CACHE_CONFIG"]).read_text(encoding="utf-8"))
tokenizer = scenario["tokenizer"]
service = scenario["service"]
dataset = scenario["aisbench"]["dataset"]
model = scenario["aisbench"]["model"]

run_id = manifest["run_id"]
inference_url = service["inference_url"]
inference_urls = [inference_url] if isinstance(inference_url, str) else inference_url

datasets = [
    {
        "abbr": dataset["abbr"] or run_id,
        "type": "ais_bench_prefix_cache.aisbench.adapters.dataset.PrefixCacheDataset",
        "path": str(full_path),
        "reader_cfg": {"input_columns": dataset["input_columns"], "output_column": dataset["output_column"]},
        "infer_cfg": {
            "prompt_template": {
                "type": "ais_bench.benchmark.openicl.icl_prompt_template.PromptTemplate",
                "template": dataset["prompt_template"],
            },
            "retriever": {"type": "ais_bench.benchmark.openicl.icl_retriever.ZeroRetriever"},
            # Keeps the lanes of cold mode in order, and reads each prompt from the data set when it is sent.
            "inferencer": {
                "type": "ais_bench_prefix_cache.aisbench.adapters.inferencer.PrefixCacheInferencer",
                "path": str(full_path),
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
        # Routes cold requests to their data-parallel rank and keeps what the server says about each request.
        "type": "ais_bench_prefix_cache.aisbench.adapters.model.PrefixCacheCompletionsAPI",
        "path": tokenizer["path"],
        "trust_remote_code": tokenizer["trust_remote_code"],
        "inference_urls": inference_urls,
        "ranks_per_url": service["dp_size"] // len(inference_urls),
        "model": service["model"],
        "stream": model["stream"],
        "max_out_len": model["max_out_len"],
        # How often a failed request is sent again (AISBench itself counts attempts).
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
