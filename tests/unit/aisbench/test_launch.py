"""What keeps AISBench from starting is said before anything is sent. How it is started: see the e2e tests."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from ais_bench_prefix_cache.aisbench import launch
from ais_bench_prefix_cache.foundation.errors import AISBenchError


def test_an_aisbench_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AISBenchError) as caught:
        launch.check_installed()
    assert str(caught.value) == (
        f"{sys.executable}: AISBench is not installed in this Python\n"
        "    Install it with: pip install 'ais-bench-prefix-cache[aisbench]'"
    )
    assert caught.value.problems[0].code == "AISBENCH_NOT_INSTALLED"


def test_a_path_with_a_space_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = SimpleNamespace(submodule_search_locations=["/home/a b/ais_bench"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: installed)
    with pytest.raises(AISBenchError, match="its own path must not contain a space") as caught:
        launch.check_installed()
    assert (caught.value.problems[0].code, caught.value.problems[0].where) == (
        "AISBENCH_PATH_HAS_SPACE",
        "/home/a b/ais_bench",
    )


def test_a_scratch_directory_must_be_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(AISBenchError, match="at most 50 bytes") as caught, launch._private_directory():
        pass
    assert caught.value.problems[0].code == "AISBENCH_NO_SCRATCH_DIRECTORY"
