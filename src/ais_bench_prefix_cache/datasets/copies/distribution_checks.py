"""Proves that the files of a parent-copying data set are what ``distribution`` wrote.

Fast: digests, sizes, every row's keys and figures, each parent, and the manifest's totals. Deep: every prompt encoded
again, each prefix compared with its parent's tokens, the markers, and the hits by replay.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.datasets.copies.distribution_files import (
    MANIFEST_KEYS,
    ORIGIN_KEYS,
    ROW_KEYS,
    SCHEMA_VERSION,
    DistributionPaths,
    cache_section,
    origin_row,
    requests_section,
)
from ais_bench_prefix_cache.datasets.format.document_checks import (
    ROW_FILE_KEYS,
    ConfigReader,
    check_tokenizer_section,
    compare_exactly,
    value_in,
)
from ais_bench_prefix_cache.datasets.format.documents import digest_problems, is_count, is_sha256, read_document
from ais_bench_prefix_cache.datasets.format.sources import tokenizer_problem
from ais_bench_prefix_cache.datasets.text.manifest import tokenizer_keys
from ais_bench_prefix_cache.datasets.text.rows import ANSWER
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.foundation.strict_json import parse_json

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

BATCH_PROMPTS = 64
CONFIGURED_TOKENIZER_KEYS = ("path", "block_size", "revision", "trust_remote_code")
TOKENIZER_KEYS = (*tokenizer_keys("mm"), "block_size")
_COUNT_KEYS = (
    "target_token_length",
    "actual_token_length",
    "max_tokens",
    "prefix_token_length",
    "constructed_prefix_token_length",
    "seed_token_length",
    "tail_token_length",
)


@dataclass(frozen=True)
class VerifiedDistribution:
    """A parent-copying data set whose files have been proven."""

    manifest: dict[str, Any]
    paths: DistributionPaths
    rows: int

    @property
    def run_id(self) -> str:
        """The main file's name without its ending."""
        return self.paths.requests.name.removesuffix(".jsonl")


def verify_distribution(manifest_path: Path) -> VerifiedDistribution:
    """Verify the files beside a manifest, wherever they lie now.

    Raises :class:`ArtifactError` with everything that is wrong.
    """
    manifest, content = read_document(manifest_path, what="manifest")
    findings = Findings()
    if tuple(manifest) != MANIFEST_KEYS or manifest["schema_version"] != SCHEMA_VERSION:
        findings.add(
            Code.MISSING_KEY, str(manifest_path), "it does not have its keys", allowed=", ".join(MANIFEST_KEYS)
        )
    findings.extend(digest_problems(manifest_path, manifest, content, what="manifest"))
    findings.raise_if_any()
    where = manifest_path.name
    _check_form(manifest, where, findings)
    findings.raise_if_any()
    artifacts = manifest["artifacts"]
    paths = DistributionPaths.of_manifest(manifest_path, artifacts["requests"]["name"])
    names = (artifacts["requests"]["name"], artifacts["prefixes"]["name"], manifest_path.name)
    rules = _Rules.of(manifest)
    if names != tuple(path.name for path in paths.files):
        findings.add(
            Code.WRONG_VALUE,
            where,
            f"its files are called {', '.join(map(str, names))}",
            allowed="NAME.jsonl, NAME.prefixes.jsonl and NAME.manifest.json",
        )
    _check_files(manifest, paths, findings)
    findings.raise_if_any()
    totals = _check_rows(paths, rules, findings)
    expected = {
        "requests": requests_section(totals.rows, totals.input_tokens, totals.max_tokens),
        "prefix_cache": cache_section(
            rate=manifest["effective_config"]["repeat_rate"],
            requested=round(manifest["effective_config"]["repeat_rate"] * totals.input_tokens),
            reachable=manifest["prefix_cache"]["reachable_prefix_tokens"],
            prefix_tokens=totals.prefix_tokens,
            total=totals.input_tokens or 1,
            hits=manifest["prefix_cache"]["replay_hit_tokens"],
            unique_markers=rules.unique_markers,
        ),
    }
    for key, section in expected.items():
        compare_exactly(section, manifest[key], f"{where}: {key}", findings)
    findings.raise_if_any()
    return VerifiedDistribution(manifest, paths, totals.rows)


def _check_form(manifest: Mapping[str, Any], where: str, findings: Findings) -> None:
    """Types and keys of everything in the manifest that rows cannot prove."""
    compare_exactly("prepared", manifest["status"], f"{where}: status", findings)
    for key, known in (
        ("plugin_version", isinstance(manifest["plugin_version"], str)),
        ("corpus_sha256", is_sha256(manifest["corpus_sha256"])),
    ):
        if not known:
            findings.add(Code.WRONG_TYPE, f"{where}: {key}", f"it says {shown(manifest[key])}")
    config = ConfigReader(manifest["effective_config"], f"{where}: effective_config", findings)
    config.number("repeat_rate", 0, 1)
    config.count("prefix_count", 1)
    config.choice("prefix_algorithm", ("uniform", "zipf"))
    config.choice("tokenizer.trust_remote_code", (True, False))
    config.count("tokenizer.block_size", 1)
    for path in ("corpus.path", "tokenizer.path"):
        config.text(path)
    configured = value_in(manifest["effective_config"], "tokenizer")
    if not isinstance(configured, dict) or tuple(configured) != CONFIGURED_TOKENIZER_KEYS:
        allowed = ", ".join(CONFIGURED_TOKENIZER_KEYS)
        findings.add(
            Code.MISSING_KEY, f"{where}: effective_config.tokenizer", "it does not have its keys", allowed=allowed
        )
    check_tokenizer_section(manifest, TOKENIZER_KEYS, where, findings)
    for path in (
        "requests.count",
        "prefix_cache.reachable_prefix_tokens",
        "prefix_cache.replay_hit_tokens",
    ):
        if not is_count(value_in(manifest, path)):
            findings.add(Code.WRONG_TYPE, f"{where}: {path}", f"it says {shown(value_in(manifest, path))}")
    for key in ("requests", "prefixes"):
        entry = value_in(manifest["artifacts"], key)
        if not isinstance(entry, dict) or tuple(entry) != ROW_FILE_KEYS:
            allowed = ", ".join(ROW_FILE_KEYS)
            findings.add(Code.MISSING_KEY, f"{where}: artifacts.{key}", "it does not have its keys", allowed=allowed)
        elif not isinstance(entry["name"], str) or not isinstance(entry["path"], str):
            findings.add(Code.WRONG_TYPE, f"{where}: artifacts.{key}", "its name or its path is not a string")


def check_distribution_deeply(data_set: VerifiedDistribution, tokenizer: PromptTokenizer) -> dict[str, Any]:
    """Encode every prompt again and replay it; returns what was counted. Raises :class:`ArtifactError`."""
    import numpy as np

    from ais_bench_prefix_cache.kvcache.replay import SequentialReplay

    manifest, name = data_set.manifest, data_set.paths.requests.name
    findings = Findings()
    problem = tokenizer_problem(manifest, tokenizer)
    findings.extend([problem] if problem else [])
    rules = _Rules.of(manifest)
    before = len(tokenizer.prefix_ids)
    replay = SequentialReplay(block_size=rules.block_size)
    recent: deque[Any] = deque(maxlen=rules.window)
    index = 0
    rows = _rows(data_set.paths.requests)
    while batch := list(islice(rows, BATCH_PROMPTS)):
        for row, encoded in zip(batch, tokenizer.encode_batch([row["question"] for row in batch]), strict=True):
            where = f"{name} line {index + 1}"
            ids = np.asarray(encoded, dtype=np.uint32)
            prefix, parent = row["prefix_token_length"], row["parent_prompt_index"]
            _compare_deep(f"{where}: actual_token_length", row["actual_token_length"], len(ids), findings)
            if prefix and not np.array_equal(ids[:prefix], recent[parent - index][:prefix]):
                findings.add(Code.PREFIX_DIFFERS, where, f"its first {prefix} tokens are not those of prompt {parent}")
            if row["seed_marker_token_id"] is not None:
                position = max(prefix, before)
                marker = int(ids[position]) if position < len(ids) else None
                _compare_deep(f"{where}: seed_marker_token_id", row["seed_marker_token_id"], marker, findings)
            replay.run(0, ids)
            recent.append(ids)
            index += 1
    claimed = manifest["prefix_cache"]["replay_hit_tokens"]
    _compare_deep(f"{Path(name).stem}: replay_hit_tokens", claimed, replay.hits[0], findings)
    findings.raise_if_any()
    return {
        "prompts": index,
        "tokens": replay.queries[0],
        "hit_tokens": replay.hits[0],
        "hit_rate": replay.hits[0] / replay.queries[0],
        "tokenizer_fingerprint_sha256": manifest["tokenizer"]["fingerprint_sha256"],
    }


@dataclass(frozen=True)
class _Rules:
    block_size: int
    window: int
    unique_markers: bool
    origins_name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> _Rules:
        config = manifest["effective_config"]
        unique = manifest["prefix_cache"].get("unique_seed_marker_tokens")
        origins_name = manifest["artifacts"]["prefixes"]["name"]
        return cls(config["tokenizer"]["block_size"], config["prefix_count"], unique is True, origins_name)


@dataclass
class _Totals:
    rows: int = 0
    input_tokens: int = 0
    max_tokens: int = 0
    prefix_tokens: int = 0


def _check_files(manifest: Mapping[str, Any], paths: DistributionPaths, findings: Findings) -> None:
    for key, path in (("requests", paths.requests), ("prefixes", paths.origins)):
        entry = manifest["artifacts"][key]
        digest, size, rows = hashlib.sha256(), 0, 0
        try:
            with path.open("rb") as stream:
                while chunk := stream.read(1 << 20):
                    digest.update(chunk)
                    size += len(chunk)
                    rows += chunk.count(b"\n")
        except FileNotFoundError:
            findings.add(Code.MISSING_FILE, str(path), "the file does not exist")
            continue
        except OSError as error:
            findings.add(Code.UNREADABLE_FILE, str(path), f"it cannot be read: {error.strerror or error}")
            continue
        found = (
            (Code.ROW_COUNT, "rows", rows),
            (Code.FILE_SIZE, "bytes", size),
            (Code.FILE_HASH, "sha256", digest.hexdigest()),
        )
        for code, name, value in found:
            if entry.get(name) != value:
                message = f"the file's {name} is {value}, the manifest says {shown(entry.get(name))}"
                findings.add(code, path.name, message)


def _check_rows(paths: DistributionPaths, rules: _Rules, findings: Findings) -> _Totals:
    totals = _Totals()
    lengths: deque[int] = deque(maxlen=rules.window)
    markers: set[int] = set()
    pairs = zip_longest(_rows(paths.requests), _rows(paths.origins))
    for index, (row, origin) in enumerate(pairs):
        where = f"{paths.requests.name} line {index + 1}"
        if row is None or origin is None:
            findings.add(Code.ROW_COUNT, paths.origins.name, "the two files do not have the same number of rows")
            break
        if not _well_formed(row, where, findings):
            break
        prefix, parent, tokens = row["prefix_token_length"], row["parent_prompt_index"], row["actual_token_length"]
        expected = _expected(index, row, rules, lengths)
        for key, value in expected.items():
            _compare(f"{where}: {key}", value, row[key], findings)
        if Path(row["prefix_pool_path"]).name != rules.origins_name:
            _compare(f"{where}: prefix_pool_path", f"…/{rules.origins_name}", row["prefix_pool_path"], findings)
        marker = row["seed_marker_token_id"]
        if rules.unique_markers and marker is not None:
            if marker in markers:
                findings.add(Code.MARKER_TWICE, where, f"its seed marker {marker} is that of an earlier prompt")
            markers.add(marker)
        place = f"{paths.origins.name} line {index + 1}"
        wanted = origin_row(index, prefix, parent)
        for key in ORIGIN_KEYS:
            _compare(f"{place}: {key}", wanted[key], origin.get(key), findings)
        if tuple(origin) != ORIGIN_KEYS:
            findings.add(Code.MISSING_KEY, place, "it does not have its keys", allowed=", ".join(ORIGIN_KEYS))
        lengths.append(tokens)
        totals.rows += 1
        totals.input_tokens += tokens
        totals.max_tokens += row["max_tokens"]
        totals.prefix_tokens += prefix
    return totals


def _well_formed(row: Mapping[str, Any], where: str, findings: Findings) -> bool:
    if tuple(row) != ROW_KEYS:
        findings.add(Code.MISSING_KEY, where, "it does not have its keys", allowed=", ".join(ROW_KEYS))
        return False
    wrong = [key for key in _COUNT_KEYS if not is_count(row[key])]
    wrong += [key for key in ("question", "prefix_pool_path") if not isinstance(row[key], str)]
    wrong += [key for key in ("prefix_id", "parent_prompt_index") if type(row[key]) is not int or row[key] < -1]
    if row["seed_marker_token_id"] is not None and not is_count(row["seed_marker_token_id"]):
        wrong.append("seed_marker_token_id")
    for key in wrong:
        findings.add(Code.WRONG_TYPE, f"{where}: {key}", f"it says {shown(row[key])}")
    return not wrong


def _expected(index: int, row: Mapping[str, Any], rules: _Rules, lengths: deque[int]) -> dict[str, Any]:
    """What a row's figures must be, given its length, its prefix and its parent."""
    tokens, prefix, parent = row["actual_token_length"], row["prefix_token_length"], row["parent_prompt_index"]
    expected: dict[str, Any] = {
        "answer": ANSWER,
        "target_token_length": tokens,
        "prefix_id": parent,
        "prefix_candidate_count": rules.window,
    }
    if index == 0:
        return expected | {
            "parent_prompt_index": -1,
            "prefix_token_length": 0,
            "constructed_prefix_token_length": tokens,
            "seed_token_length": 0,
            "tail_token_length": 0,
            "seed_marker_token_id": None,
        }
    if not index - len(lengths) <= parent < index:
        return expected | {"parent_prompt_index": f"{index - len(lengths)} … {index - 1}"}
    longest = min(tokens - 1, lengths[parent - index])
    if tokens >= rules.block_size:
        prefix -= prefix % rules.block_size
    seed = min(rules.block_size, tokens - prefix)
    return expected | {
        "prefix_token_length": min(prefix, longest),
        "constructed_prefix_token_length": row["prefix_token_length"],
        "seed_token_length": seed,
        "tail_token_length": tokens - prefix - seed,
    }


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = parse_json(line)
            except ValueError as error:
                raise ArtifactError.of(Code.INVALID_JSON, f"{path.name} line {number}", f"it {error}") from None
            if not isinstance(row, dict):
                raise ArtifactError.of(Code.INVALID_JSON, f"{path.name} line {number}", "it is not a JSON object")
            yield row


def _compare(where: str, expected: object, found: object, findings: Findings) -> None:
    if type(expected) is not type(found) or expected != found:
        findings.add(Code.WRONG_VALUE, where, f"it says {shown(found)}", allowed=shown(expected))


def _compare_deep(where: str, claimed: object, found: object, findings: Findings) -> None:
    if claimed != found:
        findings.add(
            Code.DEEP_CHECK, where, f"the file says {claimed}, but encoding and replaying the prompts gives {found}"
        )
