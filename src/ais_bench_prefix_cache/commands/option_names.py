"""Errors of rooms that speak of a Scenario's keys, said in the words of commands that have options instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

OPTION_OF = {"corpus.path": "--corpus", "tokenizer.path": "--tokenizer", "tokenizer.block_size": "--blocksize"}


@contextmanager
def named_by_options() -> Iterator[None]:
    """Raise the errors of the block with options in the place of keys."""
    from ais_bench_prefix_cache.foundation.errors import PrefixCacheError, Problem

    try:
        yield
    except PrefixCacheError as error:
        problems = []
        for problem in error.problems:
            option = OPTION_OF.get(problem.where.removeprefix("scenario: "))
            if option is None:
                problems.append(problem)
                continue
            hint = problem.hint
            if hint is not None and "tokenizer.trust_remote_code" in hint:
                hint = "If you trust that code, add --trust-remote-code."
            problems.append(Problem(problem.code, option, problem.message, problem.allowed, hint))
        raise type(error)(problems) from error
