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
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.artifacts.documents import digest_problems, read_document, sealed
from ais_bench_prefix_cache.artifacts.file_hashes import FileHashes
from ais_bench_prefix_cache.artifacts.findings import Findings
from ais_bench_prefix_cache.artifacts.manifest import artifacts_section, manifest_identity, read_manifest
from ais_bench_prefix_cache.artifacts.paths import RunPaths
from ais_bench_prefix_cache.artifacts.rows import read_full_rows, render_row, request_id, request_row
from ais_bench_prefix_cache.artifacts.sources import tokenizer_problem
from ais_bench_prefix_cache.artifacts.theory import length_summary, rate
from ais_bench_prefix_cache.artifacts.verified_data_set import VerifiedDataSet
from ais_bench_prefix_cache.artifacts.writing import FileSet
from ais_bench_prefix_cache.errors import ArtifactError
from ais_bench_prefix_cache.kvcache.block_hash import block_hashes
from ais_bench_prefix_cache.kvcache.trace_replay import TraceReplay, TraceRequest

if TYPE_CHECKING:
    from ais_bench_prefix_cache.kvcache.capacity_curve import CapacityCurve
    from ais_bench_prefix_cache.prompts.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.prompts.trace_prompts import TracePrompts
    from ais_bench_prefix_cache.scenario.model import Scenario
    from ais_bench_prefix_cache.traces.reading import TraceRow

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
        analysis = sealed(
            {
                "schema_version": "1.0",
                "run_id": paths.run_id,
                "status": "prepared",
                "theoretical_hit_rate": sums.theory()["hit_rate"],
                "theory": sums.theory(),
                "warnings": capacity_warnings(replay.capacity_curve(), sums.theory()["hit_tokens"]),
            }
        )
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
            "tokenizer": {
                **{key: tokenizer[key] for key in ("path", "revision", "class", "vocab_size", "special_token_ids")},
                "block_size": scenario.block_size,
                "fingerprint_sha256": tokenizer["fingerprint_sha256"],
            },
            "trace": dict(trace),
            "requests": sums.requests(),
            "theory": sums.theory(),
            "dp": {"size": ranks, "route": "round_robin"},
            "artifacts": artifacts_section(records),
        }
        files.write_document(paths.manifest, sealed(manifest), replace=True)
        files.commit()
    return analysis


def verify_trace_data_set(manifest_path: Path) -> VerifiedDataSet:
    """Verify files, rows and sums. Raises :class:`ArtifactError` with everything that is wrong."""
    paths = RunPaths.of_manifest(manifest_path)
    manifest = read_manifest(paths.manifest)
    hashes = FileHashes({"full": paths.full, "requests": paths.requests})
    findings = Findings()
    analysis, content = read_document(paths.analysis, what="analysis")
    findings.extend(digest_problems(paths.analysis, analysis, content, what="analysis"))
    sums, count = _check_rows(paths, manifest, findings)
    found = hashes.results(findings)
    for key, (size, sha256) in found.items():
        claimed = manifest["artifacts"][key]
        for name, expected in (("rows", count), ("bytes", size), ("sha256", sha256)):
            if expected is not None and claimed[name] != expected:
                findings.add(
                    "FILE_DIFFERS",
                    f"{paths.manifest.name}: artifacts.{key}.{name}",
                    f"it says {claimed[name]}, but the file has {expected}",
                )
    if sums is not None:
        for where, claimed, computed in (
            (f"{paths.manifest.name}: requests", manifest["requests"], sums.requests()),
            (f"{paths.manifest.name}: theory", manifest["theory"], sums.theory()),
            (f"{paths.analysis.name}: theory", analysis.get("theory"), sums.theory()),
        ):
            if claimed != computed:
                findings.add("WRONG_VALUE", where, "it does not agree with the rows of full.jsonl")
    findings.raise_if_any()
    return VerifiedDataSet(manifest, analysis, paths, count or 0)


def _check_rows(paths: RunPaths, manifest: Mapping[str, Any], findings: Findings) -> tuple[_Sums | None, int | None]:
    """Rows of both files side by side, and their number; None where a file is missing or a row cannot be added up."""
    ranks = manifest["dp"]["size"]
    output_key = manifest["effective_config"]["output"]["output_key"]
    sums = _Sums(ranks)
    count = 0
    usable = True
    try:
        with paths.requests.open("rb") as requests:
            for index, row in enumerate(read_full_rows(paths.full)):
                where = f"{paths.full.name} line {index + 1}"
                count += 1
                expected = {"request_id": request_id(index), "sequence_index": index, "dp_rank": index % ranks}
                problems: list[str] = [] if isinstance(row, dict) else ["it is not an object"]
                if not problems and tuple(row) != ROW_KEYS:
                    problems = [f"its keys are not {', '.join(ROW_KEYS)}"]
                if not problems:
                    problems = [
                        f"{key} is {row[key]!r}, expected {value!r}"
                        for key, value in expected.items()
                        if row[key] != value
                    ] + [
                        f"{key} is {row[key]!r}, not a whole number"
                        for key in ("actual_input_tokens", "max_tokens", "theoretical_hit_tokens")
                        if type(row[key]) is not int
                    ]
                for problem in problems:
                    findings.add("WRONG_ROW", where, problem)
                if problems:
                    usable = False
                    next(requests, None)
                    continue
                if next(requests, None) != render_row(request_row(row, output_key)):
                    findings.add(
                        "ROWS_DIFFER", f"{paths.requests.name} line {index + 1}", f"it does not belong to {where}"
                    )
                sums.add(row)
            if next(requests, None) is not None:
                findings.add("ROWS_DIFFER", str(paths.requests), f"it has more rows than {paths.full.name}")
    except FileNotFoundError:
        return None, None  # The check of the files' digests names the file.
    except ArtifactError as error:
        findings.extend(list(error.problems))
        return None, None
    return (sums if usable and count else None), count


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
                "DEEP_CHECK", f"{where}: actual_input_tokens", f"the file says {tokens}, but the prompt has {len(ids)}"
            )
        hits = by_tokens.send(TraceRequest(block_hashes(ids, block_size), len(ids))).hit_tokens
        if hits != row["theoretical_hit_tokens"]:
            claimed = row["theoretical_hit_tokens"]
            message = f"the file says {claimed}, but encoding and replaying the prompts gives {hits}"
            findings.add("DEEP_CHECK", f"{where}: theoretical_hit_tokens", message)
        whole = row["trace_hash_ids"][: tokens // trace_block_size]
        shared = by_names.send(TraceRequest(block_hashes(whole, 1), tokens)).hit_tokens
        # An unfinished last block may be shared, too, and the last token, computed anyway, costs the trace's replay a
        # larger block: at most one of both.
        if not shared <= hits < shared + trace_block_size:
            findings.add("SHARING_DIFFERS", where, f"its prompt hits {hits} tokens, the trace's own blocks {shared}")
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
