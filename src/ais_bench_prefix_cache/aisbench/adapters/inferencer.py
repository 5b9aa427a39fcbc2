"""AISBench's inferencer with lanes, unchanged prompts and a status queue that cannot overflow."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import queue
import time
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp
from ais_bench.benchmark.openicl.icl_inferencer.icl_gen_inferencer import GenInferencer
from ais_bench.benchmark.utils.core.valid_global_consts import get_max_chunk_size, get_request_time_out

from ais_bench_prefix_cache.aisbench.adapters.dataset import formal_requests
from ais_bench_prefix_cache.aisbench.adapters.heartbeat import Heartbeat
from ais_bench_prefix_cache.aisbench.adapters.model import ObservedModel
from ais_bench_prefix_cache.aisbench.adapters.observation import CURRENT_REQUEST, RequestObservation
from ais_bench_prefix_cache.aisbench.adapters.schedule import RequestSchedule
from ais_bench_prefix_cache.aisbench.adapters.supervision import end_with_supervisor
from ais_bench_prefix_cache.aisbench.request_index import NO_PREDECESSOR, NOT_DUE
from ais_bench_prefix_cache.aisbench.sending_settings import SendingSettings
from ais_bench_prefix_cache.foundation.names import NO_RANK

USAGE_SUFFIX = "_usage.jsonl"
_LOOKAHEAD_REQUESTS = 16_384
"""Requests that may wait for their lane at a time; they hold no prompt yet."""
_FINISHED_TASKS_KEPT = 4_096
_SECONDS_BETWEEN_CONTACTS = 1.0
_SECONDS_BETWEEN_LOOKS = 0.02
_ROWS_A_COMMIT = 4_096
"""AISBench itself commits to its database every ``batch_size / 10`` rows, which lags behind at small batch sizes."""
_SECONDS_A_TOKEN = 2.0
"""Slower than any server that is worth measuring."""


class PrefixCacheInferencer(GenInferencer):  # type: ignore[misc]
    """Sends the rows of a :class:`~.dataset.PrefixCacheDataset`.

    AISBench gets a row number for a prompt; the text is read from the file when it is sent, so that no template touches
    it and no memory holds it. Each request has its row's ``max_tokens``; lanes keep their order (:mod:`.schedule`); one
    usage row a request is appended to ``<dataset abbr>_usage.jsonl`` beside AISBench's results.
    """

    def __init__(
        self,
        model_cfg: Any,
        *,
        path: str,
        prompt_key: str = "question",
        max_tokens_key: str = "max_tokens",
        mode: str = "infer",
        **settings: Any,
    ) -> None:
        """``path`` is the data set's file; the keys are where its rows have what the model gets, and for how long."""
        if mode == "pressure":
            raise ValueError("--pressure repeats and drops requests: their hit rate is not the planned one")
        self._rows_path = Path(path)
        self._rows: BinaryIO | None = None
        self._prompt_key = prompt_key
        self._requests = formal_requests(path, max_tokens_key).records
        self._usage: io.FileIO | None = None
        self._schedule: RequestSchedule | None = None
        self._launched = launched = SendingSettings.from_environment()
        self._heartbeat = Heartbeat(None if launched is None else Path(launched.heartbeat))
        self._request_seconds = None if launched is None else launched.request_seconds
        self._begin = 0.0
        self._first_sent = math.inf
        super().__init__(model_cfg, mode=mode, **{**settings, "save_every": _ROWS_A_COMMIT})

    @property
    def status_counter(self) -> Any:
        return self._status_counter

    @status_counter.setter
    def status_counter(self, counter: Any) -> None:
        # AISBench bounds this queue to 5 x batch_size events and never waits: a busy moment kills the worker.
        if counter.status_queue is not None:
            counter.status_queue = _CountedAtOnce(counter)
        self._status_counter = counter

    def get_data_list(self, retriever: Any) -> list[dict[str, Any]]:
        """What AISBench keeps of each request; the rest is in the index."""
        self._abbr: str = retriever.dataset.abbr
        return [{"data_abbr": self._abbr, "index": index} for index in range(len(self._requests))]

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

    def _fill_janus_queue(self, *_: Any) -> None:
        """Nothing: a request is a number, which no other thread needs to hand over."""

    _producer_thread_target = _fill_janus_queue

    async def _worker_loop(self, token_bucket: Any, async_queue: Any) -> None:
        """Send everything.

        Unlike AISBench's own loop, which takes a slot before it calls :meth:`do_request`, a request takes its slot
        after its lane's turn has come. AISBench's pause of 5 ms before each request is left out: slots pace.
        """
        self._look_after_supervisor()
        self._schedule = RequestSchedule(self.batch_size)
        lookahead = asyncio.Semaphore(max(_LOOKAHEAD_REQUESTS, 2 * self.batch_size))
        tasks: list[asyncio.Task[None]] = []
        watch = asyncio.create_task(self._keep_in_touch())
        self._begin = await self._told_to_go()
        processor_seconds = time.process_time()
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.batch_size + 1),
            timeout=aiohttp.ClientTimeout(total=get_request_time_out()),
            max_line_size=get_max_chunk_size(),
        ) as session:
            try:
                for index in range(len(self._requests)):
                    while token_bucket and not await asyncio.to_thread(token_bucket.acquire, timeout=1):
                        pass
                    await self._wait_until_due(index)
                    await lookahead.acquire()
                    data = {"data_abbr": self._abbr, "index": index}
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
                if self._usage is not None:
                    self._usage.close()
                self._write_account(time.process_time() - processor_seconds)

    async def _told_to_go(self) -> float:
        """Say that everything is ready, and wait for the moment to begin, which is one for all senders."""
        if self._launched is None:
            return time.perf_counter()
        self._heartbeat.ready()
        go = Path(self._launched.go)
        while not go.exists():
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        begin = float(go.read_text(encoding="ascii"))
        await asyncio.sleep(max(0.0, begin - time.perf_counter()))
        return begin

    def _write_account(self, processor_seconds: float) -> None:
        if self._launched is not None and self._first_sent != math.inf:
            account = {
                "requests": len(self._requests),
                "batch_size": self.batch_size,
                "first_sent_ms": round(1000 * (self._first_sent - self._begin), 3),
                "seconds": round(time.perf_counter() - self._begin, 3),
                "processor_seconds": round(processor_seconds, 3),
            }
            Path(self._launched.account).write_text(json.dumps(account), encoding="ascii")

    async def _wait_until_due(self, index: int) -> None:
        due = int(self._requests[index]["due_us"])
        ahead = self._begin + due / 1e6 - time.perf_counter()
        if due != NOT_DUE and ahead > 0:
            await asyncio.sleep(ahead)

    async def _keep_in_touch(self) -> None:
        """Stop with the launching program, and tell it what a burst of answers left untold."""
        while True:
            self._look_after_supervisor()
            self._heartbeat.flush()
            await asyncio.sleep(_SECONDS_BETWEEN_CONTACTS)

    def _look_after_supervisor(self) -> None:
        if self._launched is not None:
            end_with_supervisor(Path(self._launched.supervisor))

    async def do_request(self, data: dict[str, Any], token_bucket: Any, session: Any) -> None:
        request = self._requests[data["index"]]
        row, rank = int(request["row"]), int(request["dp_rank"])
        predecessor, continues = int(request["predecessor"]), int(request["continues"])
        max_tokens = int(request["max_tokens"])
        schedule = self._schedule
        observation = RequestObservation(
            sequence_index=row,
            dp_rank=None if rank == NO_RANK else rank,
            max_tokens=max_tokens,
            time_limit=None if self._request_seconds is None else self._request_seconds + _SECONDS_A_TOKEN * max_tokens,
            on_first_token=lambda: None if schedule is None else schedule.pass_lane_on(row),
            on_activity=self._heartbeat.activity,
        )
        CURRENT_REQUEST.set(observation)
        if schedule is None:  # AISBench's own warm-up
            await super().do_request(self._for_aisbench(data, observation), token_bucket, session)
            return
        async with schedule.turn(
            row,
            None if predecessor == NO_PREDECESSOR else predecessor,
            continues=None if continues == NO_PREDECESSOR else continues,
            pause=int(request["think_ms"]) / 1000,
        ) as waits:
            observation.lane_wait, observation.slot_wait = waits.lane, waits.slot
            await super().do_request(self._for_aisbench(data, observation), token_bucket, session)
            self._answered(observation)
        observation.prompt = None
        self._heartbeat.request_finished()
        if observation.sent is not None:  # else the model is not ours and has seen nothing
            self._first_sent = min(self._first_sent, observation.sent)
            due = int(request["due_us"])
            moment = None if due == NOT_DUE else self._begin + due / 1e6
            self._write_usage(data["data_abbr"], observation.to_row(due=moment))

    def _for_aisbench(self, data: dict[str, Any], observation: RequestObservation) -> dict[str, Any]:
        """What AISBench's own inferencer wants; our model takes the prompt from the observation."""
        if self._rows is None:
            self._rows = self._rows_path.open("rb")
        request = self._requests[data["index"]]
        line = os.pread(self._rows.fileno(), int(request["size"]), int(request["offset"]))
        observation.prompt = self._prompt(json.loads(line))
        ours = isinstance(self.model, ObservedModel)
        return {
            **data,
            "index": observation.sequence_index,  # of all requests, whichever of several senders has it
            "max_out_len": observation.max_tokens,
            "prompt": f"row {observation.sequence_index}" if ours else observation.prompt,
        }

    def _prompt(self, row: dict[str, Any]) -> Any:
        """What the model gets of a row of the data set."""
        return row[self._prompt_key]

    def _answered(self, observation: RequestObservation) -> None:
        """A request is over, well or not; those that wait for its end have not gone on yet."""

    def _write_usage(self, data_abbr: str, row: dict[str, Any]) -> None:
        if self._usage is None:
            path = Path(self.get_output_dir()) / f"{data_abbr}{USAGE_SUFFIX}"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._usage = path.open("ab", buffering=0)
        # A line is one write to the end of the file, so that several senders can share it.
        self._usage.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


class _CountedAtOnce:
    """In place of a status counter's queue: what would be put into it is counted, so that no thread must listen."""

    def __init__(self, counter: Any) -> None:
        self._counter = counter

    def put_nowait(self, event: str) -> None:
        setattr(self._counter, event, getattr(self._counter, event) + 1)

    def get(self, timeout: float) -> None:
        time.sleep(timeout)
        raise queue.Empty

    def get_nowait(self) -> None:
        raise queue.Empty


def _unfinished(tasks: list[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    """The tasks that still run; one that failed raises here: no request may be lost silently."""
    for task in tasks:
        if task.done():
            task.result()
    return [task for task in tasks if not task.done()]
