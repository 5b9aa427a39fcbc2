"""Stands in for SGLang's kernel package, which exists for GPUs only.

SGLang imports names of it while it starts, also where it computes with torch alone. Here every name is a function
that raises when it is called, so nothing can be computed wrongly; and ``convert_weight_packed`` is missing, so that
SGLang does not take the path of CPUs with AMX.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import NoReturn

__version__ = "0.0.0"
_MISSING = {"convert_weight_packed"}


class _Name:
    """Anything imported from the package: has every attribute, can be a key, raises when called."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self.__name__}.{name}")

    def __call__(self, *_arguments: object, **_options: object) -> NoReturn:
        raise NotImplementedError(f"{self.__name__} was called, and this is only a stand-in for it")


class _Module(ModuleType):
    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__") or name in _MISSING:
            raise AttributeError(name)
        return _Name(f"{self.__name__}.{name}")


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below this package."""

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith(f"{__name__}."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


sys.modules[__name__].__class__ = _Module
sys.meta_path.append(_Submodules())
