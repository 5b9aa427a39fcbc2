"""What a running server tells of itself, before anyone has described it: model, block size, engines."""

from __future__ import annotations

from dataclasses import dataclass

from ais_bench_prefix_cache.counters.names import ServerFamily
from ais_bench_prefix_cache.counters.ranks import read_texts
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.scenario.effective import service_with
from ais_bench_prefix_cache.scenario.model import ServiceConfig
from ais_bench_prefix_cache.service.client import ServiceClient, base_url


@dataclass(frozen=True)
class DiscoveredServer:
    """``url`` is the server's root. ``block_size`` and ``max_model_len`` are tokens; None is what it does not tell."""

    url: str
    model: str
    max_model_len: int | None
    family: ServerFamily
    engines: int
    block_size: int | None
    other_models: tuple[str, ...] = ()


def server_root(url: str) -> str:
    """``http://host:8000`` of whatever was copied: the root itself, ``…/v1``, or an endpoint."""
    return base_url(url.rstrip("/")).removesuffix("/v1").rstrip("/")


def service_config_of(url: str, api_key: str, timeout_seconds: float) -> ServiceConfig:
    """The service at ``url`` as far as its root tells it."""
    root = server_root(url)
    return service_with(
        inference_url=f"{root}/v1/completions",
        metrics_url=f"{root}/metrics",
        reset_url="",
        model="",
        timeout_seconds=timeout_seconds,
        api_key=api_key,
    )


def discover(client: ServiceClient) -> DiscoveredServer:
    """Ask ``/v1/models`` and ``/metrics``; of several models the first is taken.

    Raises:
        ServiceError: the server does not answer, or serves no model.
        SnapshotError: its metrics are no inference engine's.
    """
    models = client.models()
    if not models:
        raise ServiceError.of(Code.MODEL_NOT_SERVED, f"{client.base_urls[0]}/v1/models", "no model is served")
    # SGLang's ranks are seen where more than one is looked for.
    (text,) = read_texts(client.scrape(), dp_size=2, model=models[0].name, where=client.config.metrics_urls)
    block_sizes = {engine.config.block_size for engine in text.engines if engine.config is not None}
    return DiscoveredServer(
        url=client.base_urls[0],
        model=models[0].name,
        max_model_len=models[0].max_model_len,
        family=text.family,
        engines=len(text.engines),
        block_size=block_sizes.pop() if len(block_sizes) == 1 else None,
        other_models=tuple(model.name for model in models[1:]),
    )
