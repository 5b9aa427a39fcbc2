"""One sending by AISBench with the adapters of whatever version of this package is imported; prints a line of JSON.

``python -m tests.benchmarks.send_rows DIRECTORY PORT REQUESTS WORDS BATCH_SIZE TOKENIZER``
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.aisbench import launch as version
from ais_bench_prefix_cache.aisbench.job import AISBenchJob

RUN_ID = "bench_20260101_000000"


def job(directory: Path, port: int, requests: int, words: int, batch_size: int, tokenizer: str) -> AISBenchJob:
    """A data set of rows that nobody planned, with just enough of a manifest to send it."""
    result = directory / "result"
    result.mkdir(parents=True)
    rows, manifest_path = result / f"{RUN_ID}.full.jsonl", result / f"{RUN_ID}.manifest.json"
    text = "word " * words
    with rows.open("w", encoding="utf-8") as lines:
        for index in range(requests):
            row = {
                "request_id": f"request-{index:08d}",
                "sequence_index": index,
                "group_id": "group-0",
                "dp_rank": None,
                "max_tokens": 1,
                "answer": "none",
                "question": f"{index} {text}",
            }
            lines.write(json.dumps(row) + "\n")
    model = {
        "abbr": None,
        "attr": "service",
        "stream": True,
        "max_out_len": 1,
        "retry": 1,
        "batch_size": batch_size,
        "generation_kwargs": {"temperature": 0, "ignore_eos": True},
    }
    dataset = {
        "abbr": None,
        "input_columns": ["question", "max_out_len"],
        "output_column": "answer",
        "prompt_template": "{question}",
        "pred_role": "BOT",
    }
    config = {
        "tokenizer": {"path": tokenizer, "revision": None, "trust_remote_code": False},
        "service": {
            "inference_url": f"http://127.0.0.1:{port}/v1/completions",
            "model": "m",
            "dp_size": 1,
            "engine": "auto",
        },
        "aisbench": {"dataset": dataset, "model": model},
    }
    manifest_path.write_text(json.dumps({"run_id": RUN_ID, "effective_config": config}), encoding="utf-8")
    common: dict[str, Any] = {
        "scenario_path": directory / "scenario.json",
        "manifest_path": manifest_path,
        "work_dir": directory / "work",
    }
    try:
        from ais_bench_prefix_cache.aisbench.config_rendering import TEMPLATES
        from ais_bench_prefix_cache.aisbench.request_index import RequestIndex
    except ImportError:  # 571271d
        common |= {"full_path": rows, "request_count": requests}
    else:
        common |= {
            "rows_path": rows,
            "index": RequestIndex.of_file(rows, "max_tokens"),
            "template_path": TEMPLATES / "prefix_cache_perf.py",
            "config": config,
        }
    return AISBenchJob(**common)


def main() -> None:
    directory, port, requests, words, batch_size, tokenizer = sys.argv[1:]
    sending = job(Path(directory), int(port), int(requests), int(words), int(batch_size), tokenizer)
    begin = time.perf_counter()
    launch: Any = version
    if hasattr(launch, "run_aisbench"):  # 571271d
        result = launch.run_aisbench(sending)
    else:
        with launch.started_aisbench(sending) as aisbench:
            result = aisbench.send()
    wall = time.perf_counter() - begin
    assert result.usage_path is not None
    moments = [json.loads(line) for line in result.usage_path.open(encoding="utf-8")]
    seconds = max(row["finished"] for row in moments) - min(row["sent"] for row in moments)
    # Of the largest process: the one that sends, or AISBench's parent, which sums up.
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps({"requests_a_second": len(moments) / seconds, "wall": wall, "peak_mb": peak_mb}))


if __name__ == "__main__":
    main()
