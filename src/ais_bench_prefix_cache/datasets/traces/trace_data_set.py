"""A data set made from a trace: the same files as a text data set, with rows of their own.

A row of ``full.jsonl`` has the trace's time and block names; theory is a replay of the prompts' own tokens through
caches that never forget, requests going to the ranks in turn. ``validate`` checks files, rows and sums; ``validate
--deep`` encodes every prompt again, replays it, and replays the trace's names beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ais_bench_prefix_cache.datasets.format.document_checks import (
    ConfigReader,
    capacity_warnings_of,
    check_analysis_form,
    check_artifacts_section,
    check_manifest_form,
    compare_exactly,
)
from ais_bench_prefix_cache.datasets.format.documents import (
    DIGEST_KEY,
    digest_problems,
    is_count,
    is_sha256,
    read_document,
    sealed,
)
from ais_bench_prefix_cache.datasets.format.file_hashes import FileHashes
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.sources import tokenizer_problem
from ais_bench_prefix_cache.datasets.format.verified_data_set import VerifiedDataSet
from ais_bench_prefix_cache.datasets.format.writing import FileSet
from ais_bench_prefix_cache.datasets.text.manifest import (
    SOURCE_KEYS,
    artifacts_section,
    identity_problems,
    manifest_identity,
    tokenizer_section,
)
from ais_bench_prefix_cache.datasets.text.rows import read_full_rows, render_row, request_id, request_row
from ais_bench_prefix_cache.datasets.text.theory import length_summary, rate
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.kvcache.block_hash import block_hashes
from ais_bench_prefix_cache.kvcache.trace_replay import TraceReplay, TraceRequest

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.traces.reading import TraceRow
    from ais_bench_prefix_cache.datasets.traces.trace_prompts import TracePrompts
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.kvcache.capacity_curve import CapacityCurve
    from ais_bench_prefix_cache.scenario.model import Scenario

ROW_KEYS = (
    "request_id",
    "sequence_index",
    "timestamp_ms",
    "dp_rank",
    "question",
    "answer",
    "actual_input_tokens",
    "max_tokens",
    "theoretical_hit_tokens",
    "trace_hash_ids",
)
MANIFEST_KEYS = (
    *SOURCE_KEYS,
    "trace",
    "requests",
    "theory",
    "dp",
    "artifacts",
    "content_sha256",
)
TRACE_KEYS = ("path", "sha256", "block_size")
BATCH_PROMPTS = 64


class _Sums:
    """What manifest and analysis say of all rows together."""

    def __init__(self, ranks: int) -> None:
        self.input_lengths: Counter[int] = Counter()
        self.output_lengths: Counter[int] = Counter()
        self.ranks = [[0, 0] for _ in range(ranks)]

    def add(self, row: Mapping[str, Any]) -> None:
        self.input_lengths[row["actual_input_tokens"]] += 1
        self.output_lengths[row["max_tokens"]] += 1
        share = self.ranks[row["dp_rank"]]
        share[0] += row["actual_input_tokens"]
        share[1] += row["theoretical_hit_tokens"]

    def requests(self) -> dict[str, Any]:
        return {
            "count": sum(self.input_lengths.values()),
            "total_input_tokens": sum(share[0] for share in self.ranks),
            "input_length_summary": length_summary(self.input_lengths),
            "output_length_summary": length_summary(self.output_lengths),
        }

    def theory(self) -> dict[str, Any]:
        inputs, hits = (sum(share[each] for share in self.ranks) for each in (0, 1))
        return {
            "input_tokens": inputs,
            "hit_tokens": hits,
            "hit_rate": rate(hits, inputs),
            "dp": {
                str(rank): {"input_tokens": tokens, "hit_tokens": hit_tokens, "hit_rate": rate(hit_tokens, tokens)}
                for rank, (tokens, hit_tokens) in enumerate(self.ranks)
            },
        }


def dp_section(ranks: int) -> dict[str, Any]:
    """The manifest's ``dp``."""
    return {"size": ranks, "route": "round_robin"}


def _analysis(paths: RunPaths, sums: _Sums, warnings: list[dict[str, Any]]) -> dict[str, Any]:
    """What ``prepare`` writes as analysis, without its digest."""
    theory = sums.theory()
    return {
        "schema_version": "1.0",
        "run_id": paths.run_id,
        "status": "prepared",
        "theoretical_hit_rate": theory["hit_rate"],
        "theory": theory,
        "warnings": warnings,
    }


def write_trace_data_set(
    scenario: Scenario,
    paths: RunPaths,
    rows: Iterable[TraceRow],
    prompts: TracePrompts,
    *,
    trace: Mapping[str, Any],
    corpus_sha256: str,
    tokenizer: Mapping[str, Any],
    replace: bool,
    progress: Callable[[Iterable[TraceRow]], Iterator[TraceRow]] = iter,
    capacity_warnings: Callable[[CapacityCurve, int], list[dict[str, Any]]] = lambda curve, hits: [],
) -> dict[str, Any]:
    """Write full, requests, analysis and, last, the manifest, all or none; returns the analysis.

    ``trace`` is what the manifest says of the trace. Rows are streamed; of each different block 8 bytes are kept.
    ``capacity_warnings`` is asked what a server of known size makes of the hits for each number of blocks, and of their
    number where nothing is forgotten.
    """
    ranks = scenario.service.dp_size
    replay = TraceReplay(block_size=scenario.block_size, ranks=ranks)
    sums = _Sums(ranks)
    with FileSet(replace=replace) as files:
        full, requests = files.open(paths.full), files.open(paths.requests)
        for index, row in enumerate(progress(rows)):
            text, ids = prompts.build(row.ids, row.prompt_tokens, row.line)
            hashes = block_hashes(ids, scenario.block_size)
            replayed = replay.send(TraceRequest(hashes, len(ids), row.output_tokens))
            line = dict(
                zip(
                    ROW_KEYS,
                    (
                        request_id(index),
                        index,
                        row.timestamp_ms,
                        replayed.rank,
                        text,
                        "",
                        len(ids),
                        row.output_tokens,
                        replayed.hit_tokens,
                        list(row.ids),
                    ),
                    strict=True,
                )
            )
            sums.add(line)
            full.write(render_row(line))
            requests.write(render_row(request_row(line, scenario.output_key)))
        hits = sums.theory()["hit_tokens"]
        analysis = sealed(_analysis(paths, sums, capacity_warnings(replay.capacity_curve(), hits)))
        records = {
            "full": full.finish(),
            "requests": requests.finish(),
            "analysis": files.write_document(paths.analysis, analysis),
        }
        identity = manifest_identity(scenario, paths, "prepared")
        head = {key: identity.pop(key) for key in ("schema_version", "plugin_version", "status")}
        manifest = {
            **head,
            "benchmark_mode": "trace",
            **identity,
            "corpus_sha256": corpus_sha256,
            "tokenizer": tokenizer_section(tokenizer, "trace", scenario.block_size),
            "trace": dict(trace),
            "requests": sums.requests(),
            "theory": sums.theory(),
            "dp": dp_section(ranks),
            "artifacts": artifacts_section(records),
        }
        files.write_document(paths.manifest, sealed(manifest), replace=True)
        files.commit()
    return analysis


def verify_trace_data_set(manifest_path: Path) -> VerifiedDataSet:
    """Verify files, rows and sums. Raises :class:`ArtifactError` with everything that is wrong."""
    paths = RunPaths.of_manifest(manifest_path)
    manifest, content = read_document(paths.manifest, what="manifest")
    problems = identity_problems(paths.manifest, manifest)
    if problems:
        raise ArtifactError(problems)
    where = paths.manifest.name
    findings = Findings()
    findings.extend(digest_problems(paths.manifest, manifest, content, what="manifest"))
    check_manifest_form(paths, manifest, MANIFEST_KEYS, findings)
    compare_exactly("prepared", manifest["status"], f"{where}: status", findings)
    files = {"full": paths.full, "requests": paths.requests}
    hashes = FileHashes(files)
    rules = _row_rules(manifest, where, findings)
    sums, rows = (None, None) if rules is None else _check_rows(paths, rules, findings)
    check_artifacts_section(paths, manifest, files, hashes.results(findings), rows, findings)
    analysis = check_analysis_form(paths, manifest, findings)
    if rules is not None and sums is not None:
        expected = {"requests": sums.requests(), "theory": sums.theory(), "dp": dp_section(rules.ranks)}
        for key, section in expected.items():
            compare_exactly(section, manifest.get(key), f"{where}: {key}", findings)
        if analysis:
            prepared = _analysis(paths, sums, capacity_warnings_of(analysis))
            claimed = {key: value for key, value in analysis.items() if key != DIGEST_KEY}
            compare_exactly(prepared, claimed, paths.analysis.name, findings)
    findings.raise_if_any()
    return VerifiedDataSet(manifest, analysis, paths, rows or 0)


class _RowRules(NamedTuple):
    """What the manifest says about every row."""

    ranks: int
    output_key: str | None


def _row_rules(manifest: Mapping[str, Any], where: str, findings: Findings) -> _RowRules | None:
    """None, with findings, where configuration or trace section have no usable values."""
    config = ConfigReader(manifest["effective_config"], f"{where}: effective_config", findings)
    ranks = config.count("service.dp_size", 1)
    output_key = config.choice("output.output_key", (None, "max_tokens", "output_tokens"))
    config.choice("tokenizer.trust_remote_code", (True, False))
    block_size = config.count("tokenizer.block_size", 1)
    for path in ("corpus.path", "tokenizer.path"):
        config.text(path)
    section = manifest.get("trace")
    if not isinstance(section, dict) or tuple(section) != TRACE_KEYS:
        findings.add(Code.MISSING_KEY, f"{where}: trace", "it does not have its keys", allowed=", ".join(TRACE_KEYS))
        return None
    trace = ConfigReader(section, f"{where}: trace", findings)
    trace.text("path")
    if not is_sha256(section["sha256"]):
        findings.add(Code.WRONG_TYPE, f"{where}: trace.sha256", "it is not a SHA-256 in hexadecimal digits")
    trace_block_size = trace.count("block_size", 1)
    if config.sound and trace.sound and trace_block_size % block_size:
        allowed = f"a multiple of {block_size}"
        findings.add(Code.WRONG_VALUE, f"{where}: trace.block_size", f"it says {trace_block_size}", allowed=allowed)
    return _RowRules(ranks, output_key) if config.sound and trace.sound else None


def _check_rows(paths: RunPaths, rules: _RowRules, findings: Findings) -> tuple[_Sums | None, int | None]:
    """Rows of both files side by side, and their number; None where a file is missing or a row cannot be added up."""
    sums = _Sums(rules.ranks)
    count = 0
    usable = True
    try:
        with paths.requests.open("rb") as requests:
            for index, row in enumerate(read_full_rows(paths.full)):
                where = f"{paths.full.name} line {index + 1}"
                count += 1
                problems = list(_row_problems(row, index, rules))
                for problem in problems:
                    findings.add(Code.WRONG_ROW, where, problem)
                if problems:
                    usable = False
                    next(requests, None)
                    continue
                if next(requests, None) != render_row(request_row(row, rules.output_key)):
                    findings.add(
                        Code.CORRESPONDENCE, f"{paths.requests.name} line {index + 1}", f"it does not belong to {where}"
                    )
                sums.add(row)
            if next(requests, None) is not None:
                findings.add(Code.CORRESPONDENCE, str(paths.requests), f"it has more rows than {paths.full.name}")
    except FileNotFoundError:
        return None, None  # The check of the files' digests names the file.
    except ArtifactError as error:
        findings.extend(list(error.problems))
        return None, None
    return (sums if usable and count else None), count


def _row_problems(row: Any, index: int, rules: _RowRules) -> Iterator[str]:
    """What is wrong with one row of ``full.jsonl``."""
    if not isinstance(row, dict):
        yield "it is not an object"
        return
    if tuple(row) != ROW_KEYS:
        yield f"its keys are not {', '.join(ROW_KEYS)}"
        return
    expected = {"request_id": request_id(index), "sequence_index": index, "dp_rank": index % rules.ranks, "answer": ""}
    for key, value in expected.items():
        if row[key] != value or type(row[key]) is not type(value):
            yield f"{key} is {shown(row[key])}, expected {value!r}"
    for key, least in (("actual_input_tokens", 1), ("max_tokens", 0), ("theoretical_hit_tokens", 0)):
        if not is_count(row[key]) or row[key] < least:
            yield f"{key} is {shown(row[key])}, not a whole number from {least} up"
    timestamp, names = row["timestamp_ms"], row["trace_hash_ids"]
    if timestamp is not None and (isinstance(timestamp, bool) or not isinstance(timestamp, (int, float))):
        yield f"timestamp_ms is {shown(timestamp)}, not a number"
    if not isinstance(row["question"], str):
        yield f"question is {shown(row['question'])}, not a string"
    if not isinstance(names, list) or not all(type(name) is int for name in names):
        yield f"trace_hash_ids is {shown(names)}, not a list of whole numbers"


def check_trace_deeply(data_set: VerifiedDataSet, tokenizer: PromptTokenizer) -> dict[str, Any]:
    """Prove a verified data set with its tokenizer; returns what was counted.

    Every prompt is encoded again: its length, and its hits in a replay. Beside it the trace's own names are replayed: a
    prompt hits exactly the whole blocks that its names hit, and then only the part of one more block that it shares
    with an equal last block or keeps because the last token is computed anyway.

    Raises :class:`ArtifactError` with everything that differs from what the files claim.
    """
    findings = Findings()
    manifest, name = data_set.manifest, data_set.paths.full.name
    problem = tokenizer_problem(manifest, tokenizer)
    findings.extend([problem] if problem else [])
    block_size, trace_block_size = manifest["tokenizer"]["block_size"], manifest["trace"]["block_size"]
    by_tokens = TraceReplay(block_size=block_size, ranks=manifest["dp"]["size"])
    by_names = TraceReplay(block_size=trace_block_size, ranks=manifest["dp"]["size"])
    for row, ids in _encoded(data_set.paths.full, tokenizer):
        where = f"{name} line {row['sequence_index'] + 1}"
        tokens = row["actual_input_tokens"]
        if len(ids) != tokens:
            findings.add(
                Code.DEEP_CHECK,
                f"{where}: actual_input_tokens",
                f"the file says {tokens}, but the prompt has {len(ids)}",
            )
        hits = by_tokens.send(TraceRequest(block_hashes(ids, block_size), len(ids))).hit_tokens
        if hits != row["theoretical_hit_tokens"]:
            claimed = row["theoretical_hit_tokens"]
            message = f"the file says {claimed}, but encoding and replaying the prompts gives {hits}"
            findings.add(Code.DEEP_CHECK, f"{where}: theoretical_hit_tokens", message)
        whole = row["trace_hash_ids"][: tokens // trace_block_size]
        shared = by_names.send(TraceRequest(block_hashes(whole, 1), tokens)).hit_tokens
        # An unfinished last block may be shared, too, and the last token, computed anyway, costs the trace's replay a
        # larger block: at most one of both.
        if not shared <= hits < shared + trace_block_size:
            findings.add(Code.SHARING_DIFFERS, where, f"its prompt hits {hits} tokens, the trace's own blocks {shared}")
    findings.raise_if_any()
    hits = sum(totals.hits for totals in by_tokens.totals)
    queries = sum(totals.queries for totals in by_tokens.totals)
    return {
        "prompts": data_set.rows,
        "tokens": queries,
        "hit_tokens": hits,
        "hit_rate": rate(hits, queries),
        "trace_hit_tokens": sum(totals.hits for totals in by_names.totals),
        "tokenizer_fingerprint_sha256": manifest["tokenizer"]["fingerprint_sha256"],
    }


def _encoded(path: Path, tokenizer: PromptTokenizer) -> Iterator[tuple[dict[str, Any], list[int]]]:
    rows = read_full_rows(path)
    while batch := list(islice(rows, BATCH_PROMPTS)):
        yield from zip(batch, tokenizer.encode_batch([row["question"] for row in batch]), strict=True)
