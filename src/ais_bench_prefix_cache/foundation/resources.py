"""What this machine has left of memory and disk, and the refusal of what needs more: before the work, not amid it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ScenarioError

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def require_memory(needed: int, where: str, what: str, hint: str) -> None:
    """Raise :class:`ScenarioError` where fewer than ``needed`` bytes of memory are free; ``what`` needs them."""
    free = _free_memory()
    if free is not None and needed > free:
        message = f"{what} takes about {_shown(needed)} of memory, and {_shown(free)} are free"
        raise ScenarioError.of(Code.NOT_ENOUGH_MEMORY, where, message, hint=hint)


def require_disk(directory: Path, needed: int, where: str, what: str, hint: str) -> None:
    """Raise :class:`ScenarioError` where ``directory``, which may not exist yet, has fewer bytes free."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    try:
        free = shutil.disk_usage(directory).free
    except OSError:  # whoever writes will say what is wrong with it
        return
    if needed > free:
        message = f"{what} takes at least {_shown(needed)} on the disk of {directory}, and {_shown(free)} are free"
        raise ScenarioError.of(Code.DISK_FULL, where, message, hint=hint)


def _free_memory() -> int | None:
    """Bytes that can be had without swapping (Linux), less where a container has a limit; None where nothing tells."""
    free = []
    with suppress(OSError, StopIteration, ValueError):
        lines = (_PROC / "meminfo").read_text().splitlines()
        free.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            free.append(int((_CGROUP / limit).read_text()) - int((_CGROUP / used).read_text()))
    return min(free, default=None)


def _shown(number: int) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{max(0, number) / 1e6:,.0f} MB"
