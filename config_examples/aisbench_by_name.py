"""A configuration for AISBench itself, which finds our classes by name once this package is installed beside it.

    ais_bench aisbench_by_name.py --mode perf --debug --num-warmups 0

It sends a prepared data set as it is. Nothing is checked, emptied, warmed or counted: for that there is `run`.
"""

full_jsonl = "./outputs/example/result/example.full.jsonl"

datasets = [
    {
        "abbr": "prefix-cache",
        "type": "PrefixCacheDataset",
        "path": full_jsonl,
        "reader_cfg": {"input_columns": ["question", "max_out_len"], "output_column": "answer"},
        "infer_cfg": {
            "prompt_template": {
                "type": "ais_bench.benchmark.openicl.icl_prompt_template.PromptTemplate",
                "template": "{question}",
            },
            "retriever": {"type": "ais_bench.benchmark.openicl.icl_retriever.ZeroRetriever"},
            "inferencer": {"type": "PrefixCacheInferencer", "path": full_jsonl},
        },
        "eval_cfg": {"evaluator": {"type": "ais_bench.benchmark.openicl.icl_evaluator.AccEvaluator"}},
    }
]

models = [
    {
        "abbr": "my-server",
        "attr": "service",
        "type": "PrefixCacheCompletionsAPI",
        "path": "/models/Qwen3-8B",
        "inference_urls": ["http://127.0.0.1:8000/v1/completions"],
        "ranks_per_url": 1,
        "model": "Qwen3-8B",
        "stream": True,
        "max_out_len": 32,
        "retry": 1,  # AISBench counts attempts
        "batch_size": 8,
        "generation_kwargs": {"temperature": 0, "ignore_eos": True},
    }
]

infer = {
    "partitioner": {"type": "ais_bench.benchmark.partitioners.NaivePartitioner"},
    "runner": {"type": "ForkingRunner", "task": {"type": "ais_bench.benchmark.tasks.OpenICLApiInferTask"}},
}

summarizer = {
    "attr": "performance",
    "calculator": {
        "type": "ais_bench_prefix_cache.aisbench.adapters.metrics.MeasuredMetricCalculator",
        "stream": True,
    },
}
