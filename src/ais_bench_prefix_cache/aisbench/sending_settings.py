"""What the launching program tells the adapters inside one AISBench, in a file: each of several senders has its own."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ais_bench_prefix_cache.aisbench.environment import SENDING_VARIABLE


@dataclass(frozen=True)
class SendingSettings:
    """Paths are absolute; an adapter that nobody launched goes without them.

    ``rows`` is the file whose rows are sent, ``index`` the saved :class:`~.request_index.RequestIndex` of those that
    this sender sends, at most ``batch_size`` of them at a time (None: as AISBench's configuration says).

    ``heartbeat`` is a file whose modification time is the last sign of life from the server and whose text is the
    number of finished requests; it appears when the sender is ready. ``go`` is a file that then says, in seconds of
    this machine's monotonic clock, when to begin. ``account`` is where the sender tells what sending cost it.
    ``supervisor`` is a file that the launching program keeps locked: when the lock is gone, nothing may go on sending.
    ``request_seconds`` is what one request may take, beside two seconds for each of its tokens.
    """

    rows: str
    index: str
    batch_size: int | None
    heartbeat: str
    go: str
    account: str
    supervisor: str
    request_seconds: float

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: str) -> SendingSettings:
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    @classmethod
    def from_environment(cls) -> SendingSettings | None:
        """Those of this process; None in an AISBench that somebody started by hand."""
        paths = settings_paths()
        if len(paths) > 1:
            raise RuntimeError("several senders need the runner of this package, adapters.runner.ForkingRunner")
        return cls.load(paths[0]) if paths else None


def settings_paths() -> list[str]:
    """The files of all senders of this AISBench."""
    return [path for path in os.environ.get(SENDING_VARIABLE, "").split(os.pathsep) if path]
