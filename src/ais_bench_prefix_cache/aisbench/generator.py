"""One load generator: ``python -m ais_bench_prefix_cache.aisbench.generator``, with one JSON object a line.

It reads on stdin

- ``{"job": …}``: what to send (:func:`job_line`), the API key included; it is the first line and comes once;
- ``{"clock": …}``: answer with the same and the own clock's moment;
- ``{"go": moment}``: begin then, by the own monotonic clock;
- the end of stdin: stop, clean up, and end.

It says on stdout

- ``{"ready": {"host": …, "boot": …}}``: its senders stand with their requests and wait;
- ``{"clock": [asked, own]}``;
- ``{"finished": n}``: so many requests;
- ``{"result": {"records": …, "load": …}}``: everything was sent, and where its raw records lie;
- ``{"problems": […]}``: why it cannot go on.

So whatever can start a process and carry lines is an engine for it. It sends and nothing else: whether everything was
sent is judged by the program that has the records of all.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TextIO

from ais_bench_prefix_cache.aisbench.config_rendering import TEMPLATES
from ais_bench_prefix_cache.aisbench.job import AISBenchJob
from ais_bench_prefix_cache.aisbench.launch import SECONDS_BETWEEN_LOOKS, StartedAISBench, started_aisbench
from ais_bench_prefix_cache.aisbench.request_index import RequestIndex
from ais_bench_prefix_cache.foundation.errors import EXIT_OK, EXIT_TERMINATED, PrefixCacheError, Terminated
from ais_bench_prefix_cache.foundation.interruptions import ended_by_the_first_signal
from ais_bench_prefix_cache.scenario.model import LoadConfig

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def job_line(job: AISBenchJob, index: Path) -> str:
    """The job as the first line of a generator's stdin; its index is saved as ``index`` where the generator finds it.

    A built-in template is named, not located: the generator has its own.
    """
    template = job.template_path
    return json.dumps(
        {
            "job": {
                "scenario_path": str(job.scenario_path),
                "manifest_path": str(job.manifest_path),
                "rows_path": str(job.rows_path),
                "index": str(index),
                "template_path": template.name if template.parent == TEMPLATES else str(template),
                "work_dir": str(job.work_dir),
                "config": dict(job.config),
                "api_key": job.api_key,
                "extra_args": dict(job.extra_args),
                "log_path": None if job.log_path is None else str(job.log_path),
                "stall_seconds": job.stall_seconds,
                "timeout_seconds": job.timeout_seconds,
                "load": asdict(job.load),
                "batch_size": job.batch_size,
            }
        }
    )


def this_boot() -> str:
    """The same for all processes that share one monotonic clock."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _job(message: Mapping[str, Any]) -> AISBenchJob:
    paths = {name: Path(message[name]) for name in ("scenario_path", "manifest_path", "rows_path", "work_dir")}
    template = Path(message["template_path"])
    return AISBenchJob(
        **paths,
        index=RequestIndex.load(Path(message["index"])),
        template_path=template if template.is_absolute() else TEMPLATES / template,
        config=message["config"],
        api_key=message["api_key"],
        extra_args=message["extra_args"],
        log_path=None if message["log_path"] is None else Path(message["log_path"]),
        stall_seconds=message["stall_seconds"],
        timeout_seconds=message["timeout_seconds"],
        load=LoadConfig(**message["load"]),
        role="sending",
        batch_size=message["batch_size"],
    )


class _Conversation:
    """Lines both ways; the end of stdin ends this process by SIGTERM, wherever it is."""

    def __init__(self, lines: TextIO, answers: TextIO) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self.go: SimpleQueue[float] = SimpleQueue()
        first = lines.readline()
        self.job: dict[str, Any] | None = json.loads(first)["job"] if first else None
        threading.Thread(target=self._listen, args=(lines,), daemon=True).start()

    def say(self, **message: Any) -> None:
        with self._lock:
            self._answers.write(f"{json.dumps(message)}\n")
            self._answers.flush()

    def _listen(self, lines: TextIO) -> None:
        for line in lines:
            message = json.loads(line)
            if "clock" in message:
                self.say(clock=[message["clock"], time.perf_counter()])
            elif "go" in message:
                self.go.put(message["go"])
        os.kill(os.getpid(), signal.SIGTERM)


def _send(aisbench: StartedAISBench, conversation: _Conversation) -> dict[str, Any]:
    aisbench.start()
    while not aisbench.ready:
        aisbench.look(SECONDS_BETWEEN_LOOKS)
    conversation.say(ready={"host": socket.gethostname(), "boot": this_boot()})
    while True:
        try:
            aisbench.go(conversation.go.get(timeout=SECONDS_BETWEEN_LOOKS))
            break
        except Empty:
            if aisbench.look(0) is not None:
                break
    aisbench.wait(lambda finished: conversation.say(finished=finished))
    return {"records": str(aisbench.records()), "load": aisbench.load()}


def main() -> int:
    """Returns the exit code: that of an error, or of the end of stdin before everything was sent."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no line of ours
    code = EXIT_TERMINATED
    try:
        with ended_by_the_first_signal():
            conversation = _Conversation(sys.stdin, answers)
            if conversation.job is None:
                return code
            try:
                with started_aisbench(_job(conversation.job)) as aisbench:
                    conversation.say(result=_send(aisbench, conversation))
                code = EXIT_OK
            except PrefixCacheError as error:
                code = error.exit_code
                conversation.say(problems=[asdict(problem) for problem in error.problems])
            signal.pause()
    except (Terminated, KeyboardInterrupt, BrokenPipeError):
        return code
    return code


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # the listening thread may stand in a read
