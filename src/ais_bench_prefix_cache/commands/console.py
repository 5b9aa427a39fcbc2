"""What commands print: one JSON document on stdout; progress, warnings, notes on stderr; details in a log file."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")

LOGGER_NAME = "ais_bench_prefix_cache"


def print_json(document: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write one JSON document to stdout, readable by people who read Chinese, too."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=indent, allow_nan=False) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def warn(warning: Mapping[str, Any]) -> None:
    """Show one warning object of an analysis; ``message`` is its sentence, ``code`` its name."""
    note(f"warning [{warning['code']}] {warning['message']}")


def progress(items: Iterable[Item], *, total: int, label: str, shown: bool = True) -> Iterator[Item]:
    """Pass ``items`` through and show ``label [#####-----] 50/100  50%`` on stderr.

    A terminal sees one line that moves; anything else sees a line at every tenth of the way.
    """
    from tqdm import tqdm

    terminal = sys.stderr.isatty()
    return iter(
        tqdm(
            items,
            total=total,
            desc=label,
            file=sys.stderr,
            disable=not shown or total == 0,
            ascii="-#",
            bar_format="{desc} [{bar:30}] {n_fmt}/{total_fmt} {percentage:3.0f}%",
            mininterval=0.1 if terminal else 5.0,
            leave=True,
        )
    )


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """The same bar for work that is not a loop: the function of the block hears how many are done.

    However the block ends, the next line on stderr begins at its beginning.
    """
    from tqdm import tqdm

    terminal = sys.stderr.isatty()
    with tqdm(
        total=total,
        desc=label,
        file=sys.stderr,
        disable=total == 0,
        ascii="-#",
        bar_format="{desc} [{bar:30}] {n_fmt}/{total_fmt} {percentage:3.0f}%",
        mininterval=0.1 if terminal else 5.0,
        leave=True,
    ) as bar:

        def show(done: int) -> None:
            bar.update(done - bar.n)

        yield show


class _LogFile(logging.FileHandler):
    """A log file that cannot be written is an error of the command (a full disk), not a traceback beside it."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise


@contextmanager
def run_log(path: Path) -> Iterator[logging.Logger]:
    """Details of one command go to ``path`` (appended), never to the terminal.

    One line an event, never one a request: a log must not grow with the data.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = _LogFile(path, encoding="utf-8")
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
