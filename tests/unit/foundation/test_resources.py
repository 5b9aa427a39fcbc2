"""What is free is what the kernel and a container's limit say; what needs more is refused with both figures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ais_bench_prefix_cache.foundation import resources
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ScenarioError


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GB free, in a container with 3 GB of which 1 GB is used."""
    (tmp_path / "meminfo").write_text("MemTotal:  16000000 kB\nMemAvailable:  8000000 kB\n")
    (tmp_path / "memory.max").write_text("3000000000\n")
    (tmp_path / "memory.current").write_text("1000000000\n")
    monkeypatch.setattr(resources, "_PROC", tmp_path)
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    return tmp_path


def test_the_containers_limit_counts(machine: Path) -> None:
    resources.require_memory(2_000_000_000, "x", "a plan", "Less.")
    with pytest.raises(ScenarioError) as caught:
        resources.require_memory(2_000_000_001, "x.json: requests.count", "a plan", "Ask for less.")
    (problem,) = caught.value.problems
    assert problem.code is Code.NOT_ENOUGH_MEMORY
    assert str(problem) == (
        "x.json: requests.count: a plan takes about 2.0 GB of memory, and 2.0 GB are free\n    Ask for less."
    )


def test_without_a_limit_the_machine_counts(machine: Path) -> None:
    (machine / "memory.max").write_text("max\n")
    resources.require_memory(8_192_000_000, "x", "a plan", "Less.")
    with pytest.raises(ScenarioError):
        resources.require_memory(8_192_000_001, "x", "a plan", "Less.")


def test_where_nothing_tells_nothing_is_refused(machine: Path) -> None:
    for path in machine.iterdir():
        path.unlink()
    resources.require_memory(10**18, "x", "a plan", "Less.")


def test_the_disk_of_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    resources.require_disk(directory, 1, "x", "a data set", "Less.")
    with pytest.raises(ScenarioError, match=r"a data set takes at least .* are free"):
        resources.require_disk(directory, 2 * shutil.disk_usage(tmp_path).total, "x", "a data set", "Less.")
    assert not directory.exists()
