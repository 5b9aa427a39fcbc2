"""Log files of commands and runs: one line an event, never one a request, so that a log does not grow with the data."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path

LOGGER_NAME = "ais_bench_prefix_cache"


class _LogFile(logging.FileHandler):
    """A log file that cannot be written is an error of the command (a full disk), not a traceback beside it.

    A link in its place, or in its directory's, could lead anywhere: nothing is written through one.
    """

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        if path.parent.is_symlink():
            raise OSError(None, "it is a symbolic link, not a directory", str(path.parent))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return TextIOWrapper(os.fdopen(os.open(path, flags, 0o666), "ab"), encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, self.baseFilename) from error
        raise  # noqa: PLE0704  the handler calls this while it handles the error


@contextmanager
def also_logged(path: Path) -> Iterator[logging.Logger]:
    """What is logged in the block is appended to ``path``, too; nothing reaches the terminal.

    Afterwards the logger is set as it was: the process may be somebody else's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger(LOGGER_NAME)
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        with suppress(OSError):
            handler.close()


@contextmanager
def run_log(path: Path) -> Iterator[logging.Logger]:
    """Details of one command go to ``path`` (appended), also why it stopped."""
    with also_logged(path) as logger:
        try:
            yield logger
        except BaseException as error:
            with suppress(OSError):
                logger.error("stopped by %s: %s", type(error).__name__, error)
            raise
