"""Text data sets: rows, manifest sections and rules. Theory is a plan, and the plan follows from the Scenario alone.

So everything that is not text is proven by planning again from the recorded configuration: lengths, groups, order,
ranks, shared lengths, hits, output lengths, trajectory and every figure of manifest and analysis. What the texts are is
proven by their tokens, deeply: every prompt is encoded again and replayed through a cache that knows nothing of the
plan. Token counts are integers; rates are divided last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.datasets.format.documents import is_count, is_sha256
from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
from ais_bench_prefix_cache.datasets.format.kind import (
    Content,
    DataSetKind,
    DeepCheck,
    Inspection,
    JsonRow,
    Ledger,
    Preparation,
    Sources,
    Warnings,
)
from ais_bench_prefix_cache.datasets.format.manifest import SOURCE_KEYS
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.recorded import csv_rules, recorded_scenario
from ais_bench_prefix_cache.datasets.format.rows import (
    ANSWER,
    FreeSha256,
    FreeText,
    Row,
    list_of,
    read_rows,
    request_id,
    request_row,
)
from ais_bench_prefix_cache.datasets.format.writing import FileRecord
from ais_bench_prefix_cache.datasets.text.plan_sections import (
    COLLISION_STATUS,
    PrefixOrigin,
    divergence_section,
    dp_section,
    groups_section,
    plan_warnings,
    prefix_cache_section,
    prepared_analysis,
    requests_section,
    warmup_section,
)
from ais_bench_prefix_cache.datasets.text.prompt_set import PromptSet, WarmupPrompt
from ais_bench_prefix_cache.datasets.text.recorded_lengths import with_lengths_of_rows
from ais_bench_prefix_cache.datasets.text.request_seeds import request_random_seed
from ais_bench_prefix_cache.datasets.text.sizes import plan_if_it_fits, require_room
from ais_bench_prefix_cache.datasets.text.written_elsewhere import lacking_proofs, verify_recorded, written_elsewhere
from ais_bench_prefix_cache.exact_text.token_digests import token_ids_sha256
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.findings import Findings
from ais_bench_prefix_cache.foundation.names import NO_RANK, group_name
from ais_bench_prefix_cache.foundation.telling import ProgressBar, no_bar
from ais_bench_prefix_cache.foundation.token_share import TokenShare
from ais_bench_prefix_cache.kvcache.replay import SequentialReplay
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.planning.summary import inspect_summary
from ais_bench_prefix_cache.scenario.model import CorpusSelection, Scenario

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

ROWS_HELD = 4096

TokenIds = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class TextRow(Row):
    """A row of ``full.jsonl``. Lengths are tokens with the special tokens that the endpoint adds.

    ``gsm_indices`` and ``gsm_hashes`` name corpus rows; the three digests are of token ids.
    """

    request_id: str
    sequence_index: int
    group_id: str
    occurrence_index_within_group: int
    dp_rank: int | None
    lane_sequence: int | None
    target_input_tokens: int
    actual_input_tokens: int
    max_tokens: int
    shared_prefix_tokens: int
    seed_tokens: int
    natural_suffix_tokens: int
    question: FreeText
    answer: str
    gsm_indices: Annotated[list[int], list_of(is_count, "a list of row numbers")]
    gsm_hashes: Annotated[list[str], list_of(is_sha256, "a list of digests")]
    canonical_prefix_sha256: str
    seed_sha256: FreeSha256
    request_random_seed: int
    watermark_before: int
    theoretical_hit_tokens: int
    watermark_after: int
    theoretical_hit_rate: float
    divergence_block_sha256: FreeSha256
    divergence_unique: bool
    collision_status: str


class TextLedger(Ledger):
    """Everything but the texts and their digests follows from the plan."""

    def __init__(
        self,
        scenario: Scenario,
        plan: Plan,
        prefixes: Sequence[PrefixOrigin],
        warmups: Sequence[WarmupPrompt],
        *,
        first: int = 0,
    ) -> None:
        """``prefixes`` are those of all groups, ``warmups`` those of the groups that share anything.

        ``plan`` may be a range of a plan that begins with the request ``first``: its rows are then all that is known.
        """
        self._first = first
        self.count = len(plan)
        self.plan = plan
        self._scenario = scenario
        self.prefixes = tuple(prefixes)
        self._warmups = warmups
        self._seed_digests: set[str] = set()
        self._divergence_digests: set[str] = set()
        self._corpus: dict[int, str] = {}
        self._selected = _selected_rows(scenario.corpus.selection)
        self._selected_by_group = {
            group: _selected_rows(override.corpus_selection)
            for group, override in scenario.prefix_cache.groups.overrides.items()
            if override.corpus_selection is not None
        }
        for prefix in prefixes:
            self._corpus.update(zip(prefix.corpus_indices, prefix.corpus_sha256, strict=True))
        self._columns_from = -1
        self._columns: list[tuple[int, ...]] = []

    def row(
        self,
        index: int,
        text: str,
        *,
        corpus_indices: list[int],
        corpus_sha256: list[str],
        seed_sha256: str,
        divergence_sha256: str,
    ) -> TextRow:
        """The row of one prompt."""
        number, group, occurrence, rank, lane, inputs, max_tokens, shared, hits, before, after = self._planned(index)
        return TextRow(
            request_id=request_id(index),
            sequence_index=index,
            group_id=group_name(group),
            occurrence_index_within_group=occurrence,
            dp_rank=None if rank == NO_RANK else rank,
            lane_sequence=None if lane == NO_RANK else lane,
            target_input_tokens=inputs,
            actual_input_tokens=inputs,
            max_tokens=max_tokens,
            shared_prefix_tokens=shared,
            seed_tokens=self.plan.seed_tokens,
            natural_suffix_tokens=inputs - shared - self.plan.seed_tokens,
            question=text,
            answer=ANSWER,
            gsm_indices=corpus_indices,
            gsm_hashes=corpus_sha256,
            canonical_prefix_sha256=self.prefixes[group].sha256,
            seed_sha256=seed_sha256,
            request_random_seed=request_random_seed(self._scenario.run.random_seed, number),
            watermark_before=before,
            theoretical_hit_tokens=hits,
            watermark_after=after,
            theoretical_hit_rate=hits / inputs,
            divergence_block_sha256=divergence_sha256,
            divergence_unique=True,
            collision_status=COLLISION_STATUS,
        )

    def _planned(self, index: int) -> tuple[int, ...]:
        """The columns of one request; a few thousand rows of them are held as Python's integers at a time."""
        place = (index - self._first) % ROWS_HELD
        start = index - self._first - place
        if start != self._columns_from:
            plan, held = self.plan, slice(start, start + ROWS_HELD)
            columns = (
                plan.generation_index,
                plan.group,
                plan.occurrence_in_group,
                plan.dp_rank,
                plan.lane_sequence,
                plan.input_tokens,
                plan.max_tokens,
                plan.shared_prefix_tokens,
                plan.hit_tokens,
                plan.watermark_before,
                plan.watermark_after,
            )
            self._columns = list(zip(*(column[held].tolist() for column in columns), strict=True))
            self._columns_from = start
        return self._columns[place]

    def expected(self, index: int, row: JsonRow) -> TextRow:
        return self.row(
            index,
            row["question"],
            corpus_indices=row["gsm_indices"],
            corpus_sha256=row["gsm_hashes"],
            seed_sha256=row["seed_sha256"],
            divergence_sha256=row["divergence_block_sha256"],
        )

    def companions(self, index: int, row: JsonRow) -> tuple[JsonRow, ...]:
        return (request_row(row, self._scenario.output_key),)

    def add(self, index: int, row: JsonRow, where: str, findings: Findings) -> None:
        self._seed_digests.add(row["seed_sha256"])
        self._divergence_digests.add(row["divergence_block_sha256"])
        if len(row["gsm_indices"]) != len(row["gsm_hashes"]):
            message = f"it has {len(row['gsm_hashes'])} digests"
            findings.add(Code.WRONG_VALUE, f"{where}: gsm_hashes", message, allowed="one for each of gsm_indices")
            return
        group = self._planned(index)[1]
        self._check_origins(group, row["gsm_indices"], row["gsm_hashes"], where, findings)

    def _check_origins(
        self, group: int, rows: Sequence[int], digests: Sequence[str], where: str, findings: Findings
    ) -> None:
        """Rows of the corpus are those that the group's selection names, and each has one digest."""
        selected = self._selected_by_group.get(group, self._selected)
        for row, digest in zip(rows, digests, strict=True):
            if self._corpus.setdefault(row, digest) != digest:
                message = f"row {row} of the corpus has another digest elsewhere"
                findings.add(Code.WRONG_VALUE, f"{where}: gsm_hashes", message)
            if selected is not None and row not in selected and digest not in selected:
                message = f"row {row} of the corpus is not one that {group_name(group)} takes"
                findings.add(Code.WRONG_VALUE, f"{where}: gsm_indices", message)

    def finish(self, name: str, findings: Findings) -> None:
        for group, prefix in enumerate(self.prefixes):
            where = f"groups.{group_name(group)}"
            self._check_origins(group, prefix.corpus_indices, prefix.corpus_sha256, where, findings)
        for key, digests in (
            ("seed_sha256", self._seed_digests),
            ("divergence_block_sha256", self._divergence_digests),
        ):
            repeated = len(self.plan) - len(digests)
            if repeated > 0:
                message = f"{repeated} rows repeat the {key} of another row"
                findings.add(Code.NOT_UNIQUE, name, message, allowed="all different")

    def sections(self, artifacts: Mapping[str, Any]) -> dict[str, Any]:
        plan = self.plan
        return {
            "requests": requests_section(plan),
            "prefix_cache": prefix_cache_section(plan, self._scenario.validation.target_warning_pp),
            "groups": groups_section(plan, self.prefixes),
            "dp": dp_section(plan),
            "warmup": warmup_section(plan, self._warmups),
            "divergence": divergence_section(plan),
        }

    def analysis(self, run_id: str, recorded: Warnings | None) -> dict[str, Any]:
        return prepared_analysis(run_id, self.plan, plan_warnings(self._scenario, self.plan))


class TextDeepCheck(DeepCheck):
    """Every length, that shared tokens are the group's canonical ones, the digests, and the hits of every request.

    In warm-up mode the warm-up prompts are replayed first, and all formal requests go to one cache: that is the
    strictest case, because there they could hit each other.
    """

    def __init__(self, paths: RunPaths, manifest: Mapping[str, Any], findings: Findings) -> None:
        self._full = paths.full
        self._manifest_name = paths.manifest.name
        self._findings = findings
        self._groups: Mapping[str, Any] = manifest["groups"]
        self._warmup_plan: Sequence[JsonRow] = manifest["warmup"]["plan"]
        self._block_size: int = manifest["tokenizer"]["block_size"]
        self._replay = SequentialReplay(block_size=self._block_size, ranks=manifest["dp"]["size"])
        self._prefixes: dict[str, TokenIds] = {}
        self._prompts = 0
        self._share = TokenShare()

    def texts(self) -> Iterator[tuple[str, Callable[[Sequence[int]], None]]]:
        for entry in self._warmup_plan:
            yield entry["prompt"], partial(self._warm, entry)
        for row in read_rows(self._full):
            yield row["question"], partial(self._judge, row)

    def _warm(self, entry: JsonRow, token_ids: Sequence[int]) -> None:
        where, ids = f"{self._manifest_name}: warmup.plan {entry['request_id']}", np.array(token_ids, dtype=np.uint32)
        self._compare(where, "input_tokens", entry["input_tokens"], len(ids))
        self._check_prefix(where, entry["group_id"], ids[: entry["shared_prefix_tokens"]])
        self._replay.run(entry["dp_rank"], ids, counted=False)

    def _judge(self, row: JsonRow, token_ids: Sequence[int]) -> None:
        where, ids = f"{self._full.name} line {row['sequence_index'] + 1}", np.array(token_ids, dtype=np.uint32)
        shared, seed = row["shared_prefix_tokens"], row["seed_tokens"]
        self._compare(where, "actual_input_tokens", row["actual_input_tokens"], len(ids))
        self._check_prefix(where, row["group_id"], ids[:shared])
        self._compare(where, "seed_sha256", row["seed_sha256"], token_ids_sha256(ids[shared : shared + seed]))
        divergence = token_ids_sha256(ids[shared : shared + self._block_size])
        self._compare(where, "divergence_block_sha256", row["divergence_block_sha256"], divergence)
        hits = self._replay.run(row["dp_rank"] or 0, ids)
        self._compare(where, "theoretical_hit_tokens", row["theoretical_hit_tokens"], hits)
        self._share += TokenShare(len(ids), hits)
        self._prompts += 1

    def report(self) -> dict[str, Any]:
        for name, group in self._groups.items():
            seen = self._prefixes.get(name, np.empty(0, dtype=np.uint32))
            where = f"{self._manifest_name}: groups.{name}"
            self._compare(where, "canonical_prefix_tokens", group["canonical_prefix_tokens"], len(seen))
            if group["canonical_prefix_tokens"] == len(seen):
                self._compare(
                    where, "canonical_prefix_sha256", group["canonical_prefix_sha256"], token_ids_sha256(seen)
                )
        return {
            "prompts": self._prompts,
            "warmup_prompts": len(self._warmup_plan),
            "tokens": self._share.total,
            "hit_tokens": self._share.shared,
            "hit_rate": self._share.rate,
        }

    def _check_prefix(self, where: str, group: str, shared: TokenIds) -> None:
        """``shared`` against what the group has shared so far; the longer one is kept."""
        known = self._prefixes.get(group)
        if known is None or len(shared) > len(known):
            self._prefixes[group] = shared.copy()
        if known is not None:
            common = min(len(known), len(shared))
            different = np.flatnonzero(known[:common] != shared[:common])
            if different.size:
                message = f"its token {int(different[0])} is not that of the canonical prefix of {group}"
                self._findings.add(Code.PREFIX_DIFFERS, where, message)

    def _compare(self, where: str, key: str, claimed: object, found: object) -> None:
        if claimed != found:
            message = f"the file says {claimed}, but encoding and replaying the prompts gives {found}"
            self._findings.add(Code.DEEP_CHECK, f"{where}: {key}", message)


class TextKind(DataSetKind):
    """See the module's docstring."""

    name = "text"
    manifest_keys = (
        *SOURCE_KEYS,
        "requests",
        "prefix_cache",
        "groups",
        "dp",
        "warmup",
        "divergence",
        "artifacts",
        "content_sha256",
    )
    row_type = TextRow

    def row_files(self, paths: RunPaths, manifest: Mapping[str, Any]) -> dict[str, Path]:
        return {"full": paths.full, "requests": paths.requests}

    def inspect(self, scenario: Scenario, bar: ProgressBar = no_bar) -> Inspection:
        plan = plan_if_it_fits(scenario, bar)
        trajectory = plan.trajectory
        note = (
            f"{len(plan)} requests, {plan.total_input_tokens} input tokens, planned by {trajectory.path} "
            f"({trajectory.status}), theoretical hit rate {plan.theoretical_hit_rate:.6f}"
        )
        summary, warnings = inspect_summary(scenario, plan), plan_warnings(scenario, plan)
        return Inspection(summary, warnings, note, len(plan), plan.theoretical_hit_rate)

    def prepare(self, preparation: Preparation) -> Content:
        scenario = preparation.scenario
        plan = plan_if_it_fits(scenario)
        require_room(scenario, plan)
        sources = preparation.load()
        # Only who makes prompts waits for what that needs.
        from ais_bench_prefix_cache.datasets.text.assembly import VerifyMode, build_prompt_set
        from ais_bench_prefix_cache.datasets.text.line_maker import text_batches

        verify: VerifyMode = "full" if preparation.check_whole else "proof"
        prompts = build_prompt_set(scenario, plan, sources.tokenizer, sources.corpus, verify=verify)
        content = text_content(scenario, plan, prompts)
        assert isinstance(content.ledger, TextLedger)
        batches = text_batches(scenario, prompts, content.ledger, preparation.workers, preparation.ray)
        proof = sources.tokenizer.join_proof
        alone = None if proof.proven else f"nothing proves that words are encoded one by one: {proof.reason}"
        return replace(content, batches=batches, one_process=alone)

    def ledger(
        self, paths: RunPaths, manifest: Mapping[str, Any], records: Mapping[str, FileRecord], findings: Findings
    ) -> TextLedger | None:
        rows = records["full"].rows if "full" in records else None
        scenario = _recorded(paths, manifest, rows, findings)
        if scenario is None:
            return None
        where = paths.manifest.name
        groups = scenario.prefix_cache.groups.count
        prefixes = _recorded_prefixes(manifest.get("groups"), groups, f"{where}: groups", findings)
        if prefixes is None:
            return None
        plan = plan_if_it_fits(scenario)
        warmups = _recorded_warmups(manifest.get("warmup"), plan, f"{where}: warmup.plan", findings)
        return None if warmups is None else TextLedger(scenario, plan, prefixes, warmups)

    def planned_elsewhere(self, manifest: Mapping[str, Any]) -> list[str]:
        return lacking_proofs(manifest) if written_elsewhere(manifest) else []

    def verify_recorded(self, path: Path, manifest: dict[str, Any], content: bytes) -> VerifiedDataSet:
        return verify_recorded(self, path, manifest, content)

    def not_proven(self, manifest: Mapping[str, Any]) -> list[str]:
        if lacking := self.planned_elsewhere(manifest):
            return lacking
        if not any(True for _ in csv_rules(manifest["effective_config"])):
            return []
        return ["that the lengths are those of the CSV file that the Scenario named, which is not part of the data set"]

    def rebuild(
        self, paths: RunPaths, manifest: Mapping[str, Any], sources: Sources, trace: Path | None
    ) -> Content | None:
        from ais_bench_prefix_cache.datasets.text.assembly import build_prompt_set
        from ais_bench_prefix_cache.datasets.text.line_maker import text_batches

        if written_elsewhere(manifest):
            return None
        scenario = _recorded(paths, manifest, manifest["requests"]["count"], Findings())
        assert scenario is not None, "the data set has been verified"
        plan = plan_if_it_fits(scenario)
        prompts = build_prompt_set(scenario, plan, sources.tokenizer, sources.corpus)
        content = text_content(scenario, plan, prompts)
        assert isinstance(content.ledger, TextLedger)
        return replace(content, batches=text_batches(scenario, prompts, content.ledger, sources.workers))

    def deep_check(
        self, paths: RunPaths, manifest: Mapping[str, Any], tokenizer: PromptTokenizer, findings: Findings
    ) -> TextDeepCheck:
        return TextDeepCheck(paths, manifest, findings)


KIND = TextKind()


def _recorded(paths: RunPaths, manifest: Mapping[str, Any], rows: int | None, findings: Findings) -> Scenario | None:
    """The Scenario that gives ``rows`` rows; None, with findings, where there is none."""
    scenario = recorded_scenario(paths, manifest, KIND.scenario_rules, findings)
    if scenario is None or rows is None:
        return None
    if rows != scenario.requests.count:
        # Planning takes what the configuration asks for: more than the files hold is not worth it.
        findings.add(Code.ROW_COUNT, paths.full.name, f"it has {rows} rows", allowed=str(scenario.requests.count))
        return None
    try:
        return with_lengths_of_rows(scenario, manifest["effective_config"], paths.full)
    except ArtifactError as error:
        findings.extend(error.problems)
        return None


def _selected_rows(selection: CorpusSelection) -> frozenset[int | str] | None:
    """The numbers and digests of the corpus rows that a selection names; None where they are drawn."""
    if selection.mode == "random":
        return None
    return frozenset([*selection.indices, *(digest.lower() for digest in selection.question_sha256)])


def text_content(scenario: Scenario, plan: Plan, prompts: PromptSet) -> Content:
    """The data set of a plan and its prompts."""
    prefixes = [
        PrefixOrigin(prefix.sha256, tuple(prefix.corpus_indices), tuple(prefix.corpus_sha256))
        for prefix in prompts.canonical_prefixes
    ]
    ledger = TextLedger(scenario, plan, prefixes, prompts.warmup_prompts)
    note = f"{len(plan)} requests, planned by {plan.trajectory.path} ({plan.trajectory.status})"
    return Content(_rows(prompts, ledger), len(plan), ledger, (note,))


def _rows(prompts: PromptSet, ledger: TextLedger) -> Iterator[TextRow]:
    for index, prompt in enumerate(prompts):
        row = ledger.row(
            index,
            prompt.text,
            corpus_indices=list(prompt.corpus_indices),
            corpus_sha256=list(prompt.corpus_sha256),
            seed_sha256=prompt.seed_sha256,
            divergence_sha256=prompt.divergence_block_sha256,
        )
        if (prompt.sequence_index, prompt.actual_input_tokens) != (index, row.target_input_tokens):
            raise ValueError(f"prompt {prompt.sequence_index} is not the one that is planned at {index}")
        yield row


def _recorded_prefixes(groups: Any, count: int, where: str, findings: Findings) -> list[PrefixOrigin] | None:
    """What a manifest says of the origin of the canonical prefixes; None, with findings, where it cannot be that."""
    if not isinstance(groups, dict) or len(groups) != count or list(groups) != [group_name(n) for n in range(count)]:
        allowed = f"group-0 … group-{count - 1}"
        findings.add(Code.WRONG_VALUE, where, "it does not hold the configured groups", allowed=allowed)
        return None
    prefixes = []
    for name, group in groups.items():
        section = group if isinstance(group, dict) else {}
        digest, indices, hashes = (
            section.get(key) for key in ("canonical_prefix_sha256", "gsm_indices", "gsm_question_sha256")
        )
        if (
            not is_sha256(digest)
            or not isinstance(indices, list)
            or not isinstance(hashes, list)
            or not all(map(is_count, indices))
            or not all(map(is_sha256, hashes))
            or len(indices) != len(hashes)
        ):
            message = (
                "its canonical prefix has no digest, or gsm_indices and gsm_question_sha256 are no lists that match"
            )
            findings.add(Code.WRONG_TYPE, f"{where}.{name}", message)
            return None
        prefixes.append(PrefixOrigin(digest, tuple(indices), tuple(hashes)))
    return prefixes


def _recorded_warmups(section: Any, plan: Plan, where: str, findings: Findings) -> list[WarmupPrompt] | None:
    """The warm-up prompts, from the entries for rank 0; None, with findings, where they are not those of the plan.

    A group whose requests share nothing has nothing to warm and no entry.
    """
    if plan.mode != "warmup":
        return []
    shared = [(group, tokens) for group, tokens in enumerate(plan.canonical_prefix_tokens.tolist()) if tokens]
    entries = section.get("plan") if isinstance(section, dict) else None
    message = "it does not hold one prompt for each rank and group with a shared prefix"
    if not isinstance(entries, list) or len(entries) != len(shared) * plan.dp_size:
        findings.add(Code.WRONG_VALUE, where, message)
        return None
    prompts = []
    for (group, prefix_tokens), entry in zip(shared, entries[:: plan.dp_size], strict=True):
        text, tokens = (entry.get("prompt"), entry.get("input_tokens")) if isinstance(entry, dict) else (None, None)
        if not isinstance(text, str) or not is_count(tokens) or not prefix_tokens <= tokens < 1 << 31:
            findings.add(Code.WRONG_VALUE, where, message)
            return None
        prompts.append(WarmupPrompt(group, text, tokens, prefix_tokens))
    return prompts
