"""A connection to a Ray cluster, on whose machines parts of a command run. Importing this imports no Ray."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.foundation.interruptions import signals_held


@contextmanager
def ray_cluster(address: str) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster at ``address`` (``host:port``, or ``auto``) in the block.

    This process must run on a machine of the cluster. Raises ScenarioError where Ray is not installed or no cluster
    answers.
    """
    # Ray takes SIGTERM for itself, already when it is imported: here it is given back.
    with signals_held():
        try:
            ray = import_module("ray")
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except ImportError:
            raise ScenarioError.of(
                Code.RAY_UNUSABLE,
                "ray",
                "Ray is not installed in this Python",
                hint="Install it with: pip install 'ais-bench-prefix-cache[ray]'",
            ) from None
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ScenarioError.of(
                Code.RAY_UNUSABLE,
                address,
                f"no Ray cluster can be used there: {str(error).splitlines()[0]}",
                hint="Start one with `ray start`, on this machine, too; in a trusted network or with Ray's own "
                "authentication only.",
            ) from None
    try:
        yield ray
    finally:
        with signals_held():
            ray.shutdown()
