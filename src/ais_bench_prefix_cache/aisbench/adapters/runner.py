"""AISBench's inference task in a fork of AISBench.

AISBench's own local runner starts the task as a new program through a shell: everything is imported a second time
(about 7 s of CPU), a path with a space breaks the command, and the task's exit code is thrown away.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from typing import Any

from ais_bench.benchmark.registry import TASKS
from ais_bench.benchmark.runners.base import BaseRunner
from ais_bench.benchmark.tasks.base import TaskStateManager
from ais_bench.benchmark.utils.core.abbr import task_abbr_from_cfg


class ForkingRunner(BaseRunner):  # type: ignore[misc]
    """Runs each task to its end in a child process that inherits all imported modules."""

    def __init__(self, task: Any, debug: bool = False, **_: Any) -> None:
        super().__init__(task=task, debug=debug)

    def launch(self, tasks: list[Any]) -> list[tuple[str, int]]:
        outcome = []
        for task in tasks:
            process = multiprocessing.get_context("fork").Process(target=self._run, args=(task,))
            process.start()
            process.join()
            outcome.append((task_abbr_from_cfg(task), int(process.exitcode or 0)))
        return outcome

    def summarize(self, status: list[tuple[str, int]]) -> None:
        failed = [f"{name} (exit code {code})" for name, code in status if code != 0]
        if failed:
            raise RuntimeError(f"the inference task did not end properly: {', '.join(failed)}")

    def _run(self, config: Any) -> None:
        """In the child: what AISBench's task program does when it is started by hand."""
        with tempfile.TemporaryDirectory() as status_directory:
            state = TaskStateManager(status_directory, task_abbr_from_cfg(config), is_debug=True)
            TASKS.build({"cfg": config, "type": self.task_cfg["type"]}).run(state)
