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
    this sender sends. ``heartbeat`` is a file whose modification time is the last sign of life from the server and
    whose text is the number of finished requests. ``supervisor`` is a file that the launching program keeps locked:
    when the lock is gone, nothing may go on sending. ``request_seconds`` is what one request may take, beside two
    seconds for each of its tokens.
    """

    rows: str
    index: str
    heartbeat: str
    supervisor: str
    request_seconds: float

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def from_environment(cls) -> SendingSettings | None:
        """Those of this process; None in an AISBench that somebody started by hand."""
        name = os.environ.get(SENDING_VARIABLE)
        return cls(**json.loads(Path(name).read_text(encoding="utf-8"))) if name else None
