"""What commands print: one JSON document on stdout; progress, warnings, notes on stderr; details in a log file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ais_bench_prefix_cache.foundation.quoting import printable, printable_json
from ais_bench_prefix_cache.foundation.telling import warning_line


def print_json(document: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write one JSON document to stdout, readable by people who read Chinese, too."""
    is_utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    text = json.dumps(document, ensure_ascii=not is_utf8, indent=indent, allow_nan=False)
    sys.stdout.write(printable_json(text) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for the person at the terminal."""
    print(printable(text), file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Lines on stdout, for people."""
    print(printable(text), flush=True)


def warn(warning: Mapping[str, Any]) -> None:
    """Show one warning object of an analysis."""
    note(warning_line(warning))


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
