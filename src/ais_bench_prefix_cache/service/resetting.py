"""Emptying the prefix caches, and the proof that they are empty on every rank.

The status of a reset proves nothing: vLLM before 0.26 answers 200 with an empty body whether it worked or not, later
ones 200 with ``{"success": false}`` while a request runs, and with several engines an idle one may have been reset all
the same. The proof is a probe that was cached before and now hits nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ServiceError
from ais_bench_prefix_cache.service.client import ResetReply, ServiceClient
from ais_bench_prefix_cache.service.probing import RankProbe, repeat_probe
from ais_bench_prefix_cache.service.scraping import CounterReader

_PAUSE_SECONDS = 0.5
_VLLM_PATH = "/reset_prefix_cache"
_SGLANG_PATH = "/flush_cache"


@dataclass(frozen=True)
class ResetOutcome:
    """What the server said and what the probes saw.

    ``accepted``: it said, or did not deny, that the reset worked. ``attempts`` is 0 where nobody asked it.
    ``hits_after`` is, per rank, what a probe that had been cached hits after the reset; None where that was not tried.
    ``warning`` is set where emptiness is only assumed.
    """

    accepted: bool
    attempts: int
    hits_after: Mapping[int, int] | None = None
    warning: dict[str, Any] | None = None

    @property
    def proven(self) -> bool:
        """Every rank was seen to be empty."""
        return self.hits_after is not None and not any(self.hits_after.values())


def empty_the_caches(
    client: ServiceClient,
    reader: CounterReader,
    probes: tuple[RankProbe, ...],
    *,
    engine: str = "vllm",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ResetOutcome:
    """Reset all caches and prove it with ``probes``, which must have been cached.

    Without a reset URL, or where resetting or its proof fails, the run goes on only if
    ``service.assume_empty_cache`` is true; otherwise ServiceError.
    """
    reset = _Reset(client, engine, clock, sleep)
    hits_after: dict[int, int] | None = None
    problems: list[Problem] = []
    try:
        reset.send()
    except ServiceError as error:
        if not client.config.assume_empty_cache:
            raise
        problems.extend(error.problems)
    if reset.attempts:
        try:
            # Also after a refusal: the idle ranks may have been emptied all the same.
            hits_after = _hits_of_repeated_probes(client, reader, probes)
            if reset.accepted:
                _judge(client, probes, hits_after)
        except ServiceError as error:
            if not client.config.assume_empty_cache:
                raise
            problems.extend(error.problems)
    warning = None
    if problems:
        reason = "; ".join(f"{problem.where}: {problem.message}" for problem in problems)
        warning = {
            "code": Code.ASSUME_EMPTY_CACHE.value,
            "message": f"the caches are assumed to be empty, as service.assume_empty_cache says ({reason})",
            "reason": reason,
        }
    return ResetOutcome(reset.accepted, reset.attempts, hits_after, warning)


@dataclass
class _Reset:
    client: ServiceClient
    engine: str
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    accepted: bool = False
    attempts: int = 0

    def send(self) -> None:
        """POST to every reset URL, again and again while the server is busy, within ``service.timeout_seconds``."""
        config = self.client.config
        if not config.reset_urls:
            raise ServiceError.of(
                Code.NO_RESET_URL,
                "service.reset_url",
                "is empty, so the caches cannot be emptied before the run",
                hint="Give the reset URL (vLLM: /reset_prefix_cache with VLLM_SERVER_DEV_MODE=1; SGLang: "
                "/flush_cache), or restart the server and set service.assume_empty_cache to true.",
            )
        deadline = self.clock() + config.timeout_seconds
        for configured in config.reset_urls:
            sglang = self.engine == "sglang" and configured.endswith(_VLLM_PATH)
            url = configured.removesuffix(_VLLM_PATH) + _SGLANG_PATH if sglang else configured
            while True:
                self.attempts += 1
                reply = self.client.reset(url)
                if reply.status == 200 and reply.success is not False:
                    break
                if not _busy(reply) or self.clock() >= deadline:
                    raise _refused(reply, self.attempts)
                self.sleep(_PAUSE_SECONDS)
        self.accepted = True


def _busy(reply: ResetReply) -> bool:
    """Running requests hold blocks: vLLM says success false, SGLang answers 400; a gateway may say 429 or 503."""
    return (reply.status == 200 and reply.success is False) or reply.status in (400, 429, 503)


def _refused(reply: ResetReply, attempts: int) -> ServiceError:
    if reply.status in (404, 405):
        return ServiceError.of(
            Code.RESET_NOT_OFFERED,
            reply.url,
            f"answered {reply.status}: the server does not offer a reset there",
            hint="Start vLLM with VLLM_SERVER_DEV_MODE=1 (SGLang: /flush_cache), or restart the server and set "
            "service.assume_empty_cache to true.",
        )
    if _busy(reply):
        return ServiceError.of(
            Code.RESET_REFUSED,
            reply.url,
            f"refused {attempts} times (status {reply.status}, {reply.text}): requests are running there",
            hint="Stop other clients of this server and run again.",
        )
    return ServiceError.of(
        Code.RESET_FAILED, reply.url, f"answered {reply.status}: {reply.text}", hint="Look at the server's log."
    )


def _hits_of_repeated_probes(
    client: ServiceClient, reader: CounterReader, probes: tuple[RankProbe, ...]
) -> dict[int, int]:
    before = reader.read()
    hits_after = {}
    for probe in probes:
        before, hits_after[probe.dp_rank] = repeat_probe(client, reader, before, probe)
    return hits_after


def _judge(client: ServiceClient, probes: tuple[RankProbe, ...], hits_after: Mapping[int, int]) -> None:
    still_cached = [probe for probe in probes if hits_after[probe.dp_rank]]
    if not still_cached:
        return
    emptied = [dp_rank for dp_rank, hits in hits_after.items() if not hits]
    others = f"; emptied were only the ranks {emptied}" if emptied else ""
    raise ServiceError(
        Problem(
            Code.RESET_INEFFECTIVE,
            ", ".join(client.config.reset_urls),
            f"the reset was answered, but rank {probe.dp_rank} still hits {hits_after[probe.dp_rank]} of "
            f"{probe.prompt_tokens} tokens of an earlier probe{others}",
            hint="Does every engine get the reset? An external KV store keeps its blocks unless it is reset, too "
            "(vLLM: reset_external=true).",
        )
        for probe in still_cached
    )
