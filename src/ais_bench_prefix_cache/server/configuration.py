"""What the embedded server can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError, Problem

ImitatedServer = Literal["vllm", "sglang"]
ENGINES: tuple[ImitatedServer, ...] = ("vllm", "sglang")
ResetMode = Literal["ok", "refuse", "noop", "missing"]
RESET_MODES: tuple[ResetMode, ...] = ("ok", "refuse", "noop", "missing")


class ServerError(PrefixCacheError):
    """The embedded server cannot start as asked."""


@dataclass(frozen=True)
class ServerConfiguration:
    """Options of the embedded server, named as vLLM names them where vLLM has them.

    Rates are per second and of time, not of work: ``None`` means that a step takes no time.
    """

    tokenizer: Path
    engine: ImitatedServer = "vllm"
    """Whose rules, endpoints and metrics are imitated."""
    model: str = "embedded"
    block_size: int = 16
    num_blocks: int = 65536
    """Blocks of each rank, as vLLM's ``--num-gpu-blocks-override``: one of them is never used."""
    data_parallel_size: int = 1
    max_model_len: int = 32768
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    prefill_tokens_per_second: float | None = 50_000.0
    decode_tokens_per_second: float | None = 200.0
    """Tokens that one request gets in a second; the requests of a batch get theirs at the same time."""
    enable_prefix_caching: bool = True
    enable_prompt_tokens_details: bool = True
    disable_log_stats: bool = False
    ignore_rank_header: bool = False
    """Behave like vLLM before 0.11.1, which did not know ``X-data-parallel-rank``."""
    reset_mode: ResetMode = "ok"
    """``refuse``: always busy; ``noop``: says yes and does nothing; ``missing``: 404, as without developer mode."""
    fail_every: int = 0
    """Answer each N-th generation request with status 500; 0 for none."""
    max_body_bytes: int = 32 << 20
    """Larger bodies of requests are refused."""

    def __post_init__(self) -> None:
        problems = [
            Problem(Code.INVALID_SERVER_OPTION, name, f"{getattr(self, name)} is too small", allowed=f"{least} or more")
            for name, least in (
                ("block_size", 1),
                ("num_blocks", 2),
                ("data_parallel_size", 1),
                ("max_model_len", 2),
                ("max_num_seqs", 1),
                ("max_num_batched_tokens", 1),
                ("fail_every", 0),
                ("max_body_bytes", 1),
            )
            if getattr(self, name) < least
        ]
        for name in ("prefill_tokens_per_second", "decode_tokens_per_second"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                problems.append(
                    Problem(Code.INVALID_SERVER_OPTION, name, f"{rate} is not a rate", allowed="a number above 0")
                )
        if problems:
            raise ServerError(problems)
        # vLLM never uses one of its blocks; on SGLang that is the page to which a request may be rounded up.
        needed = -(-self.max_model_len // self.block_size) + 1
        if self.num_blocks < needed:
            raise ServerError.of(
                Code.CACHE_TOO_SMALL,
                "num_blocks",
                f"{self.num_blocks} blocks of {self.block_size} tokens cannot hold one request of "
                f"max_model_len = {self.max_model_len} tokens",
                allowed=f"{needed} or more",
                hint="Raise num_blocks or lower max_model_len.",
            )
