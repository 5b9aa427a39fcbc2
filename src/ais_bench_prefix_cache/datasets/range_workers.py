"""Ranges of a data set made by several processes, or by Ray, and put together in order: the same as made by one.

Each worker is a new process (never a fork: once a tokenizer has encoded, a fork of it hangs) that is sent what ranges
are made from, and then one range after another. A worker ends with the process that started it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Protocol, TypeVar

from ais_bench_prefix_cache.foundation.ray_cluster import ray_cluster

_Part_contra = TypeVar("_Part_contra", contravariant=True)
_Made_co = TypeVar("_Made_co", covariant=True)
_Begun = TypeVar("_Begun")

TOKENS_IN_A_RANGE = 1 << 20
RANGES_AHEAD = 2
"""Ranges that each worker may be ahead of what is used: memory is bounded by them."""


class RangeMaker(Protocol[_Part_contra, _Made_co]):
    """Makes any range, none needing the ones before it. It can be sent to another process."""

    def begin(self) -> Callable[[_Part_contra], _Made_co]:
        """What makes one range after another in this process, and remembers what they share."""


def requests_in_a_range(tokens: int, requests: int) -> int:
    """How many requests of a data set with so many tokens one range has."""
    return max(1, TOKENS_IN_A_RANGE * requests // max(tokens, 1))


def made_in_order(
    maker: RangeMaker[_Part_contra, _Made_co],
    ranges: Iterator[_Part_contra],
    *,
    workers: int = 1,
    ray: str | None = None,
) -> Iterator[_Made_co]:
    """What ``maker`` makes of each range, by so many processes, or by tasks on all cores of the cluster at ``ray``.

    Raises:
        ScenarioError: Ray or its cluster cannot be used.
        PrefixCacheError: whatever the maker raises.
    """
    if ray is not None:
        return _by_ray(pickle.dumps(maker), ranges, ray)
    if workers > 1:
        return _by_processes(pickle.dumps(maker), ranges, workers)
    return map(maker.begin(), ranges)


def _by_processes(maker: bytes, ranges: Iterator[_Part_contra], workers: int) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(maker,))
    try:
        futures = (executor.submit(_range, part) for part in ranges)
        yield from (future.result() for future in _some_ahead(futures, workers))
    finally:
        executor.shutdown(cancel_futures=True)


def _by_ray(maker: bytes, ranges: Iterator[_Part_contra], address: str) -> Iterator[Any]:
    with ray_cluster(address) as ray:
        cores = int(ray.cluster_resources().get("CPU", 1))
        sent = ray.put(maker)
        task = ray.remote(num_cpus=1)(_range_of_a_task)
        for made in _some_ahead((task.remote(sent, part) for part in ranges), cores):
            try:
                yield ray.get(made)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None


def _some_ahead(begun: Iterator[_Begun], workers: int) -> Iterator[_Begun]:
    """What is begun, in order, with some more always begun: so many for each worker."""
    waiting: deque[_Begun] = deque()
    for each in begun:
        waiting.append(each)
        if len(waiting) > RANGES_AHEAD * workers:
            yield waiting.popleft()
    yield from waiting


_sent: list[tuple[bytes, Callable[[Any], Any]]] = []
"""In a worker: what it was sent, and what makes ranges of it."""


def _begin(maker: bytes) -> None:
    """Make this process a worker."""
    # One Ctrl-C reaches all processes of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _receive(maker)


def _receive(maker: bytes) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are the workers'
    made: RangeMaker[Any, Any] = pickle.loads(maker)
    _sent[:] = [(maker, made.begin())]


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _range_of_a_task(maker: bytes, part: Any) -> Any:
    """In a worker of Ray, which does one task after another, perhaps of several data sets."""
    if not _sent or _sent[0][0] != maker:
        _receive(maker)
    return _range(part)


def _range(part: Any) -> Any:
    ((_, make),) = _sent
    return make(part)
