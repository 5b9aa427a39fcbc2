"""Speed of prompt construction against one plain encode pass over the same prompts.

    python tests/benchmarks/bench_prompts.py --tokenizer DIR --corpus FILE [--prompts 10000] [--tokens 4096]

Warm-up of 60 %, ten groups. Prints one JSON object; times in seconds, speeds in tokens a second.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ais_bench_prefix_cache.planning.plan import Plan, Reachability, Trajectory
from ais_bench_prefix_cache.prompts.assembly import build_prompt_set
from ais_bench_prefix_cache.prompts.corpus import load_corpus
from ais_bench_prefix_cache.prompts.tokenizer import load_tokenizer
from ais_bench_prefix_cache.scenario.model import CorpusSelection, TokenizerConfig


def warmup_plan(prompts: int, tokens: int, block: int, groups: int, rate: float) -> Plan:
    """A plan of equal lengths whose cumulative hits follow ``rate``."""
    index = np.arange(prompts, dtype=np.int64)
    wanted = np.rint(rate * tokens * (index + 1) / block).astype(np.int64)
    shared = np.diff(wanted, prepend=0) * block
    group = (index % groups).astype(np.int32)
    canonical = np.array([shared[group == g].max(initial=0) for g in range(groups)], dtype=np.int64)
    zero = np.zeros(prompts, dtype=np.int64)
    reach = Reachability(prompts * tokens, 0, int(shared.sum()))
    return Plan(
        mode="warmup",
        block_size=block,
        seed_tokens=block,
        minimum_non_shared_tokens=block,
        dp_size=1,
        group_count=groups,
        generation_index=index,
        group=group,
        occurrence_in_group=zero,
        dp_rank=zero.astype(np.int32),
        lane_sequence=zero,
        input_tokens=zero + tokens,
        max_tokens=zero + 32,
        shared_prefix_tokens=shared,
        hit_tokens=shared,
        watermark_before=shared,
        watermark_after=shared,
        canonical_prefix_tokens=canonical,
        max_shared_prefix_tokens=canonical,
        requested_target_hit_rate=rate,
        effective_hit_tokens=int(shared.sum()),
        reachability=reach,
        group_reachability=(reach,) * groups,
        trajectory=Trajectory("warmup", "PASS"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--field", default="question")
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--plain-prompts", type=int, default=500, help="prompts of the plain pass; its time is scaled")
    parser.add_argument("--full", action="store_true", help="measure verify=full too")
    arguments = parser.parse_args()
    block = 16
    times: dict[str, float] = {}

    def timed(name: str, started: float) -> None:
        times[name] = round(time.perf_counter() - started, 3)

    started = time.perf_counter()
    tokenizer = load_tokenizer(TokenizerConfig(str(arguments.tokenizer), block, None, False))
    timed("load_tokenizer", started)
    corpus = load_corpus(arguments.corpus, arguments.field)
    plan = warmup_plan(arguments.prompts, arguments.tokens, block, 10, 0.6)
    scenario: Any = SimpleNamespace(
        run=SimpleNamespace(random_seed=42),
        corpus=SimpleNamespace(selection=CorpusSelection("random")),
        prefix_cache=SimpleNamespace(groups=SimpleNamespace(overrides={})),
    )
    texts: list[str] = []
    for verify in ("proof", "full") if arguments.full else ("proof",):
        started = time.perf_counter()
        prompts = build_prompt_set(scenario, plan, tokenizer, corpus, verify=verify)  # type: ignore[arg-type]
        timed(f"{verify}_setup", started)
        started = time.perf_counter()
        for prompt in prompts:
            if len(texts) < arguments.plain_prompts:
                texts.append(prompt.text)
        timed(f"{verify}_prompts", started)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    started = time.perf_counter()
    for start in range(0, len(texts), 50):
        batch = tokenizer.encode_batch(texts[start : start + 50])
        assert all(len(ids) == arguments.tokens for ids in batch)
    plain = (time.perf_counter() - started) * arguments.prompts / len(texts)
    total = arguments.prompts * arguments.tokens
    print(
        json.dumps(
            {
                "prompts": arguments.prompts,
                "tokens": total,
                "seconds": times,
                "plain_pass_seconds": round(plain, 3),
                "plain_tokens_per_second": round(total / plain),
                "proof_tokens_per_second": round(total / (times["proof_setup"] + times["proof_prompts"])),
                "proof_of_plain": round((times["proof_setup"] + times["proof_prompts"]) / plain, 4),
                "peak_memory_mb": memory,
                "cpus": os.cpu_count(),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
