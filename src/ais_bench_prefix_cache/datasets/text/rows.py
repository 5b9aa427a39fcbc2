"""The rows of ``full.jsonl`` and ``requests.jsonl``: one JSON object a line, keys in the contract's order.

Lines end with a newline and hold characters as themselves, except U+2028, U+2029 and U+0085: some readers take these
for the end of a line, so they are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.names import NO_RANK, group_name
from ais_bench_prefix_cache.foundation.strict_json import parse_json

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any

    from ais_bench_prefix_cache.datasets.text.prompt_set import CanonicalPrefix, PromptSet
    from ais_bench_prefix_cache.planning.plan import Plan

ANSWER = "none"
COLLISION_STATUS = "pass"
_TEXTS = json.JSONEncoder(ensure_ascii=False)

FULL_KEYS = (
    "request_id",
    "sequence_index",
    "group_id",
    "occurrence_index_within_group",
    "dp_rank",
    "lane_sequence",
    "target_input_tokens",
    "actual_input_tokens",
    "max_tokens",
    "shared_prefix_tokens",
    "seed_tokens",
    "natural_suffix_tokens",
    "question",
    "answer",
    "gsm_indices",
    "gsm_hashes",
    "canonical_prefix_sha256",
    "seed_sha256",
    "request_random_seed",
    "watermark_before",
    "theoretical_hit_tokens",
    "watermark_after",
    "theoretical_hit_rate",
    "divergence_block_sha256",
    "divergence_unique",
    "collision_status",
)


def request_id(sequence_index: int) -> str:
    """The id by which a request is known everywhere, as ``request-00000000``."""
    return f"request-{sequence_index:08d}"


def full_rows(plan: Plan, prompts: PromptSet) -> Iterator[dict[str, Any]]:
    """The rows of ``full.jsonl`` in send order."""
    prefixes: dict[int, CanonicalPrefix] = {prefix.group: prefix for prefix in prompts.canonical_prefixes}
    seed_tokens = plan.seed_tokens
    columns = zip(
        plan.group.tolist(),
        plan.occurrence_in_group.tolist(),
        plan.dp_rank.tolist(),
        plan.lane_sequence.tolist(),
        plan.input_tokens.tolist(),
        plan.max_tokens.tolist(),
        plan.shared_prefix_tokens.tolist(),
        plan.hit_tokens.tolist(),
        plan.watermark_before.tolist(),
        plan.watermark_after.tolist(),
        strict=True,
    )
    for index, (columns_of_row, prompt) in enumerate(zip(columns, prompts, strict=True)):
        group, occurrence, dp_rank, lane, inputs, max_tokens, shared, hits, before, after = columns_of_row
        if prompt.sequence_index != index:
            raise ValueError(f"prompt {prompt.sequence_index} came in place of prompt {index}")
        yield {
            "request_id": request_id(index),
            "sequence_index": index,
            "group_id": group_name(group),
            "occurrence_index_within_group": occurrence,
            "dp_rank": None if dp_rank == NO_RANK else dp_rank,
            "lane_sequence": None if lane == NO_RANK else lane,
            "target_input_tokens": inputs,
            "actual_input_tokens": prompt.actual_input_tokens,
            "max_tokens": max_tokens,
            "shared_prefix_tokens": shared,
            "seed_tokens": seed_tokens,
            "natural_suffix_tokens": prompt.natural_suffix_tokens,
            "question": prompt.text,
            "answer": ANSWER,
            "gsm_indices": list(prompt.corpus_indices),
            "gsm_hashes": list(prompt.corpus_sha256),
            "canonical_prefix_sha256": prefixes[group].sha256,
            "seed_sha256": prompt.seed_sha256,
            "request_random_seed": prompt.request_random_seed,
            "watermark_before": before,
            "theoretical_hit_tokens": hits,
            "watermark_after": after,
            "theoretical_hit_rate": hits / inputs,
            "divergence_block_sha256": prompt.divergence_block_sha256,
            "divergence_unique": True,
            "collision_status": COLLISION_STATUS,
        }


def request_row(full_row: Mapping[str, Any], output_key: str | None) -> dict[str, Any]:
    """The row of ``requests.jsonl`` that belongs to a row of ``full.jsonl``."""
    row = {"question": full_row["question"], "answer": full_row["answer"]}
    if output_key is not None:
        row[output_key] = full_row["max_tokens"]
    return row


def render_row(row: Mapping[str, Any]) -> bytes:
    """The line of one row."""
    return _without_line_ends(json.dumps(row, ensure_ascii=False, allow_nan=False)).encode() + b"\n"


def text_in_row(text: str) -> str:
    """How :func:`render_row` writes a text, without the quotes around it: parts of a text may be joined."""
    return _without_line_ends(_TEXTS.encode(text)[1:-1])


def _without_line_ends(line: str) -> str:
    if line.isascii():
        return line
    return line.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\x85", "\\u0085")


def read_full_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a ``full.jsonl`` that has been verified, one by one."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = parse_json(line)
            except ValueError as error:
                raise ArtifactError.of(Code.INVALID_JSON, f"{path} line {number}", f"it {error}") from None
            yield row
