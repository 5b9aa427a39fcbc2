"""Writes, verifies and verifies deeply data sets of every kind, each by what it says of itself (:mod:`.kind`).

Verifying walks everything, collects everything that is wrong, and raises one :class:`ArtifactError` with all of it:

1. the manifest's bytes, digest, keys and types;
2. size and SHA-256 of the files of rows and (before a run) of the analysis;
3. every row against the only one that its free values allow, word for word, and its partners in the other files;
4. what the manifest and the analysis claim, against what configuration and rows give.

The last two hold even where somebody edited a file and then made all digests fit again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.datasets.format.document_checks import (
    check_analysis_claims,
    check_analysis_form,
    check_artifacts_section,
    check_manifest_form,
    compare_exactly,
)
from ais_bench_prefix_cache.datasets.format.documents import digest_problems, sealed
from ais_bench_prefix_cache.datasets.format.file_records import file_records
from ais_bench_prefix_cache.datasets.format.kind import Content, DataSetKind, Ledger, Sources
from ais_bench_prefix_cache.datasets.format.manifest import artifacts_section
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.rows import Free, LineBatch, Row, parsed_row, render_row
from ais_bench_prefix_cache.datasets.format.sources import tokenizer_problem
from ais_bench_prefix_cache.datasets.format.writing import FileSet
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.foundation.regular_files import open_regular

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

TEXTS_ENCODED_AT_ONCE = 128


@dataclass(frozen=True)
class VerifiedDataSet:
    """A data set whose files have been proven: its manifest and analysis, where they lie, and its formal requests.

    ``analysis`` is empty for kinds that have none; ``rows`` is the number of requests.
    """

    kind: DataSetKind
    manifest: dict[str, Any]
    analysis: dict[str, Any]
    paths: RunPaths
    rows: int

    @property
    def run_id(self) -> str:
        """The run's name with its time stamp; for kinds without one the name of the files."""
        return self.paths.run_id

    @property
    def planned_elsewhere(self) -> list[str]:
        """What nothing proves where this version's plan does not give the data set; empty for all others."""
        return self.kind.planned_elsewhere(self.manifest)

    def row_files(self) -> dict[str, Path]:
        """The files of rows under their keys in the manifest's ``artifacts``."""
        files = self.kind.row_files(self.paths, self.manifest)
        assert files is not None, "the data set has been verified"
        return files

    @property
    def rows_sha256(self) -> dict[str, str]:
        """The digest of each file of rows: two runs of the same ones sent the same requests."""
        artifacts: Mapping[str, Mapping[str, Any]] = self.manifest["artifacts"]
        return {key: entry["sha256"] for key, entry in artifacts.items() if "sha256" in entry}

    @property
    def first_file(self) -> Path:
        """The file whose rows say everything."""
        return next(iter(self.row_files().values()))


def write_data_set(
    kind: DataSetKind,
    paths: RunPaths,
    content: Content,
    origin: Mapping[str, Any],
    *,
    replace: bool,
    show: Callable[[int], None] = lambda _rows: None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write rows, analysis and, last, the manifest, all or none; returns manifest and analysis.

    ``origin`` holds the manifest's keys that say who made it from what. Rows are streamed, so memory does not grow with
    the data; ``show`` hears how many are written. ``replace`` allows the data files to exist already (an inspected
    manifest is always upgraded).
    """
    ledger = content.ledger
    findings = Findings()
    known = {"benchmark_mode": kind.name, **origin}
    with FileSet(replace=replace) as files:
        # Which files there are may depend on the configuration, which the manifest will hold.
        row_files = kind.row_files(paths, known)
        assert row_files is not None, "the configuration has been checked"
        growing = {key: files.open(path) for key, path in row_files.items()}
        written = 0
        for batch in content.batches or _batches(content.rows, ledger, findings):
            for file, lines in zip(growing.values(), batch.lines, strict=True):
                file.write(lines, batch.rows)
            written += batch.rows
            show(written)
        findings.raise_if_any()
        records = {key: file.finish() for key, file in growing.items()}
        analysis = ledger.analysis(paths.run_id, None)
        if analysis is not None:
            analysis = sealed(analysis)
            records["analysis"] = files.write_document(paths.analysis, analysis)
        artifacts = artifacts_section(records)
        known |= {**ledger.sections(artifacts), "artifacts": artifacts}
        manifest = sealed({key: known[key] for key in kind.manifest_keys if key in known})
        files.write_document(paths.manifest, manifest, replace=True)
        files.commit()
    return manifest, analysis or {}


def _batches(rows: Iterable[Row], ledger: Ledger, findings: Findings) -> Iterator[LineBatch]:
    """The lines of rows one by one; the ledger takes each in."""
    for index, each in enumerate(rows):
        row = each.as_json()
        yield LineBatch(1, tuple([render_row(line) for line in (row, *ledger.companions(index, row))]))
        ledger.add(index, row, f"row {index}", findings)


def verify_files(kind: DataSetKind, manifest_path: Path, manifest: dict[str, Any], content: bytes) -> VerifiedDataSet:
    """Verify the data set of a manifest that has been read. Raises :class:`ArtifactError` with all that is wrong."""
    paths = kind.paths(manifest_path)
    where = paths.manifest.name
    findings = Findings()
    findings.extend(digest_problems(paths.manifest, manifest, content, what="manifest"))
    check_manifest_form(kind, paths, manifest, findings)
    row_files = kind.row_files(paths, manifest)
    records = file_records(row_files or {}, findings)
    if row_files is not None:
        check_artifacts_section(kind, paths, manifest, row_files, records, findings)
    ledger = kind.ledger(paths, manifest, records, findings)
    rows = 0
    if ledger is not None and row_files is not None:
        rows = records[next(iter(row_files))].rows if next(iter(row_files)) in records else 0
        usable = len(records) == len(row_files) and _check_rows(kind, row_files, ledger, findings)
        if usable:
            artifacts = manifest.get("artifacts")
            for key, section in ledger.sections(artifacts if isinstance(artifacts, dict) else {}).items():
                compare_exactly(section, manifest.get(key), f"{where}: {key}", findings)
        else:
            ledger = None
    analysis = check_analysis_form(kind, paths, manifest, findings) if kind.has_analysis else {}
    if ledger is not None and analysis:
        expected = ledger.analysis(paths.run_id, _warnings_of(analysis))
        check_analysis_claims(expected or {}, analysis, paths.analysis.name, findings)
    findings.raise_if_any()
    return VerifiedDataSet(kind, manifest, analysis, paths, rows)


def verify_deeply(
    data_set: VerifiedDataSet,
    tokenizer: PromptTokenizer,
    corpus: Corpus | None = None,
    trace: Path | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Encode every text of a verified data set again and judge its tokens; returns what was counted.

    With the ``corpus`` (and the ``trace``, for data sets that were made from one) the rows are made again, too, by
    ``workers`` processes where that can be, and compared byte by byte: ``rebuilt`` says whether.

    Raises :class:`ArtifactError` with everything that differs from what the files claim.
    """
    findings = Findings()
    problem = tokenizer_problem(data_set.manifest, tokenizer)
    findings.extend([problem] if problem else [])
    check = data_set.kind.deep_check(data_set.paths, data_set.manifest, tokenizer, findings)
    encode = tokenizer.encode_batch if check.special_tokens else tokenizer.encode_plain_batch
    for judge, token_ids in _encoded(check.texts(), encode):
        judge(token_ids)
    report = check.report()
    findings.raise_if_any()
    content = None
    if corpus is not None and corpus.sha256 == data_set.manifest["corpus_sha256"]:
        content = data_set.kind.rebuild(data_set.paths, data_set.manifest, Sources(corpus, tokenizer, workers), trace)
    if content is not None:
        _compare_content(data_set, content, findings)
        findings.raise_if_any()
    return {
        **report,
        "tokenizer_fingerprint_sha256": data_set.manifest["tokenizer"]["fingerprint_sha256"],
        "rebuilt": content is not None,
    }


def _compare_content(data_set: VerifiedDataSet, content: Content, findings: Findings) -> None:
    """The rows and sections of a data set that was made again against those of the files."""
    names = [path.name for path in data_set.row_files().values()]
    with ExitStack() as stack:
        files = [stack.enter_context(open_regular(path)) for path in data_set.row_files().values()]
        known = 0
        for batch in content.batches or _batches(content.rows, content.ledger, findings):
            for name, file, wanted in zip(names, files, batch.lines, strict=True):
                found = [file.readline() for _ in range(batch.rows)]
                if b"".join(found) != wanted:
                    for number, (line, made) in enumerate(zip(found, wanted.splitlines(keepends=True), strict=True)):
                        if line != made:
                            _say_as_built(json.loads(made), line, f"{name} line {known + number + 1}", findings)
            known += batch.rows
    artifacts = data_set.manifest["artifacts"]
    for key, section in content.ledger.sections(artifacts).items():
        if section != data_set.manifest[key]:
            message = "making the data set again gives another section"
            findings.add(Code.NOT_AS_BUILT, f"{data_set.paths.manifest.name}: {key}", message)


def _say_as_built(wanted: Mapping[str, Any], line: bytes, where: str, findings: Findings) -> None:
    """Name the first value in which a verified row differs from the one that was made again."""
    found = _parsed_row(line, where, findings) or {}
    key = next((key for key in wanted if found.get(key) != wanted[key]), None)
    place = where if key is None else f"{where}: {key}"
    message = f"making the data set again gives {shown(wanted.get(key or ''))}, not {shown(found.get(key or ''))}"
    findings.add(Code.NOT_AS_BUILT, place, message)


def _encoded(
    texts: Iterator[tuple[str, Callable[[Sequence[int]], None]]],
    encode: Callable[[Sequence[str]], list[list[int]]],
) -> Iterator[tuple[Callable[[Sequence[int]], None], Sequence[int]]]:
    """Each judge with the ids of its text. The next batch is encoded while the caller works on this one."""

    def next_batch() -> list[tuple[Callable[[Sequence[int]], None], Sequence[int]]]:
        batch = list(islice(texts, TEXTS_ENCODED_AT_ONCE))
        encoded = encode([text for text, _ in batch]) if batch else []
        return [(judge, ids) for (_, judge), ids in zip(batch, encoded, strict=True)]

    with ThreadPoolExecutor(max_workers=1) as executor:
        batch = executor.submit(next_batch)
        while encoded := batch.result():
            batch = executor.submit(next_batch)
            yield from encoded


def _check_rows(kind: DataSetKind, row_files: Mapping[str, Path], ledger: Ledger, findings: Findings) -> bool:
    """Every row of every file; whether the rows could be added up."""
    keys, free = kind.row_type.keys(), kind.row_type.free_fields()
    names = [path.name for path in row_files.values()]
    usable, index = True, -1
    with ExitStack() as stack:
        first, *others = (stack.enter_context(open_regular(path)) for path in row_files.values())
        for index, line in enumerate(first):
            partners = [other.readline() for other in others]
            if ledger.count is not None and index >= ledger.count:
                continue
            where = f"{names[0]} line {index + 1}"
            row = _parsed_row(line, where, findings)
            if row is None or not _well_formed(keys, free, row, where, findings):
                usable = False
                continue
            _compare_line(ledger.expected(index, row).as_json(), row, line, where, findings)
            for name, partner, wanted in zip(names[1:], partners, ledger.companions(index, row), strict=True):
                _compare_partner(wanted, partner, f"{name} line {index + 1}", where, findings)
            ledger.add(index, row, where, findings)
        for name, other in zip(names[1:], others, strict=True):
            if surplus := sum(1 for _ in other):
                findings.add(Code.ROW_COUNT, name, f"it has {surplus} rows more than {names[0]} ({index + 1})")
    if not usable:
        return False
    if index + 1 != (ledger.count or index + 1):
        findings.add(Code.ROW_COUNT, names[0], f"it has {index + 1} rows", allowed=str(ledger.count))
    ledger.finish(names[0], findings)
    return index >= 0


def _parsed_row(line: bytes, where: str, findings: Findings) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        findings.add(Code.TRUNCATED, where, "the last line has no end: the file was cut off or added to")
    return parsed_row(line, where, findings)


def _well_formed(
    keys: tuple[str, ...], free: Mapping[str, Free], row: Mapping[str, Any], where: str, findings: Findings
) -> bool:
    """Whether a row has its keys, and at its free ones values that they may have."""
    if tuple(row) != keys:
        missing = [key for key in keys if key not in row]
        unknown = [key for key in row if key not in keys]
        if missing:
            findings.add(Code.MISSING_KEY, where, f"it lacks {', '.join(missing)}")
        if unknown:
            allowed = ", ".join(keys)
            findings.add(Code.UNKNOWN_KEY, where, f"it has unknown keys: {shown(', '.join(unknown))}", allowed=allowed)
        if missing or unknown:
            return False
    wrong = {key: each for key, each in free.items() if not each.holds(row[key])}
    for key, each in wrong.items():
        findings.add(Code.WRONG_TYPE, f"{where}: {key}", f"it says {shown(row[key])}", allowed=each.allowed)
    return not wrong


def _compare_line(
    expected: Mapping[str, Any], row: Mapping[str, Any], line: bytes, where: str, findings: Findings
) -> None:
    if _is_line_of(expected, line):
        return
    before = findings.count
    compare_exactly(expected, row, where, findings)
    if findings.count == before and line.endswith(b"\n"):
        findings.add(Code.LAYOUT_EDITED, where, "its values are sound, but its bytes are not what was written")


def _compare_partner(expected: Mapping[str, Any], line: bytes, where: str, owner: str, findings: Findings) -> None:
    """Say how a row of another file differs from the one that belongs to the row at ``owner``."""
    if _is_line_of(expected, line):
        return
    if not line:
        findings.add(Code.ROW_COUNT, where, f"it ends here, but {owner} has a row")
        return
    row = _parsed_row(line, where, findings)
    if row is None:
        return
    different = [
        key
        for key in (*expected, *(key for key in row if key not in expected))
        if key not in expected
        or key not in row
        or type(row[key]) is not type(expected[key])
        or row[key] != expected[key]
    ]
    for key in different:
        found = shown(row[key]) if key in row else "missing"
        findings.add(Code.CORRESPONDENCE, f"{where}: {key}", f"it is not that of {owner}: {found}")
    if not different and list(row) != list(expected):
        findings.add(Code.KEY_ORDER, where, "its keys are not in their order", allowed=", ".join(expected))
    elif not different and line.endswith(b"\n"):
        findings.add(Code.LAYOUT_EDITED, where, "its values are sound, but its bytes are not what was written")


def _is_line_of(expected: Mapping[str, Any], line: bytes) -> bool:
    try:
        return render_row(expected) == line
    except UnicodeEncodeError:  # half of a character, which a line of JSON can name and nobody can write
        return False


def _warnings_of(analysis: Mapping[str, Any]) -> list[dict[str, Any]]:
    warnings = analysis.get("warnings")
    return [each for each in warnings if isinstance(each, dict)] if isinstance(warnings, list) else []
