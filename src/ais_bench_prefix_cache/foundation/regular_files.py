"""Opening what must be a plain file: whoever names it, and whatever stands there."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

READ_BYTES = 1 << 20


def open_regular(path: Path, *, follow_links: bool = False) -> BinaryIO:
    """Open a file for reading that must be a plain one: not a link, directory, device, socket or FIFO.

    A file of a data set is data: a link could lead anywhere, and reading a FIFO or a device may never end.
    ``follow_links`` is for files that a user names.
    Raises :class:`OSError`.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # Opening a FIFO waits for a writer, unless told not to.
        descriptor = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
    except OSError:
        if path.is_symlink() and not follow_links:
            raise OSError(None, "it is a symbolic link, not a file", str(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        refusal = IsADirectoryError if stat.S_ISDIR(mode) else OSError
        raise refusal(None, "it is a directory, device, socket or FIFO, not a file", str(path))
    return os.fdopen(descriptor, "rb", buffering=READ_BYTES)
