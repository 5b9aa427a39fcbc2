"""The one tree of errors: each says what is wrong, where, what is allowed and what to do.

Every error that a user can cause derives from :class:`PrefixCacheError`. The command line prints its
:class:`Problem` records on stderr and exits with the class's ``exit_code``; nothing else may decide an exit code.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.foundation.codes import Code

if TYPE_CHECKING:
    from typing_extensions import Self

EXIT_OK = 0
EXIT_CONDITION_MET = 1
EXIT_INVALID_INPUT = 2
EXIT_SERVICE = 3
EXIT_AISBENCH = 4
EXIT_NOT_JUDGED = 5
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    ``where`` names a place in the input (``scenario.json: prefix_cache.seed_blocks``, ``full.jsonl line 7``, a URL);
    ``message`` says what is wrong there; ``allowed`` what would be right; ``hint`` what to do. None of them ever holds
    a secret.
    """

    code: Code
    where: str
    message: str
    allowed: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        if self.allowed:
            text += f" (allowed: {self.allowed})"
        if self.hint:
            text += f"\n    {self.hint}"
        return text


def os_error_problem(error: OSError) -> Problem:
    """What the operating system refused, in our words where a user can do something about it."""
    where = "" if error.filename is None else str(error.filename)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Problem(Code.DISK_FULL, where, "the disk is full", hint="Free some space and repeat the command.")
    return Problem(Code.OS_ERROR, where, error.strerror or str(error))


class PrefixCacheError(Exception):
    """Base of all errors that are part of the product. Holds one or more problems."""

    exit_code = EXIT_INVALID_INPUT
    closing: str | None = None
    """What the command line says last: where a longer command stopped, and what it left."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        if not self.problems:
            raise ValueError("an error needs at least one problem")
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[Problem, ...]]]:
        """So that it arrives whole from another process."""
        return type(self), (self.problems,)

    @classmethod
    def of(cls, code: Code, where: str, message: str, *, allowed: str | None = None, hint: str | None = None) -> Self:
        """An error with a single problem."""
        return cls(Problem(code, where, message, allowed, hint))


class ScenarioError(PrefixCacheError):
    """The Scenario, or a file that it names (corpus, CSV of lengths), cannot be used."""


class GenerationError(PrefixCacheError):
    """A data set that the Scenario asks for cannot be made exactly."""


class ArtifactError(PrefixCacheError):
    """A file that an earlier command wrote is missing, damaged or does not belong to the others."""


class CalculationError(PrefixCacheError):
    """Numbers or a model configuration that a calculator of the cache cannot use."""


class SnapshotError(PrefixCacheError):
    """Two metric texts cannot be compared: no data, a restart, falling counters, missing ranks."""


class ServiceError(PrefixCacheError):
    """The inference service cannot do, or did not do, what a run needs."""

    exit_code = EXIT_SERVICE


class AISBenchError(PrefixCacheError):
    """AISBench could not be started, failed, or did not send what was planned."""

    exit_code = EXIT_AISBENCH


class Terminated(BaseException):
    """SIGTERM arrived. Not an ``Exception``: only clean-up code and the command line may see it."""
