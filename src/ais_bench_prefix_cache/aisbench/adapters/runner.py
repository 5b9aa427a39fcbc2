"""AISBench's inference task in forks of AISBench: one for each sender.

AISBench's own local runner starts the task as a new program through a shell: everything is imported a second time
(about 7 s of CPU), a path with a space breaks the command, and the task's exit code is thrown away.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from ais_bench.benchmark.registry import TASKS
from ais_bench.benchmark.runners.base import BaseRunner
from ais_bench.benchmark.tasks.base import TaskStateManager
from ais_bench.benchmark.utils.core.abbr import task_abbr_from_cfg

from ais_bench_prefix_cache.aisbench.adapters.supervision import end_with_supervisor
from ais_bench_prefix_cache.aisbench.environment import SENDING_VARIABLE
from ais_bench_prefix_cache.aisbench.merging import merge, read_parts
from ais_bench_prefix_cache.aisbench.sending_settings import SendingSettings, settings_paths

_SECONDS_BETWEEN_LOOKS = 0.1


class ForkingRunner(BaseRunner):  # type: ignore[misc]
    """Runs each task to its end in child processes that inherit all imported modules.

    Each sender that the launching program asked for is a child with requests of its own; all write into one set of
    results, as AISBench's own workers do. When one fails the others are ended: what they sent is of no use any more.
    """

    def __init__(self, task: Any, debug: bool = False, **_: Any) -> None:
        super().__init__(task=task, debug=debug)

    def launch(self, tasks: list[Any]) -> list[tuple[str, int]]:
        return [(task_abbr_from_cfg(task), self._exit_code(task)) for task in tasks]

    def summarize(self, status: list[tuple[str, int]]) -> None:
        failed = [f"{name} (exit code {code})" for name, code in status if code != 0]
        if failed:
            raise RuntimeError(f"the inference task did not end properly: {', '.join(failed)}")

    def _exit_code(self, task: Any) -> int:
        """0, or the exit code of the first sender that failed."""
        context = multiprocessing.get_context("fork")
        senders = [
            context.Process(target=self._run, args=(task, number, path))
            for number, path in enumerate(settings_paths() or [None])
        ]
        for sender in senders:
            sender.start()
        failed = _first_failure(senders)
        for sender in senders:
            if failed:
                sender.terminate()
            sender.join()
        return failed

    def _run(self, config: Any, number: int, settings: str | None) -> None:
        """In the child: what AISBench's task program does when it is started by hand."""
        if settings is not None:
            os.environ[SENDING_VARIABLE] = settings
            batch_size = SendingSettings.load(settings).batch_size
            if batch_size is not None:
                config["models"][0]["batch_size"] = batch_size
        if number:
            # AISBench's own warm-up requests are sent once, whatever the number of senders.
            config["cli_args"]["num_warmups"] = 0
        with tempfile.TemporaryDirectory() as status_directory:
            state = TaskStateManager(status_directory, task_abbr_from_cfg(config), is_debug=True)
            TASKS.build({"cfg": config, "type": self.task_cfg["type"]}).run(state)


def _first_failure(processes: list[ForkProcess]) -> int:
    """Wait until all have ended well or one has not; its exit code."""
    running = list(processes)
    while running:
        wait([process.sentinel for process in running])
        for process in [each for each in running if each.exitcode is not None]:
            running.remove(process)
            if process.exitcode:
                return process.exitcode
    return 0


class SummingRunner(BaseRunner):  # type: ignore[misc]
    """Sends nothing: waits for what the load generators have sent, and puts their records together for AISBench.

    ``parts`` is a file that appears when all of them have finished, ``supervisor`` one that the launching program keeps
    locked.
    """

    def __init__(self, task: Any, parts: str, supervisor: str, debug: bool = False, **_: Any) -> None:
        super().__init__(task=task, debug=debug)
        self._parts = Path(parts)
        self._supervisor = Path(supervisor)

    def launch(self, tasks: list[Any]) -> list[tuple[str, int]]:
        (task,) = tasks
        while not self._parts.exists():
            end_with_supervisor(self._supervisor)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        merge(read_parts(self._parts), Path(task["work_dir"]) / "performances" / task["models"][0]["abbr"])
        return [(task_abbr_from_cfg(task), 0)]

    def summarize(self, status: list[tuple[str, int]]) -> None:
        """Nothing can have failed."""


class NoSummary:
    """In place of AISBench's summary, in a load generator: only the records of all of them can be summed up."""

    def __init__(self, **_: Any) -> None:
        pass

    def summarize(self) -> None:
        """Nothing."""
