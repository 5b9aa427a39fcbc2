"""Text data sets that another generator wrote: an older version of this one, or the plugin of the contract.

This version would plan them otherwise, so their plan cannot be made again and compared. What is checked is what they
say of themselves: sizes and digests of the files, every row against its partner and the rows before it in its lane, and
all totals against the rows. What that does not prove, :func:`lacking_proofs` says.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.datasets.format.document_checks import ANALYSIS_STATUSES, check_artifacts_section, value_in
from ais_bench_prefix_cache.datasets.format.documents import (
    DIGEST_KEY,
    digest_problems,
    is_count,
    is_sha256,
    read_document,
)
from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
from ais_bench_prefix_cache.datasets.format.file_records import file_records
from ais_bench_prefix_cache.datasets.format.rows import parsed_row, request_row
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.foundation.regular_files import open_regular
from ais_bench_prefix_cache.foundation.token_share import TokenShare

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.format.kind import DataSetKind
    from ais_bench_prefix_cache.datasets.format.paths import RunPaths

NOT_PROVEN = "that its configuration and seed give these groups, lengths, order and hits: another generator wrote it"
NO_DIGEST = "that manifest and analysis are as they were written: they carry no digest of their content"

_COUNTS = (
    "sequence_index",
    "occurrence_index_within_group",
    "target_input_tokens",
    "actual_input_tokens",
    "max_tokens",
    "shared_prefix_tokens",
    "seed_tokens",
    "natural_suffix_tokens",
    "watermark_before",
    "theoretical_hit_tokens",
    "watermark_after",
)
_TEXTS = ("request_id", "group_id", "question", "answer")
_DIGESTS = ("canonical_prefix_sha256", "seed_sha256", "divergence_block_sha256")


def written_elsewhere(manifest: Mapping[str, Any]) -> bool:
    """Whether its plan cannot be made again here: another version wrote it, or it has only what the contract asks for.

    One that lacks only the digest is ours, and damaged.
    """
    additions = DIGEST_KEY in manifest or value_in(manifest, "prefix_cache.trajectory") is not None
    return manifest.get("plugin_version") != __version__ or not additions


def lacking_proofs(manifest: Mapping[str, Any]) -> list[str]:
    """What nothing proves of a data set that was written elsewhere."""
    return [NOT_PROVEN] if DIGEST_KEY in manifest else [NOT_PROVEN, NO_DIGEST]


def verify_recorded(kind: DataSetKind, path: Path, manifest: dict[str, Any], content: bytes) -> VerifiedDataSet:
    """Verify what such a data set says of itself. Raises :class:`ArtifactError` with all that is wrong."""
    paths = kind.paths(path)
    row_files = kind.row_files(paths, manifest) or {}
    findings = Findings()
    if DIGEST_KEY in manifest:
        findings.extend(digest_problems(path, manifest, content, what="manifest"))
    missing = [key for key in kind.manifest_keys if key not in manifest and key not in (DIGEST_KEY, "benchmark_mode")]
    if missing:
        findings.add(Code.MISSING_KEY, path.name, f"it lacks {', '.join(missing)}")
    for key, wanted in (("status", "prepared"), ("run_id", paths.run_id)):
        if manifest.get(key) != wanted:
            findings.add(Code.WRONG_VALUE, f"{path.name}: {key}", f"it says {shown(manifest.get(key))}", allowed=wanted)
    records = file_records(row_files, findings)
    check_artifacts_section(kind, paths, manifest, row_files, records, findings)
    analysis = _analysis(paths, findings)
    rows = _Rows(paths, manifest, findings)
    if len(records) == len(row_files) and not missing:
        rows.read()
        rows.check_totals(analysis)
    findings.raise_if_any()
    return VerifiedDataSet(kind, manifest, analysis, paths, rows.count)


def _analysis(paths: RunPaths, findings: Findings) -> dict[str, Any]:
    try:
        analysis, content = read_document(paths.analysis, what="analysis")
    except ArtifactError as error:
        findings.extend(error.problems)
        return {}
    if DIGEST_KEY in analysis:
        findings.extend(digest_problems(paths.analysis, analysis, content, what="analysis"))
    if analysis.get("status") not in ANALYSIS_STATUSES:
        message = f"it says {shown(analysis.get('status'))}"
        findings.add(Code.WRONG_VALUE, f"{paths.analysis.name}: status", message, allowed=", ".join(ANALYSIS_STATUSES))
    return analysis


class _Rows:
    """The rows of both files, one after the other, and what they add up to."""

    def __init__(self, paths: RunPaths, manifest: Mapping[str, Any], findings: Findings) -> None:
        self._paths = paths
        self._manifest = manifest
        self._findings = findings
        self._cold = value_in(manifest, "prefix_cache.mode") == "cold"
        size = value_in(manifest, "dp.size")
        self._ranks = size if is_count(size) and size else 1
        groups = manifest.get("groups")
        self._groups = groups if isinstance(groups, dict) else {}
        key = value_in(manifest, "effective_config.output.output_key")
        self._output_key = key if isinstance(key, str) else None
        self.count = 0
        self._total = TokenShare()
        self._by_group: defaultdict[str, TokenShare] = defaultdict(TokenShare)
        self._by_rank: defaultdict[str, TokenShare] = defaultdict(TokenShare)
        self._occurrences: Counter[str] = Counter()
        self._lanes: Counter[tuple[str, int]] = Counter()
        self._watermarks: dict[tuple[str, int], int] = {}
        self._names: set[str] = set()
        self._seeds: set[str] = set()

    def read(self) -> None:
        full, requests = self._paths.full, self._paths.requests
        with ExitStack() as stack:
            first, second = (stack.enter_context(open_regular(path)) for path in (full, requests))
            for line in first:
                where = f"{full.name} line {self.count + 1}"
                row, partner = parsed_row(line, where, self._findings), second.readline()
                if row is not None and self._well_formed(row, where):
                    self._judge(row, where)
                    there = f"{requests.name} line {self.count + 1}"
                    found = parsed_row(partner, there, self._findings) if partner else None
                    if found != request_row(row, self._output_key):
                        self._say(Code.CORRESPONDENCE, there, f"it is not the request of {where}")
                self.count += 1
            if second.readline():
                self._say(Code.ROW_COUNT, requests.name, f"it has more rows than {full.name} ({self.count})")

    def check_totals(self, analysis: Mapping[str, Any]) -> None:
        where, total = self._paths.manifest.name, self._total
        documents: tuple[tuple[str, Mapping[str, Any], str, int | float], ...] = (
            (where, self._manifest, "requests.count", self.count),
            (where, self._manifest, "requests.total_input_tokens", total.total),
            (where, self._manifest, "prefix_cache.theoretical_hit_rate", total.rate),
            (self._paths.analysis.name, analysis, "theoretical_hit_rate", total.rate),
            (self._paths.analysis.name, analysis, "theory.input_tokens", total.total),
            (self._paths.analysis.name, analysis, "theory.hit_tokens", total.shared),
        )
        shares = [(f"theory.groups.{name}", share) for name, share in self._by_group.items()]
        shares += [(f"theory.dp.{rank}", share) for rank, share in self._by_rank.items()]
        for place, share in shares:
            documents += ((self._paths.analysis.name, analysis, f"{place}.input_tokens", share.total),)
            documents += ((self._paths.analysis.name, analysis, f"{place}.hit_tokens", share.shared),)
        for name, document, place, wanted in documents:
            found = value_in(document, place)
            if not _same(found, wanted):
                self._say(Code.WRONG_VALUE, f"{name}: {place}", f"it says {shown(found)}", str(wanted))

    def _well_formed(self, row: Mapping[str, Any], where: str) -> bool:
        ranks = (None,) if not self._cold else range(self._ranks)
        kinds = (
            (_COUNTS, lambda value: is_count(value) and value < 1 << 31, "a whole number"),
            (_TEXTS, lambda value: isinstance(value, str), "a text"),
            (_DIGESTS, is_sha256, "a SHA-256"),
            (("dp_rank",), lambda value: value in ranks and type(value) is not bool, "a rank, null without"),
        )
        wrong = [
            (key, allowed) for keys, holds, allowed in kinds for key in keys if key not in row or not holds(row[key])
        ]
        for key, allowed in wrong:
            self._say(Code.WRONG_TYPE, f"{where}: {key}", f"it says {shown(row.get(key))}", allowed)
        return not wrong

    def _judge(self, row: Mapping[str, Any], where: str) -> None:
        """Each value that the others, the rows before and the manifest's groups decide."""
        group, rank = row["group_id"], row["dp_rank"]
        tokens, shared = row["actual_input_tokens"], row["shared_prefix_tokens"]
        lane = (group, rank or 0)
        occurrence = self._occurrences[group]
        canonical = self._groups.get(group)
        prefix = canonical if isinstance(canonical, dict) else {}
        known = prefix.get("canonical_prefix_tokens")
        before = self._watermarks.get(lane, 0) if self._cold else known
        after = max(before, shared) if self._cold and isinstance(before, int) else known
        hits = min(before, shared) if isinstance(before, int) else None
        wanted = {
            "sequence_index": self.count,
            "occurrence_index_within_group": occurrence,
            "dp_rank": occurrence % self._ranks if self._cold else None,
            "lane_sequence": self._lanes[lane] if self._cold else None,
            "target_input_tokens": tokens,
            "natural_suffix_tokens": tokens - shared - row["seed_tokens"],
            "canonical_prefix_sha256": prefix.get("canonical_prefix_sha256"),
            "watermark_before": before,
            "theoretical_hit_tokens": hits,
            "watermark_after": after,
            "theoretical_hit_rate": row["theoretical_hit_tokens"] / tokens if tokens else None,
            "divergence_unique": True,
            "collision_status": "pass",
        }
        for key, value in wanted.items():
            if not _same(row.get(key), value):
                self._say(Code.WRONG_VALUE, f"{where}: {key}", f"it says {shown(row.get(key))}", shown(value))
        for key, seen in (("request_id", self._names), ("seed_sha256", self._seeds)):
            if row[key] in seen:
                self._say(Code.NOT_UNIQUE, f"{where}: {key}", "another row has it, too", "all different")
            seen.add(row[key])
        share = TokenShare(tokens, row["theoretical_hit_tokens"])
        self._total += share
        self._by_group[group] += share
        if self._cold:
            self._by_rank[str(rank)] += share
            self._watermarks[lane] = row["watermark_after"]
        self._occurrences[group] += 1
        self._lanes[lane] += 1

    def _say(self, code: Code, where: str, message: str, allowed: str | None = None) -> None:
        self._findings.add(code, where, message, allowed=allowed)


def _same(found: object, wanted: object) -> bool:
    """Rates may have been rounded by another program."""
    if isinstance(wanted, float):
        return isinstance(found, (int, float)) and math.isclose(found, wanted, rel_tol=0, abs_tol=1e-9)
    return found == wanted and type(found) is type(wanted)
