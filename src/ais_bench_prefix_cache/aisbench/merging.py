"""The raw records of several load generators in one place and on one clock.

AISBench's lines of details and ours of usage have the requests' own numbers, so that they only stand one after the
other; moments of another machine's monotonic clock are moved to this one's.
"""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

_DATABASES = "db_data"
_MOMENTS = ("due", "sent", "first_token", "finished")


@dataclass(frozen=True)
class Part:
    """``directory`` is a load generator's ``performances/<model abbr>``.

    ``shift_seconds`` is what must be added to its moments; 0 on this machine.
    """

    directory: str
    shift_seconds: float


def write_parts(parts: Sequence[Part], path: Path) -> None:
    """Whole or not at all: someone is waiting for it."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps([asdict(part) for part in parts]), encoding="utf-8")
    unfinished.replace(path)


def read_parts(path: Path) -> list[Part]:
    """What :func:`write_parts` wrote."""
    return [Part(**part) for part in json.loads(path.read_text(encoding="utf-8"))]


def merge(parts: Sequence[Part], target: Path) -> None:
    """Move the records of all parts into ``target``.

    Raises RuntimeError where two databases have one name: AISBench draws eight hexadecimal digits for each.
    """
    databases = target / _DATABASES
    databases.mkdir(parents=True)
    for part in parts:
        directory = Path(part.directory)
        for lines in sorted(directory.glob("*.jsonl")):
            with (target / lines.name).open("ab") as all_lines:
                if part.shift_seconds and lines.name.endswith("_usage.jsonl"):
                    _append_moved(lines, all_lines, part.shift_seconds)
                else:
                    with lines.open("rb") as source:
                        shutil.copyfileobj(source, all_lines)
        for database in sorted((directory / _DATABASES).glob("*.db")):
            place = databases / database.name
            if place.exists():
                raise RuntimeError(f"two load generators have a database {database.name}")
            shutil.move(database, place)
            if part.shift_seconds:
                _move_moments(place, part.shift_seconds)


def _append_moved(lines: Path, target: io.BufferedWriter, shift: float) -> None:
    with lines.open(encoding="utf-8") as rows:
        for line in rows:
            row = json.loads(line)
            row.update({name: round(row[name] + shift, 6) for name in _MOMENTS if row[name] is not None})
            target.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _move_moments(database: Path, shift: float) -> None:
    """AISBench keeps an array of moments for each request."""
    with closing(sqlite3.connect(database)) as connection, connection:
        for number, blob in connection.execute("SELECT id, arr_blob FROM numpy_store").fetchall():
            moved = io.BytesIO()
            np.save(moved, np.load(io.BytesIO(blob), allow_pickle=False) + shift, allow_pickle=False)
            connection.execute("UPDATE numpy_store SET arr_blob = ? WHERE id = ?", (moved.getvalue(), number))
