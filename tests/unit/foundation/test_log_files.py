"""The log file of a command."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ais_bench_prefix_cache.foundation.log_files import also_logged, run_log


def test_a_full_disk_is_an_error_and_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError) as caught, run_log(Path("/dev/full")) as log:
        log.info("verify: started")
    assert caught.value.errno == errno.ENOSPC
    assert capfd.readouterr() == ("", "")


def test_an_error_leaves_one_line_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log" / "run.log"
    with pytest.raises(ValueError, match="broken"), run_log(path) as log:
        log.info("verify: started")
        raise ValueError("broken")
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("INFO ais_bench_prefix_cache: verify: started")
    assert lines[1].endswith("ERROR ais_bench_prefix_cache: stopped by ValueError: broken")


def test_a_second_file_hears_the_same_while_its_block_lasts(tmp_path: Path) -> None:
    command, run = tmp_path / "command.log", tmp_path / "run.log"
    with run_log(command) as log:
        with also_logged(run):
            log.info("sent")
        log.info("printed")
    assert [line.rpartition(": ")[2] for line in command.read_text().splitlines()] == ["sent", "printed"]
    assert [line.rpartition(": ")[2] for line in run.read_text().splitlines()] == ["sent"]


def test_nothing_is_logged_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "run.log").symlink_to(tmp_path / "precious")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "log")
    for path in (tmp_path / "log" / "run.log", tmp_path / "elsewhere" / "other.log"):
        with pytest.raises(OSError), run_log(path) as log:
            log.info("verify: started")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "log" / "other.log").exists()
