"""What commands print: one JSON document on stdout; progress, warnings, notes on stderr; details in a log file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from ais_bench_prefix_cache.foundation.quoting import printable, printable_json
from ais_bench_prefix_cache.foundation.telling import warning_line

_SECONDS_WITHOUT_PACE = 2.0


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

    What takes longer than two seconds also shows what is done a second and how long the rest will take, a terminal the
    time so far. A terminal sees one line that moves; anything else a line at every tenth of the way.
    However the block ends, the next line on stderr begins at its beginning.
    """
    from tqdm import tqdm

    bar_format = "{desc} [{bar:30}] {n_fmt}/{total_fmt} {percentage:3.0f}%"
    look: dict[str, Any] = {"ascii": "-#", "bar_format": bar_format}
    first: tuple[float, int] | None = None

    def pace(done: int) -> str:
        """Counted from the first sign: a server or AISBench may take long to start."""
        nonlocal first
        now = monotonic()
        if first is None:
            first = now, done
        seconds, since = now - first[0], done - first[1]
        if since <= 0 or seconds < _SECONDS_WITHOUT_PACE:
            return ""
        rate = since / seconds
        rest = f", {(total - done) / rate:.0f} s left" if done < total else ""
        return f"  {rate:.3g}/s{rest}"

    if total and sys.stderr.isatty():
        look["bar_format"] += "  {elapsed}{postfix}"
        with tqdm(total=total, desc=label, file=sys.stderr, **look) as bar:

            def move(done: int) -> None:
                bar.set_postfix_str(pace(done).strip(), refresh=False)
                bar.update(done - bar.n)

            yield move
        return

    tenths = 0

    def show(done: int) -> None:
        nonlocal tenths
        behind = pace(done)
        if done * 10 // total > tenths:
            tenths = done * 10 // total
            note(tqdm.format_meter(done, total, 0, prefix=label, **look) + behind)

    yield show if total else lambda done: None
