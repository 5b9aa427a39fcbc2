"""Runs random traffic through vLLM's own ``Scheduler``; needs vLLM's virtual environment and a model's config.

Usage: ``python -m tests.real.drive_vllm_scheduler MODEL_DIR``. Reads one stretch of traffic a line (JSON) on stdin and
answers each with a line that holds what every step saw. See ``test_batching_against_vllm.py``.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from tests.real.driving import answer_each_line
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager


def make_scheduler(config: VllmConfig, manager: StructuredOutputManager, traffic: dict[str, Any]) -> Scheduler:
    block_size, num_blocks = traffic["block_size"], traffic["num_blocks"]
    config.scheduler_config.max_num_seqs = traffic["max_num_seqs"]
    config.scheduler_config.max_num_batched_tokens = traffic["max_num_batched_tokens"]
    config.scheduler_config.max_num_scheduled_tokens = traffic["max_num_batched_tokens"]
    config.cache_config.block_size = block_size
    # The pool keeps one block, the null block, for itself.
    config.cache_config.num_gpu_blocks = num_blocks + 1
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return Scheduler(config, cache, manager, block_size=block_size, log_stats=True)


def run(scheduler: Scheduler, traffic: dict[str, Any]) -> list[list[Any]]:
    hasher = get_request_block_hasher(traffic["block_size"], sha256)
    observations: list[list[Any]] = []
    for event in traffic["events"]:
        for name, token_ids, max_tokens in event["add"]:
            sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            scheduler.add_request(Request(str(name), token_ids, sampling, None, block_hasher=hasher))
        for name in event["abort"]:
            scheduler.finish_requests(str(name), RequestStatus.FINISHED_ABORTED)
        reset = None
        if event["reset"]:
            reset = scheduler.reset_prefix_cache(reset_running_requests=event["reset"] == "running")
        output = scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = scheduler.requests[name]
            complete = request.num_computed_tokens == request.num_tokens
            sampled.append([(int(name) * 31 + request.num_output_tokens) % 50] if complete else [])
        result = ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: index for index, name in enumerate(names)}, sampled_token_ids=sampled
        )
        # Statistics are handed out once a step, with whichever outputs there are.
        statistics = [
            outputs.scheduler_stats.prefix_cache_stats
            for outputs in scheduler.update_from_output(output, result).values()
            if outputs.scheduler_stats is not None
        ]
        observations.append(
            [
                reset,
                [[int(name), output.num_scheduled_tokens[name]] for name in names],
                sum(stats.queries for stats in statistics),
                sum(stats.hits for stats in statistics),
                len(scheduler.running),
                len(scheduler.waiting),
                scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            ]
        )
    return observations


def main() -> None:
    config = EngineArgs(
        model=sys.argv[1],
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=8192,
        enforce_eager=True,
        block_size=32,
        async_scheduling=False,
    ).create_engine_config()
    manager = StructuredOutputManager(config)
    init_none_hash(sha256)
    answer_each_line(lambda traffic: run(make_scheduler(config, manager, traffic), traffic))


if __name__ == "__main__":
    main()
