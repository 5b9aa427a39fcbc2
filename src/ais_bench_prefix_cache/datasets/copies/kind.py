"""Data sets whose prompts copy the beginning of earlier ones: rows, manifest sections and rules.

``NAME.jsonl`` has the requests, ``NAME.prefixes.jsonl`` says where each prompt's beginning comes from. Verifying
compares every figure with what lengths, window and block size allow; encoding the prompts again compares each prefix
with its parent's tokens, the markers, and the hits by replay.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.datasets.copies.copy_paths import CopyPaths
from ais_bench_prefix_cache.datasets.copies.copy_plan import possible_plan
from ais_bench_prefix_cache.datasets.copies.recorded import LARGEST_LENGTH, recorded_columns
from ais_bench_prefix_cache.datasets.format.document_checks import ConfigReader, compare_exactly, value_in
from ais_bench_prefix_cache.datasets.format.documents import is_count
from ais_bench_prefix_cache.datasets.format.kind import (
    Content,
    DataSetKind,
    DeepCheck,
    JsonRow,
    Ledger,
    Sources,
)
from ais_bench_prefix_cache.datasets.format.manifest import TOKENIZER_KEYS
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.rows import ANSWER, Free, FreeCount, FreePositive, FreeText, Row, read_rows
from ais_bench_prefix_cache.datasets.format.writing import FileRecord
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.foundation.token_share import TokenShare
from ais_bench_prefix_cache.kvcache.replay import SequentialReplay

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.copies.copied_prompts import CopiedPrompts
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.planning.plan import Int64Column

PLANNED_KEYS = ("actual_token_length", "prefix_token_length", "parent_prompt_index")
_LARGEST = (1 << 63) - 1
COLD_SOURCE = "GSM8K"
"""The audit file's word for corpus text, whatever the corpus is called."""
CORPUS_FIELDS = ("question", "text")
CONFIG_KEYS = (
    "input_lengths",
    "output_lengths",
    "repeat_rate",
    "prefix_count",
    "prefix_algorithm",
    "zipf_exponent",
    "seed",
    "corpus",
    "tokenizer",
)
NO_PARENT = -1


def _is_parent(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= NO_PARENT


def _is_marker(value: object) -> bool:
    return value is None or is_count(value)


@dataclass(frozen=True)
class CopyRow(Row):
    """A row of the main file. Lengths are tokens; prompts are counted from 0, the first copies nothing."""

    question: FreeText
    answer: str
    target_token_length: int
    actual_token_length: FreePositive
    max_tokens: FreeCount
    prefix_token_length: FreeCount
    constructed_prefix_token_length: int
    seed_token_length: int
    tail_token_length: int
    prefix_id: int
    parent_prompt_index: Annotated[int, Free(_is_parent, "-1 or a prompt's number")]
    seed_marker_token_id: Annotated[int | None, Free(_is_marker, "null or a token id")]
    prefix_candidate_count: int
    prefix_pool_path: FreeText


@dataclass(frozen=True)
class OriginRow(Row):
    """A row of the audit file. ``source`` is ``prompt:N`` or :data:`COLD_SOURCE`."""

    prompt_index: int
    cached_input_token_length: int
    source: str


class CopyLedger(Ledger):
    """The figures of each row follow from its length, its prefix and its parent."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        reachable_tokens: int,
        unique_markers: bool,
        origins: str,
        replay_hits: Callable[[], int],
        input_tokens: list[int] | None = None,
        max_tokens: list[int] | None = None,
    ) -> None:
        """``config`` is the effective configuration; ``replay_hits`` is asked when all rows are known.

        ``input_tokens`` and ``max_tokens`` are those of each row, where the configuration says them.
        """
        self.count = None if input_tokens is None else len(input_tokens)
        self._config = config
        self._inputs, self._outputs = input_tokens, max_tokens
        self._columns = array("q"), array("q"), array("q")
        self._rate: float = config["repeat_rate"]
        self._window: int = config["prefix_count"]
        self._block: int = config["tokenizer"]["block_size"]
        self._reachable = reachable_tokens
        self._unique_markers = unique_markers
        self._origins = origins
        self._replay_hits = replay_hits
        self._recent: deque[int] = deque(maxlen=self._window)
        self._markers: set[int] = set()
        self._rows = self._max_tokens = 0
        self._share = TokenShare()

    def expected(self, index: int, row: JsonRow) -> CopyRow:
        prefix, parent = row["prefix_token_length"], row["parent_prompt_index"]
        tokens = row["actual_token_length"] if self._inputs is None else self._inputs[index]
        max_tokens = row["max_tokens"] if self._outputs is None else self._outputs[index]
        first = max(0, index - len(self._recent))
        if not self._recent:
            prefix, parent, seed, constructed = 0, NO_PARENT, 0, tokens
        else:
            parent = min(max(parent, first), index - 1)
            prefix = min(prefix, tokens - 1, self._recent[parent - index])
            if tokens >= self._block:
                prefix -= prefix % self._block
            seed, constructed = min(self._block, tokens - prefix), prefix
        pool = row["prefix_pool_path"]
        return CopyRow(
            question=row["question"],
            answer=ANSWER,
            target_token_length=tokens,
            actual_token_length=tokens,
            max_tokens=max_tokens,
            prefix_token_length=prefix,
            constructed_prefix_token_length=constructed,
            seed_token_length=seed,
            tail_token_length=tokens - prefix - seed if self._recent else 0,
            prefix_id=parent,
            parent_prompt_index=parent,
            seed_marker_token_id=row["seed_marker_token_id"] if self._recent else None,
            prefix_candidate_count=self._window,
            # A data set may have been moved since it was written: only the name is known.
            prefix_pool_path=pool if Path(pool).name == self._origins else f"…/{self._origins}",
        )

    def companions(self, index: int, row: JsonRow) -> tuple[JsonRow, ...]:
        parent = row["parent_prompt_index"]
        source = COLD_SOURCE if parent < 0 else f"prompt:{parent}"
        return (OriginRow(index, row["prefix_token_length"], source).as_json(),)

    def add(self, index: int, row: JsonRow, where: str, findings: Findings) -> None:
        marker, tokens = row["seed_marker_token_id"], row["actual_token_length"]
        if self._unique_markers and marker is not None:
            if marker in self._markers:
                findings.add(Code.MARKER_TWICE, where, f"its seed marker {marker} is that of an earlier prompt")
            self._markers.add(marker)
        self._recent.append(tokens)
        self._rows += 1
        self._max_tokens += row["max_tokens"]
        self._share += TokenShare(tokens, row["prefix_token_length"])
        for column, key in zip(self._columns, PLANNED_KEYS, strict=True):
            column.append(min(row[key], _LARGEST))

    def finish(self, name: str, findings: Findings) -> None:
        """Plan again: prefixes and parents follow from lengths, rate and seed, but for small numbers of tokens."""
        config = self._config
        lengths, prefixes, parents = (np.asarray(column, dtype=np.int64) for column in self._columns)
        if not len(lengths) or int(lengths.max()) > LARGEST_LENGTH:
            return
        plan = possible_plan(
            lengths,
            self._rate,
            block_size=self._block,
            window=self._window,
            copy_short=self._unique_markers,
            algorithm=config["prefix_algorithm"],
            exponent=config["zipf_exponent"] or 0.0,
            seed=config["seed"],
            reachable_tokens=self._reachable,
            prefix_tokens=prefixes,
        )
        if plan is None:
            message = "its prefixes are not what lengths, rate, window, block size and seed give with any tokenizer"
            findings.add(Code.WRONG_VALUE, f"{name}: prefix_token_length", message)
        elif different := np.flatnonzero(plan.parent != parents).tolist():
            index = different[0]
            place = f"{name} line {index + 1}: parent_prompt_index"
            expected = str(int(plan.parent[index]))
            findings.add(Code.WRONG_VALUE, place, f"it says {parents[index]}", allowed=expected)

    def sections(self, artifacts: Mapping[str, Any]) -> dict[str, Any]:
        total, prefix = self._share.total, self._share.shared
        hits = self._replay_hits()
        return {
            "requests": {
                "count": self._rows,
                "total_input_tokens": total,
                "total_max_tokens": self._max_tokens,
            },
            "prefix_cache": {
                "requested_repeat_rate": self._rate,
                "requested_prefix_tokens": round(self._rate * total),
                "reachable_prefix_tokens": self._reachable,
                "prefix_tokens": prefix,
                "repeat_rate": self._share.rate,
                "replay_hit_tokens": hits,
                "replay_hit_rate": TokenShare(total, hits).rate,
                "unique_seed_marker_tokens": self._unique_markers,
            },
        }


def copy_content(prompts: CopiedPrompts, max_tokens: Int64Column, config: Mapping[str, Any], origins: Path) -> Content:
    """The data set of planned prompts. ``max_tokens`` are those of each row, ``config`` the effective configuration."""
    replay = SequentialReplay(block_size=config["tokenizer"]["block_size"])
    ledger = CopyLedger(
        config,
        reachable_tokens=prompts.plan.reachable_tokens,
        unique_markers=prompts.unique_marker_tokens,
        origins=origins.name,
        replay_hits=lambda: replay.hits[0],
    )
    return Content(_rows(prompts, max_tokens, config["prefix_count"], origins, replay), len(prompts), ledger)


def _rows(
    prompts: CopiedPrompts, max_tokens: Int64Column, window: int, origins: Path, replay: SequentialReplay
) -> Iterator[CopyRow]:
    targets = prompts.plan.input_tokens.tolist()
    for prompt in prompts:
        replay.run(0, prompt.token_ids)
        tokens = len(prompt.token_ids)
        yield CopyRow(
            question=prompt.text,
            answer=ANSWER,
            target_token_length=targets[prompt.index],
            actual_token_length=tokens,
            max_tokens=int(max_tokens[prompt.index]),
            prefix_token_length=prompt.prefix_tokens,
            constructed_prefix_token_length=prompt.prefix_tokens if prompt.parent >= 0 else tokens,
            seed_token_length=prompt.seed_tokens,
            tail_token_length=prompt.tail_tokens,
            prefix_id=prompt.parent,
            parent_prompt_index=prompt.parent,
            seed_marker_token_id=prompt.marker_token_id,
            prefix_candidate_count=window,
            prefix_pool_path=str(origins),
        )


def copy_origin(config: Mapping[str, Any], corpus_sha256: str, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest says of what a data set was made from. ``tokenizer`` is a tokenizer's identity."""
    known = {**tokenizer, "block_size": config["tokenizer"]["block_size"]}
    return {
        "schema_version": CopyKind.schema_version,
        "plugin_version": __version__,
        "status": "prepared",
        "effective_config": dict(config),
        "corpus_sha256": corpus_sha256,
        "tokenizer": {key: known[key] for key in CopyKind.tokenizer_keys},
    }


class CopyDeepCheck(DeepCheck):
    """Each prefix is its parent's beginning, each marker stands where it should, and a replay hits what is claimed."""

    def __init__(
        self, requests: Path, manifest: Mapping[str, Any], tokenizer: PromptTokenizer, findings: Findings
    ) -> None:
        config = manifest["effective_config"]
        self._requests = requests
        self._claimed_hits = manifest["prefix_cache"]["replay_hit_tokens"]
        self._findings = findings
        self._before = len(tokenizer.prefix_ids)
        self._recent: deque[list[int]] = deque(maxlen=config["prefix_count"])
        self._replay = SequentialReplay(block_size=config["tokenizer"]["block_size"])
        self._prompts = 0

    def texts(self) -> Iterator[tuple[str, Callable[[Sequence[int]], None]]]:
        for index, row in enumerate(read_rows(self._requests)):
            yield row["question"], partial(self._judge, index, row)

    def _judge(self, index: int, row: JsonRow, token_ids: Sequence[int]) -> None:
        where, ids = f"{self._requests.name} line {index + 1}", list(token_ids)
        prefix, parent = row["prefix_token_length"], row["parent_prompt_index"]
        self._compare(f"{where}: actual_token_length", row["actual_token_length"], len(ids))
        if prefix and ids[:prefix] != self._recent[parent - index][:prefix]:
            message = f"its first {prefix} tokens are not those of prompt {parent}"
            self._findings.add(Code.PREFIX_DIFFERS, where, message)
        if row["seed_marker_token_id"] is not None:
            position = max(prefix, self._before)
            marker = ids[position] if position < len(ids) else None
            self._compare(f"{where}: seed_marker_token_id", row["seed_marker_token_id"], marker)
        self._replay.run(0, ids)
        self._recent.append(ids)
        self._prompts += 1

    def report(self) -> dict[str, Any]:
        share = TokenShare(self._replay.queries[0], self._replay.hits[0])
        self._compare(f"{self._requests.stem}: replay_hit_tokens", self._claimed_hits, share.shared)
        return {"prompts": self._prompts, "tokens": share.total, "hit_tokens": share.shared, "hit_rate": share.rate}

    def _compare(self, where: str, claimed: object, found: object) -> None:
        if claimed != found:
            message = f"the file says {claimed}, but encoding and replaying the prompts gives {found}"
            self._findings.add(Code.DEEP_CHECK, where, message)


class CopyKind(DataSetKind):
    """See the module's docstring."""

    name = "distribution"
    schema_version = 1
    manifest_keys = (
        "schema_version",
        "plugin_version",
        "status",
        "benchmark_mode",
        "effective_config",
        "corpus_sha256",
        "tokenizer",
        "requests",
        "prefix_cache",
        "artifacts",
        "content_sha256",
    )
    tokenizer_keys = (*(key for key in TOKENIZER_KEYS if key != "block_size"), "block_size")
    row_type = CopyRow
    has_analysis = False
    run_refusal = (
        Code.DISTRIBUTION,
        "this is a data set of the command distribution; it has no ranks, warm-up or analysis",
        "Of this kind, validate checks the files.",
    )

    def paths(self, manifest: Path) -> CopyPaths:
        return CopyPaths.of_manifest(manifest)

    def row_files(self, paths: RunPaths, manifest: Mapping[str, Any]) -> dict[str, Path]:
        # A main file that the user called otherwise than NAME.jsonl keeps its name.
        named_in_full = value_in(manifest, "artifacts.requests.name") == paths.run_id
        requests = paths.directory / paths.run_id if named_in_full else paths.requests
        return {"requests": requests, "prefixes": CopyPaths(paths.directory, paths.run_id).origins}

    def ledger(
        self, paths: RunPaths, manifest: Mapping[str, Any], records: Mapping[str, FileRecord], findings: Findings
    ) -> CopyLedger | None:
        where = f"{paths.manifest.name}: effective_config"
        effective = manifest.get("effective_config")
        config = ConfigReader(effective if isinstance(effective, dict) else {}, where, findings)
        config.number("repeat_rate", 0, 1)
        config.count("prefix_count", 1)
        config.choice("prefix_algorithm", ("uniform", "zipf"))
        config.choice("tokenizer.trust_remote_code", (True, False))
        config.count("tokenizer.block_size", 1)
        for path in ("corpus.path", "tokenizer.path"):
            config.text(path)
        if not config.is_sound():
            return None
        assert isinstance(effective, dict)
        compare_exactly({key: effective.get(key) for key in CONFIG_KEYS}, effective, where, findings)
        if not effective.keys() >= set(CONFIG_KEYS):
            return None
        corpus = {"path": effective["corpus"]["path"], "fields": list(CORPUS_FIELDS)}
        compare_exactly(corpus, effective["corpus"], f"{where}.corpus", findings)
        keys = ["path", "block_size", "revision", "trust_remote_code"]
        found = effective["tokenizer"]
        compare_exactly({key: found.get(key) for key in keys}, found, f"{where}.tokenizer", findings)
        figures = [
            value_in(manifest, f"prefix_cache.{key}") for key in ("reachable_prefix_tokens", "replay_hit_tokens")
        ]
        unique = value_in(manifest, "prefix_cache.unique_seed_marker_tokens")
        if not all(map(is_count, figures)) or type(unique) is not bool:
            place = f"{paths.manifest.name}: prefix_cache"
            findings.add(Code.WRONG_TYPE, place, f"it says {shown(manifest.get('prefix_cache'))}")
            return None
        if effective["prefix_algorithm"] == "uniform":
            compare_exactly(None, effective["zipf_exponent"], f"{where}.zipf_exponent", findings)
            if effective["zipf_exponent"] is not None:
                return None
        else:
            config.number("zipf_exponent", 0, 100)
        if "requests" not in records:
            return None
        rows = records["requests"].rows
        columns = recorded_columns(effective, rows, where, findings)
        if columns is None or not config.is_sound():
            return None
        return CopyLedger(
            effective,
            input_tokens=columns[0],
            max_tokens=columns[1],
            reachable_tokens=figures[0],
            unique_markers=unique,
            origins=CopyPaths(paths.directory, paths.run_id).origins.name,
            replay_hits=lambda: figures[1],
        )

    def corpus_fields(self, manifest: Mapping[str, Any]) -> tuple[str, ...]:
        return CORPUS_FIELDS

    def not_proven(self, manifest: Mapping[str, Any]) -> list[str]:
        lengths = manifest["effective_config"]["input_lengths"]
        if lengths["input_token_csv"] is None:
            return []
        return ["that the lengths are those of the CSV file of --input-token-csv, which is not part of the data set"]

    def rebuild(
        self, paths: RunPaths, manifest: Mapping[str, Any], sources: Sources, trace: Path | None
    ) -> Content | None:
        from ais_bench_prefix_cache.datasets.copies.copied_prompts import CopiedPrompts

        config, files = manifest["effective_config"], self.row_files(paths, manifest)
        lengths = np.array([row["actual_token_length"] for row in read_rows(files["requests"])], dtype=np.int64)
        outputs = np.array([row["max_tokens"] for row in read_rows(files["requests"])], dtype=np.int64)
        prompts = CopiedPrompts(
            lengths,
            config["repeat_rate"],
            tokenizer=sources.tokenizer,
            corpus=sources.corpus,
            block_size=config["tokenizer"]["block_size"],
            window=config["prefix_count"],
            algorithm=config["prefix_algorithm"],
            exponent=config["zipf_exponent"] or 0.0,
            seed=config["seed"],
        )
        # A data set may have been moved: each row names the audit file where it was written.
        origins = Path(next(read_rows(files["requests"]))["prefix_pool_path"])
        return copy_content(prompts, outputs, config, origins)

    def deep_check(
        self, paths: RunPaths, manifest: Mapping[str, Any], tokenizer: PromptTokenizer, findings: Findings
    ) -> CopyDeepCheck:
        return CopyDeepCheck(self.row_files(paths, manifest)["requests"], manifest, tokenizer, findings)


KIND = CopyKind()
