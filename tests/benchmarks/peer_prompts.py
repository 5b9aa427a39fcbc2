"""Prompts of another tool, made by its own code; runs under that tool's interpreter, for ``bench_peers.py``.

``python peer_prompts.py vllm|inference-perf TOKENIZER PROMPTS GROUPS PREFIX SUFFIX OUTPUT`` writes one JSON array
[group, text] a line and prints the wall and processor seconds of the generation alone.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def vllm(tokenizer: str, prompts: int, groups: int, prefix: int, suffix: int) -> list[tuple[int, str]]:
    from transformers import AutoTokenizer
    from vllm.benchmarks.datasets import PrefixRepetitionRandomDataset

    dataset = PrefixRepetitionRandomDataset(random_seed=42, disable_shuffle=True)
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    start_clock()
    samples = dataset.sample(loaded, prompts, prefix_len=prefix, suffix_len=suffix, num_prefixes=groups, output_len=32)
    return [(index // (prompts // groups), sample.prompt) for index, sample in enumerate(samples)]


def inference_perf(tokenizer: str, prompts: int, groups: int, prefix: int, suffix: int) -> list[tuple[int, str]]:
    from inference_perf.config import APIConfig, APIType, CustomTokenizerConfig, DataConfig, DataGenType, SharedPrefix
    from inference_perf.datagen.synthetic.shared_prefix_datagen import SharedPrefixDataGenerator
    from inference_perf.utils.custom_tokenizer import CustomTokenizer

    loaded = CustomTokenizer(CustomTokenizerConfig(pretrained_model_name_or_path=tokenizer))
    shared = SharedPrefix(
        num_groups=groups,
        num_prompts_per_group=prompts // groups,
        system_prompt_len=prefix,
        question_len=suffix,
        output_len=32,
        seed=42,
    )
    data = DataConfig(type=DataGenType.SharedPrefix, shared_prefix=shared)
    start_clock()
    generator = SharedPrefixDataGenerator(APIConfig(type=APIType.Completion), data, loaded)
    return list(zip(generator.prompt_groups, generator.prompts, strict=True))


TOOLS: dict[str, Any] = {"vllm": vllm, "inference-perf": inference_perf}
_started: list[float] = []


def start_clock() -> None:
    """Everything before this, imports and loading, is not counted."""
    _started[:] = [time.perf_counter(), time.process_time()]


def main() -> None:
    tool, tokenizer, *numbers, output = sys.argv[1:]
    made = TOOLS[tool](tokenizer, *map(int, numbers))
    wall, cpu = time.perf_counter() - _started[0], time.process_time() - _started[1]
    with Path(output).open("w", encoding="utf-8") as lines:
        for group, text in made:
            lines.write(json.dumps([group, text]) + "\n")
    print(json.dumps({"wall": wall, "cpu": cpu}))


if __name__ == "__main__":
    main()
