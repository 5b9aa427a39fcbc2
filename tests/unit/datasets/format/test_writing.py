"""Files come into being together or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from ais_bench_prefix_cache.datasets.format.writing import FileSet, claimed, update_analysis, write_document
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Terminated


def test_records_say_what_lies_on_the_disk(tmp_path: Path) -> None:
    with FileSet(replace=False) as files:
        growing = files.open(tmp_path / "a.jsonl")
        growing.write(b"one\n")
        growing.write("zwei €\n".encode())
        record = growing.finish()
        assert not (tmp_path / "a.jsonl").exists()
        files.commit()
    content = (tmp_path / "a.jsonl").read_bytes()
    assert (record.rows, record.bytes, record.sha256) == (2, len(content), hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Terminated, SystemExit])
def test_a_failure_leaves_nothing_new_and_the_old_untouched(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "old").write_bytes(b"old")
    with pytest.raises(error), FileSet(replace=True) as files:
        files.open(tmp_path / "new").write(b"half")
        files.open(tmp_path / "old").write(b"half")
        raise error
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old": b"old"}


def test_leaving_without_a_commit_leaves_nothing(tmp_path: Path) -> None:
    with FileSet(replace=False) as files:
        files.open(tmp_path / "new").write(b"whole")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_only_replaced_on_request(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(ArtifactError) as caught, FileSet(replace=False) as files:
        files.open(tmp_path / "a")
    assert str(caught.value) == f"{tmp_path / 'a'}: the file exists already\n    Allow it with --overwrite."
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_rename_that_fails_takes_the_others_back(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "occupied").touch()
    with pytest.raises(ArtifactError) as caught, FileSet(replace=True) as files:
        files.open(tmp_path / "a").write(b"a")
        files.open(tmp_path / "b").write(b"b")
        files.commit()
    assert caught.value.problems[0].code == "CANNOT_WRITE"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_full_disk_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(ArtifactError) as caught:
        write_document(tmp_path / "a.json", {"x": 1})
    assert str(caught.value) == (
        f"{tmp_path / 'a.json'}: the disk is full\n    Free some space and repeat the command."
    )
    assert list(tmp_path.iterdir()) == []


def test_a_write_to_a_really_full_device_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", lambda *_, open_file=os.open: open_file("/dev/full", os.O_WRONLY))
    with pytest.raises(ArtifactError) as caught, FileSet(replace=False) as files:
        growing = files.open(tmp_path / "a.jsonl")
        growing.write(b"x" * (3 << 20))
        files.commit()
    assert caught.value.problems[0].code == "DISK_FULL"
    assert not (tmp_path / "a.jsonl").exists()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".a.json.partial").symlink_to(tmp_path / "precious")
    with pytest.raises(ArtifactError) as caught:
        write_document(tmp_path / "a.json", {"x": 1})
    assert caught.value.problems[0].code == "CANNOT_WRITE"
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_claim_clears_what_a_killed_command_left(tmp_path: Path) -> None:
    for name in (".a.jsonl.partial", "a.jsonl", ".hidden"):
        (tmp_path / name).write_text("left")
    with claimed(tmp_path) as mine:
        assert mine
        assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "a.jsonl"]
        (tmp_path / ".b.jsonl.partial").write_text("at work")
        with claimed(tmp_path) as second:
            assert not second
        assert (tmp_path / ".b.jsonl.partial").exists()


def test_signals_wait_until_a_commit_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM after the first rename: the handler runs only when all files have their names."""
    names = ("a", "b", "c")
    seen: list[list[bool]] = []

    def handler(_number: int, _frame: object) -> None:
        seen.append([(tmp_path / name).exists() for name in names])

    replace = Path.replace

    def replace_and_signal(self: Path, target: Path) -> Path:
        result = replace(self, target)
        os.kill(os.getpid(), signal.SIGTERM)
        return result

    previous = signal.signal(signal.SIGTERM, handler)
    monkeypatch.setattr(Path, "replace", replace_and_signal)
    try:
        with FileSet(replace=False) as files:
            for name in names:
                files.open(tmp_path / name).write(b"x")
            files.commit()
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert seen == [[True, True, True]]


def test_signals_wait_even_where_other_threads_could_take_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        test_signals_wait_until_a_commit_is_complete(tmp_path, monkeypatch)
    finally:
        done.set()
        thread.join()


def test_an_analysis_is_updated_with_a_new_digest(tmp_path: Path) -> None:
    path = tmp_path / "x.analysis.json"
    first = update_analysis(path, {"status": "prepared"})
    second = update_analysis(path, {**first, "status": "complete", "actual": {"by_dp": {}}})
    assert json.loads(path.read_text()) == second
    assert list(second) == ["status", "actual", "content_sha256"]
    expected = hashlib.sha256(b'{"actual":{"by_dp":{}},"status":"complete"}').hexdigest()
    assert second["content_sha256"] == expected


def test_only_one_process_claims_a_directory(tmp_path: Path) -> None:
    with claimed(tmp_path) as first, claimed(tmp_path) as second:
        assert (first, second) == (True, False)
    with claimed(tmp_path) as again:
        assert again
