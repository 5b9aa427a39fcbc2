"""How vLLM groups the layers of hybrid models, and what its cache manager keeps; needs vLLM's environment, no model.

Reads one case a line (JSON: layers as [window or null, count], block_size, length) on stdin and answers each with
[[window, layers of the group], …] and the blocks in use once ``length`` tokens are computed and the next one follows.
"""

from __future__ import annotations

from typing import Any

import torch
from tests.real.driving import answer_each_line
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    _get_kv_cache_groups_uniform_page_size,
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, SlidingWindowSpec
from vllm.v1.request import Request

NUM_BLOCKS = 4096


def run(case: dict[str, Any]) -> list[Any]:
    size, length = case["block_size"], case["length"]
    common = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    specs = {
        f"{window} {number}": FullAttentionSpec(**common)
        if window is None
        else SlidingWindowSpec(**common, sliding_window=window)
        for window, count in case["layers"]
        for number in range(count)
    }
    groups = _get_kv_cache_groups_uniform_page_size(specs)
    manager = KVCacheManager(
        KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups),
        max_model_len=1 << 20,
        scheduler_block_size=size,
        hash_block_size=size,
        log_stats=True,
    )
    hasher = get_request_block_hasher(size, sha256)
    request = Request("0", list(range(length)), SamplingParams(max_tokens=99), None, block_hasher=hasher)
    blocks, hit_tokens, _ = manager.get_computed_blocks(request)
    assert hit_tokens == 0 and manager.allocate_slots(request, length, 0, blocks) is not None
    request.num_computed_tokens = length
    free = manager.block_pool.get_num_free_blocks
    request.append_output_token_ids([length])
    assert manager.allocate_slots(request, 1) is not None
    # If the next token begins a block, each group has just taken one for it.
    used = NUM_BLOCKS - 1 - free() - (len(groups) if length % size == 0 else 0)
    return [[[getattr(g.kv_cache_spec, "sliding_window", None), len(g.layer_names)] for g in groups], used]


def main() -> None:
    init_none_hash(sha256)
    answer_each_line(run)


if __name__ == "__main__":
    main()
