"""What a file is that should have been another one: named by its first bytes, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_BYTES = 1024
"""So many bytes of a file are enough to tell."""

_PACKED = {
    b"PK\x03\x04": "a ZIP archive",
    b"\xfd7zXZ\x00": "packed by xz",
    b"BZh": "packed by bzip2",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"7z\xbc\xaf": "a 7z archive",
}

_OF_ANOTHER_KIND = {
    b"\x89PNG\r\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"%PDF-": "a PDF document",
    b"SQLite format 3\x00": "an SQLite database",
    b"ARROW1": "an Arrow file",
}


@dataclass(frozen=True)
class ForeignFile:
    """``what`` follows "is", ``hint`` says what to do."""

    what: str
    hint: str


LFS_POINTER = ForeignFile(
    "a Git LFS pointer, the few lines that stand for a large file",
    "Fetch the file itself, for example with `git lfs pull`.",
)
HTML_PAGE = ForeignFile(
    "an HTML page, not the file that it shows", "Download the file itself: the link to its raw content."
)


def foreign_file(head: bytes) -> ForeignFile | None:
    """What begins with ``head`` (:data:`HEAD_BYTES` or fewer) and cannot be what was asked for, if it is known."""
    if head.startswith(b"version https://git-lfs"):
        return LFS_POINTER
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ForeignFile("UTF-16", "Save it as UTF-8.")
    for magic, what in _PACKED.items():
        if head.startswith(magic):
            return ForeignFile(what, "Unpack it; of packed files only gzip is read.")
    for magic, what in _OF_ANOTHER_KIND.items():
        if head.startswith(magic):
            return ForeignFile(what, "Name the file that was meant.")
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:64].lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml", b"<!--")):
        return HTML_PAGE
    return None
