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
