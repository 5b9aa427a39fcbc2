"""What commands print: one JSON document on stdout; progress, warnings, notes on stderr; details in a log file."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOGGER_NAME = "ais_bench_prefix_cache"


def print_json(document: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write one JSON document to stdout, readable by people who read Chinese, too."""
    is_utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    sys.stdout.write(json.dumps(document, ensure_ascii=not is_utf8, indent=indent, allow_nan=False) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def warn(warning: Mapping[str, Any]) -> None:
    """Show one warning object of an analysis; ``message`` is its sentence, ``code`` its name."""
    note(f"warning [{warning['code']}] {warning['message']}")


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show ``label [#####-----] 50/100  50%`` on stderr; the function of the block hears how many are done.

    A terminal sees one line that moves; anything else a line at every tenth of the way. However the block ends, the
    next line on stderr begins at its beginning.
    """
    from tqdm import tqdm

    look: dict[str, Any] = {"ascii": "-#", "bar_format": "{desc} [{bar:30}] {n_fmt}/{total_fmt} {percentage:3.0f}%"}
    if total and sys.stderr.isatty():
        with tqdm(total=total, desc=label, file=sys.stderr, **look) as bar:

            def move(done: int) -> None:
                bar.update(done - bar.n)

            yield move
        return

    tenths = 0

    def show(done: int) -> None:
        nonlocal tenths
        if done * 10 // total > tenths:
            tenths = done * 10 // total
            note(tqdm.format_meter(done, total, 0, prefix=label, **look))

    yield show if total else lambda done: None


@contextmanager
def run_log(path: Path) -> Iterator[logging.Logger]:
    """Details of one command go to ``path`` (appended), never to the terminal.

    One line an event, never one a request: a log must not grow with the data.
    """

    class LogFile(logging.FileHandler):
        """A log file that cannot be written is an error of the command (a full disk), not a traceback beside it."""

        def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
            error = sys.exc_info()[1]
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, self.baseFilename) from error
            raise  # noqa: PLE0704  the handler calls this while it handles the error

    path.parent.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    try:
        yield logger
    except BaseException as error:
        with suppress(OSError):
            logger.error("stopped by %s: %s", type(error).__name__, error)
        raise
    finally:
        logger.removeHandler(handler)
        with suppress(OSError):
            handler.close()
