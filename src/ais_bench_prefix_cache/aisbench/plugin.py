"""Our classes under their bare names in AISBench's registries, by the entry point ``ais_bench.benchmark_plugins``.

AISBench looks for plugins while it makes its registries: it loads each entry point once a registry, before that one is
there. So no class can be registered by being imported, as AISBench's own are; instead each look registers what the
registries made until then lack. AISBench builds from anything callable, so that our classes, which import much of
AISBench, are imported when one is built and cost an AISBench that does not use them nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

REGISTRY = "ais_bench.benchmark.registry"
CLASSES = {
    "MODELS": ("adapters.model.PrefixCacheCompletionsAPI", "adapters.model.ImageChatAPI"),
    "LOAD_DATASET": ("adapters.dataset.PrefixCacheDataset",),
    "ICL_INFERENCERS": ("adapters.inferencer.PrefixCacheInferencer",),
    "RUNNERS": ("adapters.runner.ForkingRunner",),
}
"""Registry → our classes. That of metric calculators is made last, so that theirs is known by its dotted name only."""


def __getattr__(name: str) -> ModuleType:
    """``registered``, the entry point's object: every look at it registers."""
    if name != "registered":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    register(sys.modules.get(REGISTRY))
    return sys.modules[__name__]


def register(registries: ModuleType | None) -> None:
    """Register our classes with those registries that ``registries``, a module that is being made, has by now."""
    for registry_name, paths in CLASSES.items():
        registry = getattr(registries, registry_name, None)
        for path in paths:
            module, _, class_name = path.rpartition(".")
            if registry is not None and class_name not in registry.module_dict:
                registry.register_module(name=class_name, module=_built_from(module, class_name))


def _built_from(module: str, class_name: str) -> Callable[..., Any]:
    def build(*arguments: Any, **settings: Any) -> Any:
        return getattr(import_module(f"{__package__}.{module}"), class_name)(*arguments, **settings)

    build.__name__ = class_name
    return build
