"""AISBench's inferencer with lanes, unchanged prompts and a status queue that cannot overflow."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import time
from pathlib import Path
from typing import IO, Any

import aiohttp
from ais_bench.benchmark.openicl.icl_inferencer.icl_base_api_inferencer import BLOCK_INTERVAL
from ais_bench.benchmark.openicl.icl_inferencer.icl_gen_inferencer import GenInferencer
from ais_bench.benchmark.utils.core.valid_global_consts import get_max_chunk_size, get_request_time_out

from ais_bench_prefix_cache.aisbench.adapters.dataset import NO_PREDECESSOR
from ais_bench_prefix_cache.aisbench.adapters.heartbeat import Heartbeat
from ais_bench_prefix_cache.aisbench.adapters.observation import CURRENT_REQUEST, RequestObservation
from ais_bench_prefix_cache.aisbench.adapters.schedule import RequestSchedule
from ais_bench_prefix_cache.aisbench.adapters.supervision import end_with_supervisor
from ais_bench_prefix_cache.foundation.names import NO_RANK

USAGE_SUFFIX = "_usage.jsonl"
_LOOKAHEAD_REQUESTS = 16_384
"""Requests that may wait for their lane at a time; they hold no prompt yet."""
_FINISHED_TASKS_KEPT = 4_096
_SECONDS_BETWEEN_CONTACTS = 1.0


class PrefixCacheInferencer(GenInferencer):  # type: ignore[misc]
    """Sends the rows of a :class:`~.dataset.PrefixCacheDataset`.

    Prompts are read from the file when they are sent, so that no template touches them; each request has its row's
    ``max_tokens``; lanes keep their order (:mod:`.schedule`); one usage row a request is appended to
    ``<dataset abbr>_usage.jsonl`` beside AISBench's results.
    """

    def __init__(
        self, model_cfg: Any, *, path: str, prompt_key: str = "question", mode: str = "infer", **settings: Any
    ) -> None:
        """``path`` is the data set's file, ``prompt_key`` where its rows have what the model gets."""
        if mode == "pressure":
            raise ValueError("--pressure repeats and drops requests: their hit rate is not the planned one")
        self._full_path = Path(path)
        self._prompt_key = prompt_key
        self._data: IO[bytes] | None = None
        self._usage: IO[str] | None = None
        self._schedule: RequestSchedule | None = None
        self._heartbeat = Heartbeat.from_environment()
        self._first_sent: float | None = None
        super().__init__(model_cfg, mode=mode, **settings)

    @property
    def status_counter(self) -> Any:
        return self._status_counter

    @status_counter.setter
    def status_counter(self, counter: Any) -> None:
        # AISBench bounds this queue to 5 x batch_size events and never waits: a busy moment kills the worker.
        if counter.status_queue is not None:
            counter.status_queue = queue.SimpleQueue()
        self._status_counter = counter

    def get_data_list(self, retriever: Any) -> list[dict[str, Any]]:
        rows = retriever.dataset.test
        columns = (
            rows["max_out_len"],
            rows["answer"],
            rows["dp_rank"],
            rows["lane_predecessor"],
            rows["line_offset"],
            rows["line_bytes"],
        )
        return [
            {
                "data_abbr": retriever.dataset.abbr,
                "index": index,
                "max_out_len": max_out_len,
                "gold": answer,
                "dp_rank": None if rank == NO_RANK else rank,
                "predecessor": None if predecessor == NO_PREDECESSOR else predecessor,
                "line": (offset, size),
            }
            for index, (max_out_len, answer, rank, predecessor, offset, size) in enumerate(zip(*columns, strict=True))
        ]

    def inference_with_shm(
        self, dataset_shm_name: str, message_shm_name: str, indexes: dict[int, Any], *args: Any, **kwargs: Any
    ) -> Any:
        requests = sum(entry is not None for entry in indexes.values())
        if self.total_data_count < requests:
            raise RuntimeError(
                f"this worker is to send {self.total_data_count} of {requests} requests, but only one worker can keep "
                "the lanes' order: start AISBench with --debug"
            )
        return super().inference_with_shm(dataset_shm_name, message_shm_name, indexes, *args, **kwargs)

    async def _worker_loop(self, token_bucket: Any, async_queue: Any) -> None:
        """Send everything in ``async_queue``.

        Unlike AISBench's own loop, which takes a slot before it calls :meth:`do_request`, a request takes its slot
        after its lane's turn has come. The pause between two requests is AISBench's.
        """
        end_with_supervisor()
        self._schedule = RequestSchedule(self.batch_size)
        lookahead = asyncio.Semaphore(max(_LOOKAHEAD_REQUESTS, 2 * self.batch_size))
        stop = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []
        watch = asyncio.create_task(self._keep_in_touch())
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.batch_size + 1),
            timeout=aiohttp.ClientTimeout(total=get_request_time_out()),
            max_line_size=get_max_chunk_size(),
            trust_env=True,
        ) as session:
            try:
                while True:
                    if token_bucket and not await asyncio.to_thread(token_bucket.acquire, timeout=1):
                        continue
                    data = await self.wait_get_data(async_queue, stop)
                    if data is None:
                        break
                    if not token_bucket:
                        await asyncio.sleep(BLOCK_INTERVAL)
                    await lookahead.acquire()
                    task = asyncio.create_task(self.do_request(data, token_bucket, session))
                    task.add_done_callback(lambda _: lookahead.release())
                    tasks.append(task)
                    if len(tasks) >= _FINISHED_TASKS_KEPT:
                        tasks = _unfinished(tasks)
                await asyncio.gather(*tasks)
            finally:
                watch.cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._heartbeat.flush()

    async def _keep_in_touch(self) -> None:
        """Stop with the launching program, and tell it what a burst of answers left untold."""
        while True:
            end_with_supervisor()
            self._heartbeat.flush()
            await asyncio.sleep(_SECONDS_BETWEEN_CONTACTS)

    async def do_request(self, data: dict[str, Any], token_bucket: Any, session: Any) -> None:
        if self._schedule is None:  # AISBench's own warm-up
            await super().do_request(self._with_prompt(data), token_bucket, session)
            return
        index, schedule = data["index"], self._schedule
        async with schedule.turn(index, data["predecessor"]):
            if self._first_sent is None:
                self._first_sent = time.perf_counter()
            observation = RequestObservation(
                sequence_index=index,
                dp_rank=data["dp_rank"],
                on_first_token=lambda: schedule.pass_lane_on(index),
                on_activity=self._heartbeat.activity,
            )
            CURRENT_REQUEST.set(observation)
            await super().do_request(self._with_prompt(data), token_bucket, session)
        self._heartbeat.request_finished()
        if observation.sent is not None:  # else the model is not ours and has seen nothing
            self._write_usage(data["data_abbr"], observation.to_row(time_origin=self._first_sent))

    def _with_prompt(self, data: dict[str, Any]) -> dict[str, Any]:
        """What AISBench's own inferencer wants, with the prompt exactly as the file has it."""
        if self._data is None:
            self._data = self._full_path.open("rb")
        offset, size = data["line"]
        line = os.pread(self._data.fileno(), size, offset)
        return {
            "data_abbr": data["data_abbr"],
            "index": data["index"],
            "max_out_len": data["max_out_len"],
            "gold": data["gold"],
            "prompt": json.loads(line)[self._prompt_key],
        }

    def _write_usage(self, data_abbr: str, row: dict[str, Any]) -> None:
        if self._usage is None:
            path = Path(self.get_output_dir()) / f"{data_abbr}{USAGE_SUFFIX}"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._usage = path.open("w", encoding="utf-8", buffering=1)
        self._usage.write(json.dumps(row, ensure_ascii=False) + "\n")


def _unfinished(tasks: list[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    """The tasks that still run; one that failed raises here: no request may be lost silently."""
    for task in tasks:
        if task.done():
            task.result()
    return [task for task in tasks if not task.done()]
