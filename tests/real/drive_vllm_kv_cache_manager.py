"""Runs sequences of cache operations on vLLM's own ``KVCacheManager``; needs vLLM's virtual environment, no model.

Reads one sequence a line (JSON) on stdin and answers each with a line of observations on stdout. See
``test_kvcache_against_vllm.py`` for the operations.
"""

from __future__ import annotations

from typing import Any

import torch
from tests.real.driving import answer_each_line
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

MAX_MODEL_LEN = 1 << 20


class Driver:
    """One manager and the requests that it knows."""

    def __init__(self, block_size: int, num_blocks: int, drops_last_hit_block: bool, events: bool = False) -> None:
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        # The pool keeps one block, the null block, for itself.
        config = KVCacheConfig(
            num_blocks=num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self.manager = KVCacheManager(
            config,
            max_model_len=MAX_MODEL_LEN,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            use_eagle=drops_last_hit_block,
            log_stats=True,
            enable_kv_cache_events=events,
        )
        self.hasher = get_request_block_hasher(block_size, sha256)
        self.block_size = block_size
        self.requests: dict[int, Request] = {}

    def run(self, operation: list[Any]) -> list[Any]:
        name, *arguments = operation
        return [*getattr(self, name)(*arguments), self.manager.block_pool.get_num_free_blocks()]

    def admit(
        self, name: int, token_ids: list[int], budget: int, whole: bool, keys: dict[str, Any] | None
    ) -> list[Any]:
        self.requests[name] = self.request(str(name), token_ids, keys or {})
        return self.start(name, budget, whole)

    def request(self, name: str, token_ids: list[int], keys: dict[str, Any]) -> Request:
        features = [
            MultiModalFeatureSpec(
                data=None, modality="image", identifier=identifier, mm_position=PlaceholderRange(offset, length)
            )
            for identifier, offset, length in keys.get("multimodal", ())
        ]
        lora = keys.get("lora")
        return Request(
            name,
            token_ids,
            SamplingParams(max_tokens=MAX_MODEL_LEN),
            None,
            mm_features=features or None,
            lora_request=LoRARequest(lora[0], 1 + sum(map(ord, lora[0])), lora[1]) if lora else None,
            cache_salt=keys.get("salt"),
            block_hasher=self.hasher,
        )

    def start(self, name: int, budget: int, whole: bool) -> list[Any]:
        request = self.requests[name]
        blocks, hit_tokens, _ = self.manager.get_computed_blocks(request)
        num_new_tokens = min(request.num_tokens - hit_tokens, budget)
        allocated = self.manager.allocate_slots(
            request, num_new_tokens, hit_tokens, blocks, full_sequence_must_fit=whole
        )
        if allocated is not None:
            self.manager.record_prefix_cache_stats(request, hit_tokens)
            request.num_computed_tokens = hit_tokens + num_new_tokens
        stats = self.manager.make_prefix_cache_stats()
        return [hit_tokens, allocated is not None, stats.queries, stats.hits]

    def proceed(self, name: int, budget: int) -> list[Any]:
        request = self.requests[name]
        num_new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
        if num_new_tokens == 0:
            return [None]
        allocated = self.manager.allocate_slots(request, num_new_tokens)
        if allocated is not None:
            request.num_computed_tokens += num_new_tokens
        return [allocated is not None]

    def append(self, name: int, token_ids: list[int]) -> list[Any]:
        self.requests[name].append_output_token_ids(token_ids)
        return []

    def free(self, name: int) -> list[Any]:
        self.manager.free(self.requests[name])
        self.requests[name].num_computed_tokens = 0
        return []

    def reset(self) -> list[Any]:
        return [self.manager.reset_prefix_cache()]


def run(sequence: dict[str, Any]) -> list[Any]:
    driver = Driver(sequence["block_size"], sequence["num_blocks"], sequence["drops_last_hit_block"])
    return [driver.run(operation) for operation in sequence["operations"]]


def main() -> None:
    init_none_hash(sha256)
    answer_each_line(run)


if __name__ == "__main__":
    main()
