"""AISBench's own performance figures, read from its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def performance_report(analysis: Mapping[str, Any], *, analysis_path: Path) -> dict[str, Any]:
    """``{csv, json, metrics, common}`` of the run that ``analysis`` records (``runtime.aisbench``)."""
    raise NotImplementedError
