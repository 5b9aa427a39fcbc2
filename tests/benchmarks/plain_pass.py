"""The yardstick: one plain ``encode_batch_fast`` pass over the prompts of a ``requests.jsonl``, on all cores.

``python -m tests.benchmarks.plain_pass TOKENIZER_DIR REQUESTS [--limit N]`` prints one JSON object: wall and processor
seconds of the pass alone (neither imports, nor loading, nor reading the file are in it), prompts, tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

BATCH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("requests", type=Path)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    sys.modules["torch"] = None  # type: ignore[assignment]  # not needed, and seconds to import
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(arguments.tokenizer), local_files_only=True)
    backend = tokenizer.backend_tokenizer
    with arguments.requests.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["question"] for line in lines][: arguments.limit]
    tokens = 0
    wall, cpu = time.perf_counter(), time.process_time()
    for start in range(0, len(texts), BATCH):
        tokens += sum(map(len, backend.encode_batch_fast(texts[start : start + BATCH], add_special_tokens=True)))
    result = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps(result | {"prompts": len(texts), "tokens": tokens}))


if __name__ == "__main__":
    main()
