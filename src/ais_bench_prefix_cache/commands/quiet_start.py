"""What only a command, whose process is its own, may do while a tokenizer is loaded: be quiet, and be quick.

Importing transformers imports PyTorch where that is installed, which takes seconds and which no tokenizer needs.
Loaders give advice, and compiled code prints, on a stdout that carries one JSON document.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.scenario.model import TokenizerConfig

QUIET = {
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "true",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
"""Environment variables that a command sets for its process where the user has not."""


def load_quietly(config: TokenizerConfig) -> PromptTokenizer:
    """:func:`~ais_bench_prefix_cache.exact_text.tokenizer.load_tokenizer` within :func:`quiet_start`.

    The identity, for which compiled code may print, is worked out here too; the tokenizer remembers it.
    """
    with quiet_start(hide_torch=not config.trust_remote_code):
        from ais_bench_prefix_cache.exact_text.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(config)
        tokenizer.identity()
    return tokenizer


@contextlib.contextmanager
def quiet_start(*, hide_torch: bool) -> Iterator[None]:
    """Nothing reaches stdout and the garbage collector rests; what is alive at the end is never searched for garbage.

    ``hide_torch``: let transformers believe, for good, that PyTorch is not installed. Code from a model's repository
    may want it.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    with (
        warnings.catch_warnings(),
        stdout_to_stderr(),
        _collection_paused(),
        _torch_hidden() if hide_torch else contextlib.nullcontext(),
    ):
        warnings.simplefilter("ignore")
        yield
    gc.freeze()


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What is printed in the block goes to stderr.

    Compiled code (``tokenizers`` on gaps in a vocabulary) prints past ``sys.stdout``: hence the descriptor.
    """
    with contextlib.redirect_stdout(sys.stderr):
        try:
            stdout = os.dup(1)
        except OSError:  # It is closed, and nothing can reach it.
            yield
            return
        try:
            with contextlib.suppress(OSError):
                os.dup2(2, 1)
            yield
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)


@contextlib.contextmanager
def _collection_paused() -> Iterator[None]:
    """Modules and vocabularies, which come into being here, stay: no search for unreachable cycles finds any."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@contextlib.contextmanager
def _torch_hidden() -> Iterator[None]:
    """Make ``import torch`` fail and ``find_spec`` find nothing, unless PyTorch or transformers is imported already."""
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    hidden: dict[str, Any] = {"torch": None}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        if sys.modules.get("torch", "") is None:
            del sys.modules["torch"]
