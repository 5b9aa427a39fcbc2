"""AISBench must not outlive the program that launched it: a benchmark without its judge only loads the server."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path


def supervisor_is_gone(lock_file: Path) -> bool:
    """The launching program locks this file as long as it lives; the kernel unlocks it even after SIGKILL."""
    try:
        with lock_file.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True


def end_with_supervisor(lock_file: Path) -> None:
    """End this whole process group if the launching program is gone.

    By SIGTERM, which nobody here catches but Python's resource tracker ignores: it then frees the shared memory.
    """
    if supervisor_is_gone(lock_file):
        os.killpg(os.getpgid(0), signal.SIGTERM)
