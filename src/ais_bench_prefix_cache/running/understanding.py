"""The phase ``precheck``: what the server is and does, before a request is sent that counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
from ais_bench_prefix_cache.foundation.errors import Problem, ServiceError
from ais_bench_prefix_cache.running.traffic import FormalTraffic
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.preflight import (
    Preflight,
    check_engines,
    check_images,
    check_inference,
)
from ais_bench_prefix_cache.service.probing import ProbedRanks, RankProbe, probe_ranks
from ais_bench_prefix_cache.service.readings import cache_configs, read_metrics, reading_parser
from ais_bench_prefix_cache.service.scraping import CounterReader


@dataclass(frozen=True)
class UnderstoodServer:
    """A server that was asked and probed.

    ``exact_hits``: it hits whole blocks and nothing else, so that probes and warm-up can be proved to the token.
    ``facts`` is JSON-ready (``runtime.precheck``).
    """

    client: ServiceClient
    reader: CounterReader
    probed: ProbedRanks
    exact_hits: bool
    facts: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def engine(self) -> Literal["vllm", "sglang"]:
        """Whose way to empty a cache this server has."""
        return "vllm" if self.exact_hits else "sglang"

    @property
    def engine_label_map(self) -> dict[str, int]:
        """Label → rank, as probed; empty where one label stands for several ranks (several ports)."""
        labels = self.probed.engine_labels
        return labels if len(labels) == len(self.probed.probes) and "" not in labels else {}


def understand_server(client: ServiceClient, traffic: FormalTraffic, tokenizer: PromptTokenizer) -> UnderstoodServer:
    """Ask everything that can be asked, then probe every rank. Raises ServiceError with all problems of the asking."""
    found = Preflight()
    problems: list[Problem] = []
    workload, exact_hits = traffic.workload, True

    def check(ask: Callable[[], Preflight]) -> None:
        try:
            part = ask()
        except ServiceError as error:
            problems.extend(error.problems)
        else:
            found.notes += part.notes
            found.facts |= part.facts

    def ask_engines() -> Preflight:
        nonlocal workload, exact_hits
        read = read_metrics(client.config, client.scrape())
        # SGLang matches token by token where its page size is 1, so it may hit more than whole blocks.
        exact_hits = read[0].family != "sglang"
        engines = cache_configs(read)
        told = {config.block_size for config in engines.values() if config.block_size is not None}
        if traffic.columns is None and len(told) == 1:
            # The data set has no blocks: probes go by the block size that the server tells.
            workload = replace(workload, block_size=told.pop())
        answer = check_engines(client, workload, engines, read[0].family)
        answer.notes += [note for text in read for note in text.notes]
        return answer

    def ask_router() -> Preflight:
        with client.at_router() as router:
            return check_inference(router, workload, tokenizer.encode)

    check(lambda: check_inference(client, workload, tokenizer.encode))
    if client.config.router_url is not None:
        check(ask_router)
    check(ask_engines)
    if traffic.images_per_request:
        check(lambda: check_images(client, traffic.images_per_request))
    if problems:
        raise ServiceError(problems)
    reader = CounterReader(client, reading_parser(client.config, workload.block_size))
    lengths = [length for length in found.facts.get("max_model_len", {}).values() if length is not None]
    probed = probe_ranks(
        client,
        reader,
        block_size=workload.block_size,
        most_tokens=min(lengths) if lengths else None,
        exact_hits=exact_hits,
    )
    notes = (*found.notes, *probed.notes)
    facts = {**found.facts, "probes": [_probe_facts(probe) for probe in probed.probes], "notes": list(notes)}
    return UnderstoodServer(client, reader, probed, exact_hits, facts, notes)


def _probe_facts(probe: RankProbe) -> dict[str, Any]:
    return {
        "dp_rank": probe.dp_rank,
        "engine": probe.engine.label,
        "prompt_tokens": probe.prompt_tokens,
        "repeat_hit_tokens": probe.repeat_hit_tokens,
    }
