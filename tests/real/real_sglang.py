"""Starts a real SGLang on the CPU with a tiny Qwen3 of random weights.

Scheduler, radix cache, metrics and HTTP are SGLang's own; of its kernels only those written in torch run. See
docs/sglang.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.real.real_server import SERVED_MODEL, RealServer, free_port, server_python, started

PYTHON_VARIABLE = "AISBENCH_PREFIX_CACHE_SGLANG_PYTHON"


def sglang_python() -> Path:
    return server_python("SGLang", ".venv-sglang", PYTHON_VARIABLE)


@contextmanager
def real_sglang(
    model: Path, log: Path, *, page_size: int = 1, ranks: int = 1, max_tokens: int = 65536, options: Sequence[str] = ()
) -> Iterator[RealServer]:
    """A ready server on a free loopback port; ``max_tokens`` is the size of each rank's cache."""
    port = free_port()
    command = [
        *(str(sglang_python()), "-m", "sglang.launch_server", "--model-path", str(model)),
        *("--served-model-name", SERVED_MODEL, "--device", "cpu", "--load-format", "dummy"),
        *("--attention-backend", "torch_native", "--disable-cuda-graph", "--mem-fraction-static", "0.3"),
        *("--host", "127.0.0.1", "--port", str(port), "--enable-metrics", "--enable-cache-report"),
        *("--context-length", "8192", "--max-total-tokens", str(max_tokens), "--page-size", str(page_size)),
        *("--dp-size", str(ranks), "--watchdog-timeout", "1200"),
        *options,
    ]
    environment = {"SGLANG_USE_CPU_ENGINE": "1"}
    if ranks > 1:
        # Ranks want cores of their own, whether the machine has so many or not.
        environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(rank % 2) for rank in range(ranks))
    with started(command, environment, port, log) as server:
        yield server
