"""What no rule foresaw: an exit code and a sentence, never a bare traceback."""

from __future__ import annotations

from typing import Any

import pytest

from ais_bench_prefix_cache import cli
from ais_bench_prefix_cache.commands import schema_command


def ends_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def execute(_: Any) -> int:
        raise error

    monkeypatch.setattr(schema_command, "execute", execute)
    return cli.main(["schema"])


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(MemoryError("Unable to allocate 16.0 GiB"), monkeypatch) == 2
    assert capsys.readouterr().err.startswith("error [NOT_ENOUGH_MEMORY] this machine has less memory")


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_fault_keeps_its_exit_code_with_and_without_a_traceback(
    debug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AISBENCH_PREFIX_CACHE_DEBUG", debug)
    assert ends_with(KeyError("oops"), monkeypatch) == 70
    errors = capsys.readouterr().err
    assert ("Traceback" in errors) == bool(debug)
    assert "error [INTERNAL] KeyError: 'oops'" in errors
