"""How a problem reads, and what the operating system's refusals become."""

from __future__ import annotations

import errno

import pytest

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError, Problem, os_error_problem


def test_a_problem_says_where_what_is_allowed_and_what_to_do() -> None:
    problem = Problem(Code.WRONG_VALUE, "a.json: b", "it says 1", "2", "Say 2.")
    assert str(problem) == "a.json: b: it says 1 (allowed: 2)\n    Say 2."
    assert str(Problem(Code.WRONG_VALUE, "", "it says 1")) == "it says 1"


def test_an_error_holds_all_its_problems() -> None:
    first, second = Problem(Code.EMPTY, "a", "m"), Problem(Code.EMPTY, "b", "n")
    assert str(PrefixCacheError([first, second])) == "a: m\nb: n"
    assert PrefixCacheError.of(Code.EMPTY, "a", "m").problems == (first,)
    with pytest.raises(ValueError, match="at least one"):
        PrefixCacheError([])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_as_such(number: int) -> None:
    problem = os_error_problem(OSError(number, "x", "/f"))
    assert (problem.code, problem.where, problem.message) == ("DISK_FULL", "/f", "the disk is full")


def test_other_refusals_keep_the_systems_words() -> None:
    problem = os_error_problem(OSError(errno.EACCES, "Permission denied"))
    assert (problem.code, problem.where, problem.message) == ("OS_ERROR", "", "Permission denied")
