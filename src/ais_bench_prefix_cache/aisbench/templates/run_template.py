"""Runs a template in a process of its own: ``python -m … TEMPLATE OUTPUT`` writes its variables as JSON.

A class becomes its dotted name, a path its text; anything else that JSON does not know is an error. The exit code is 0,
or 3 with one line on stderr that says what is wrong with the template.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from pathlib import Path, PurePath
from typing import Any

VARIABLES = ("datasets", "models", "infer", "eval", "summarizer")
TEMPLATE_FAILED = 3


def as_json(value: Any, where: str) -> Any:
    """``value`` with classes, paths and tuples replaced; raises :class:`TypeError` that names ``where``."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where}: the key {key!r} is not a string")
        return {key: as_json(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    raise TypeError(f"{where}: a {type(value).__name__} cannot be written into an AISBench configuration")


def main(template: str, output: str) -> int:
    """Run ``template`` and write what it assigned to ``output`` as JSON; returns the exit code."""
    sys.path.insert(0, str(Path(template).parent))
    try:
        variables = runpy.run_path(template)
        found = {name: as_json(variables[name], name) for name in VARIABLES if variables.get(name) is not None}
        document = json.dumps(found, allow_nan=False)
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == template]
        where = f"line {lines[-1]}: " if lines else ""
        sys.stderr.write(f"{where}{type(error).__name__}: {error}\n")
        return TEMPLATE_FAILED
    Path(output).write_text(document, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
