"""Checks of ``full.jsonl`` and ``requests.jsonl``, row by row, and the theory that the rows add up to.

Rows come in bytes. A row as this program writes it matches two regular expressions around its prompt, which fix keys,
order, types and layout at once; the prompt itself is compared with the other file as bytes, so it is decoded only once.
A row that does not match is parsed and told what is wrong with it. Every hit is simulated again from the lengths.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from ais_bench_prefix_cache.artifacts.documents import is_count, is_sha256, parse_json
from ais_bench_prefix_cache.artifacts.findings import Findings, shown
from ais_bench_prefix_cache.artifacts.rows import (
    ANSWER,
    COLLISION_STATUS,
    FULL_KEYS,
    render_row,
    request_id,
    request_row,
)
from ais_bench_prefix_cache.artifacts.theory import GroupTheory, Share, Theory, rate
from ais_bench_prefix_cache.scenario.model import group_name

_COUNT = rb"(0|[1-9][0-9]{0,17})"
_LANE = rb"(null|0|[1-9][0-9]{0,17})"
_SHA256 = rb'"([0-9a-f]{64})"'

_QUESTION_END = b', "answer": "'
_HEAD = re.compile(
    rb'\{"request_id": "request-([0-9]{8,18})", "sequence_index": %(n)b, "group_id": "group-%(n)b"'
    rb', "occurrence_index_within_group": %(n)b, "dp_rank": %(lane)b, "lane_sequence": %(lane)b'
    rb', "target_input_tokens": %(n)b, "actual_input_tokens": %(n)b, "max_tokens": %(n)b'
    rb', "shared_prefix_tokens": %(n)b, "seed_tokens": %(n)b, "natural_suffix_tokens": %(n)b, "question": '
    % {b"n": _COUNT, b"lane": _LANE}
)
_TAIL = re.compile(
    rb', "answer": "none", "gsm_indices": \[((?:(?:0|[1-9][0-9]{0,17})(?:, (?:0|[1-9][0-9]{0,17}))*)?)\]'
    rb', "gsm_hashes": \[((?:"[0-9a-f]{64}"(?:, "[0-9a-f]{64}")*)?)\]'
    rb', "canonical_prefix_sha256": %(sha)b, "seed_sha256": %(sha)b, "request_random_seed": (?:0|[1-9][0-9]{0,38})'
    rb', "watermark_before": %(n)b, "theoretical_hit_tokens": %(n)b, "watermark_after": %(n)b'
    rb', "theoretical_hit_rate": (0\.[0-9]{1,24}|1\.0|[0-9](?:\.[0-9]{1,24})?e-[0-9]{2,3})'
    rb', "divergence_block_sha256": %(sha)b, "divergence_unique": true, "collision_status": "pass"\}\n'
    % {b"n": _COUNT, b"sha": _SHA256}
)

_INTEGER_KEYS = (
    "sequence_index",
    "occurrence_index_within_group",
    "target_input_tokens",
    "actual_input_tokens",
    "max_tokens",
    "shared_prefix_tokens",
    "seed_tokens",
    "natural_suffix_tokens",
    "request_random_seed",
    "watermark_before",
    "theoretical_hit_tokens",
    "watermark_after",
)
_DIGEST_KEYS = ("canonical_prefix_sha256", "seed_sha256", "divergence_block_sha256")
_GROUP_ID = re.compile("group-(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True)
class RowRules:
    """What the manifest's configuration says about every row. ``canonical_prefixes``: (SHA-256, tokens) by group."""

    mode: str
    block_size: int
    seed_tokens: int
    minimum_non_shared_tokens: int
    dp_size: int
    requested_target_hit_rate: float
    output_key: str | None
    canonical_prefixes: Sequence[tuple[str, int]]


class _Row(NamedTuple):
    """The values of one row that theory depends on."""

    request_number: int
    sequence_index: int
    group: int
    occurrence: int
    dp_rank: int | None
    lane_sequence: int | None
    target_tokens: int
    actual_tokens: int
    max_tokens: int
    shared_tokens: int
    seed_tokens: int
    suffix_tokens: int
    corpus_rows: int
    corpus_digests: int
    prefix_sha256: str
    seed_sha256: str
    watermark_before: int
    hit_tokens: int
    watermark_after: int
    hit_rate: float
    divergence_sha256: str


def check_rows(
    full: BinaryIO, requests: BinaryIO, names: tuple[str, str], rules: RowRules, findings: Findings
) -> tuple[Theory, int]:
    """Check every row of both files against ``rules`` and each other; returns what they add up to, and their number.

    ``names`` are the two files' names for messages. Of each row only 16 bytes stay, for the uniqueness of digests.
    """
    replay = _Replay(rules, names[0], findings)
    number = 0
    suffix = b"" if rules.output_key is None else b', "%b": ' % rules.output_key.encode()
    for number, line in enumerate(full, 1):
        request_line = requests.readline()
        parsed = _parse_fast(line)
        if parsed is not None:
            row, question = parsed
            expected = b'{"question": ' + question + b', "answer": "none"'
            if suffix:
                expected += suffix + str(row.max_tokens).encode()
            if request_line != expected + b"}\n":
                _explain_request(request_line, json.loads(expected + b"}"), number, names, rules, findings)
            replay.add(row, number)
            continue
        slow = _parse_slowly(line, f"{names[0]} line {number}", findings)
        if slow is not None:
            full_row, slow_row = slow
            _explain_request(request_line, request_row(full_row, rules.output_key), number, names, rules, findings)
            replay.add(slow_row, number)
        elif not request_line:
            _explain_request(request_line, {}, number, names, rules, findings)
    surplus = sum(1 for _ in requests)
    if surplus:
        findings.add("ROW_COUNT", names[1], f"it has {surplus} rows more than {names[0]} ({number})")
    return replay.finish(), number


class _Replay:
    """Simulates the cached prefix of each lane and compares every row's claims with it."""

    def __init__(self, rules: RowRules, name: str, findings: Findings) -> None:
        count = len(rules.canonical_prefixes)
        self._rules = rules
        self._name = name
        self._findings = findings
        self._groups = [GroupTheory() for _ in range(count)]
        self._ranks = [Share() for _ in range(rules.dp_size)] if rules.mode == "cold" else []
        self._watermarks: dict[tuple[int, int], int] = {}
        self._reachable_watermarks: dict[tuple[int, int], int] = {}
        self._theory = Theory(
            mode=rules.mode,
            requested_target_hit_rate=rules.requested_target_hit_rate,
            effective_hit_tokens=0,
            minimum_non_shared_tokens=rules.minimum_non_shared_tokens,
            groups=self._groups,
            ranks=self._ranks,
        )
        self._seeds = array("Q")
        self._divergences = array("Q")

    def add(self, row: _Row, number: int) -> None:
        """Check one row and add it up."""
        rules = self._rules
        index = number - 1
        if row.group >= len(self._groups):
            self._say(number, "group_id", group_name(row.group), f"group-0 … group-{len(self._groups) - 1}")
            return
        group = self._groups[row.group]
        prefix_sha256, prefix_tokens = rules.canonical_prefixes[row.group]
        occurrence = group.requests
        tokens = row.actual_tokens
        cold = rules.mode == "cold"
        rank = occurrence % rules.dp_size if cold else None
        lane = occurrence // rules.dp_size if cold else None
        before = prefix_tokens if rank is None else self._watermarks.get((row.group, rank), 0)
        hit = min(row.shared_tokens, before)
        after = max(row.shared_tokens, before)
        capacity = max(tokens - rules.minimum_non_shared_tokens, 0) // rules.block_size * rules.block_size

        if row.request_number != index:
            self._say(number, "request_id", request_id(row.request_number), request_id(index))
        if row.sequence_index != index:
            self._say(number, "sequence_index", row.sequence_index, index)
        if row.occurrence != occurrence:
            self._say(number, "occurrence_index_within_group", row.occurrence, occurrence)
        if row.dp_rank != rank:
            self._say(number, "dp_rank", row.dp_rank, rank)
        if row.lane_sequence != lane:
            self._say(number, "lane_sequence", row.lane_sequence, lane)
        if row.target_tokens != tokens:
            self._say(number, "actual_input_tokens", tokens, row.target_tokens)
        if row.max_tokens < 1:
            self._say(number, "max_tokens", row.max_tokens, "at least 1")
        if row.seed_tokens != rules.seed_tokens:
            self._say(number, "seed_tokens", row.seed_tokens, rules.seed_tokens)
        if row.shared_tokens % rules.block_size or row.shared_tokens > capacity:
            self._say(
                number,
                "shared_prefix_tokens",
                row.shared_tokens,
                f"a multiple of {rules.block_size} up to {capacity}",
            )
        if row.shared_tokens + row.seed_tokens + row.suffix_tokens != tokens:
            self._say(number, "natural_suffix_tokens", row.suffix_tokens, tokens - row.shared_tokens - row.seed_tokens)
        if row.watermark_before != before:
            self._say(number, "watermark_before", row.watermark_before, before)
        if row.hit_tokens != hit:
            self._say(number, "theoretical_hit_tokens", row.hit_tokens, hit)
        if row.watermark_after != after:
            self._say(number, "watermark_after", row.watermark_after, after)
        if row.hit_rate != rate(hit, tokens):
            self._say(number, "theoretical_hit_rate", row.hit_rate, rate(hit, tokens))
        if row.prefix_sha256 != prefix_sha256:
            self._say(number, "canonical_prefix_sha256", row.prefix_sha256, prefix_sha256)
        if row.corpus_rows != row.corpus_digests:
            self._say(number, "gsm_hashes", f"{row.corpus_digests} digests", f"{row.corpus_rows}, one for each index")

        group.add(tokens, hit)
        group.canonical_prefix_tokens = max(group.canonical_prefix_tokens, row.shared_tokens)
        group.max_shared_prefix_tokens = max(group.max_shared_prefix_tokens, capacity)
        if rank is not None:
            self._ranks[rank].add(tokens, hit)
            reachable = self._reachable_watermarks.get((row.group, rank), 0)
            group.max_hit_tokens += min(capacity, reachable)
            self._watermarks[row.group, rank] = after
            self._reachable_watermarks[row.group, rank] = max(capacity, reachable)
        else:
            group.max_hit_tokens += capacity
        self._theory.input_lengths[tokens] += 1
        self._theory.output_lengths[row.max_tokens] += 1
        self._seeds.append(int(row.seed_sha256[:16], 16))
        self._divergences.append(int(row.divergence_sha256[:16], 16))

    def finish(self) -> Theory:
        """Check what only all rows together show."""
        for key, digests in (("seed_sha256", self._seeds), ("divergence_block_sha256", self._divergences)):
            repeated = len(digests) - len(set(digests))
            if repeated:
                self._findings.add(
                    "NOT_UNIQUE",
                    self._name,
                    f"{repeated} rows repeat the {key} of another row",
                    allowed="all different",
                )
        self._theory.effective_hit_tokens = self._nearest_reachable()
        return self._theory

    def _nearest_reachable(self) -> int:
        """The reachable total of hits that is nearest to the requested rate, in whole blocks."""
        theory, block = self._theory, self._rules.block_size
        numerator, denominator = _decimal_ratio(theory.requested_target_hit_rate)
        wanted, scale = numerator * theory.input_tokens, denominator * block
        highest = sum(group.max_hit_tokens for group in theory.groups)
        lower = min(wanted // scale * block, highest)
        upper = min(lower + block, highest)
        nearest = min((lower, upper), key=lambda total: abs(total * denominator - wanted))
        actual = theory.hit_tokens
        if abs(actual * denominator - wanted) <= abs(nearest * denominator - wanted):
            return actual
        self._findings.add(
            "TARGET_MISSED",
            self._name,
            f"the rows hit {actual} tokens, but {nearest} can be reached and are nearer to the requested rate "
            f"{theory.requested_target_hit_rate}",
        )
        return nearest

    def _say(self, number: int, key: str, claimed: object, expected: object) -> None:
        self._findings.add(
            "WRONG_VALUE", f"{self._name} line {number}: {key}", f"it says {shown(claimed)}", allowed=str(expected)
        )


def _decimal_ratio(number: float) -> tuple[int, int]:
    """``number`` as the decimal that people write for it: 0.3 is (3, 10), not its binary neighbour."""
    mantissa, _, exponent = repr(float(number)).partition("e")
    whole, _, decimals = mantissa.partition(".")
    shift = int(exponent or 0) - len(decimals)
    digits = int(whole + decimals)
    return (digits * 10**shift, 1) if shift >= 0 else (digits, 10**-shift)


def _parse_fast(line: bytes) -> tuple[_Row, bytes] | None:
    """The values and the prompt (as JSON bytes) of a row as this program writes it; None for any other row."""
    head = _HEAD.match(line)
    end = line.rfind(_QUESTION_END)
    if head is None or end < 0:
        return None
    tail = _TAIL.fullmatch(line, end)
    if tail is None:
        return None
    question = line[head.end() : end]
    try:
        if not isinstance(json.loads(question.decode()), str):
            return None
    except ValueError:
        return None
    number, sequence, group, occurrence, rank, lane, target, actual, out, shared, seed, suffix = head.groups()
    indices, digests, prefix, seed_sha256, before, hit, after, hit_rate, divergence = tail.groups()
    return (
        _Row(
            request_number=int(number),
            sequence_index=int(sequence),
            group=int(group),
            occurrence=int(occurrence),
            dp_rank=None if rank == b"null" else int(rank),
            lane_sequence=None if lane == b"null" else int(lane),
            target_tokens=int(target),
            actual_tokens=int(actual),
            max_tokens=int(out),
            shared_tokens=int(shared),
            seed_tokens=int(seed),
            suffix_tokens=int(suffix),
            corpus_rows=indices.count(b",") + 1 if indices else 0,
            corpus_digests=digests.count(b",") + 1 if digests else 0,
            prefix_sha256=prefix.decode(),
            seed_sha256=seed_sha256.decode(),
            watermark_before=int(before),
            hit_tokens=int(hit),
            watermark_after=int(after),
            hit_rate=float(hit_rate),
            divergence_sha256=divergence.decode(),
        ),
        question,
    )


def _parse_slowly(line: bytes, where: str, findings: Findings) -> tuple[dict[str, Any], _Row] | None:
    """The row in ``line`` after saying what is wrong with its form; None where it is no usable row."""
    row = _json_object(line, where, findings)
    if row is None:
        return None
    wrong = _key_problems(row, FULL_KEYS, where, findings)
    for key in _INTEGER_KEYS:
        if key in row and not (is_count(row[key])):
            wrong = _wrong_type(findings, where, key, row[key], "a whole number from 0 up")
    for key in ("dp_rank", "lane_sequence"):
        if key in row and row[key] is not None and not is_count(row[key]):
            wrong = _wrong_type(findings, where, key, row[key], "null or a whole number from 0 up")
    for key in _DIGEST_KEYS:
        if key in row and not is_sha256(row[key]):
            wrong = _wrong_type(findings, where, key, row[key], "64 hexadecimal digits")
    checks = (
        ("request_id", lambda value: isinstance(value, str) and _request_number(value) is not None, "request-%08d"),
        ("group_id", lambda value: isinstance(value, str) and bool(_GROUP_ID.fullmatch(value)), "group-N"),
        ("question", lambda value: isinstance(value, str), "a string"),
        ("answer", lambda value: value == ANSWER, f'"{ANSWER}"'),
        ("gsm_indices", lambda value: isinstance(value, list) and all(map(is_count, value)), "a list of row numbers"),
        ("gsm_hashes", lambda value: isinstance(value, list) and all(map(is_sha256, value)), "a list of digests"),
        (
            "theoretical_hit_rate",
            lambda value: isinstance(value, float) and 0 <= value <= 1,
            "a number from 0.0 to 1.0",
        ),
        ("divergence_unique", lambda value: value is True, "true"),
        ("collision_status", lambda value: value == COLLISION_STATUS, f'"{COLLISION_STATUS}"'),
    )
    for key, holds, allowed in checks:
        if key in row and not holds(row[key]):
            wrong = _wrong_type(findings, where, key, row[key], allowed)
    if wrong:
        return None
    if not _same_layout(row, line):
        findings.add("LAYOUT_EDITED", where, "its values are sound, but its bytes are not what was written")
    return row, _row_of(row)


def _row_of(row: Mapping[str, Any]) -> _Row:
    number = _request_number(row["request_id"])
    assert number is not None
    return _Row(
        request_number=number,
        sequence_index=row["sequence_index"],
        group=int(row["group_id"].removeprefix("group-")),
        occurrence=row["occurrence_index_within_group"],
        dp_rank=row["dp_rank"],
        lane_sequence=row["lane_sequence"],
        target_tokens=row["target_input_tokens"],
        actual_tokens=row["actual_input_tokens"],
        max_tokens=row["max_tokens"],
        shared_tokens=row["shared_prefix_tokens"],
        seed_tokens=row["seed_tokens"],
        suffix_tokens=row["natural_suffix_tokens"],
        corpus_rows=len(row["gsm_indices"]),
        corpus_digests=len(row["gsm_hashes"]),
        prefix_sha256=row["canonical_prefix_sha256"],
        seed_sha256=row["seed_sha256"],
        watermark_before=row["watermark_before"],
        hit_tokens=row["theoretical_hit_tokens"],
        watermark_after=row["watermark_after"],
        hit_rate=row["theoretical_hit_rate"],
        divergence_sha256=row["divergence_block_sha256"],
    )


def _explain_request(
    line: bytes, expected: Mapping[str, Any], number: int, names: tuple[str, str], rules: RowRules, findings: Findings
) -> None:
    """Say how a row of ``requests.jsonl`` differs from the one that its row of ``full.jsonl`` asks for."""
    where = f"{names[1]} line {number}"
    if not line:
        findings.add("ROW_COUNT", where, f"it ends here, but {names[0]} goes on")
        return
    row = _json_object(line, where, findings)
    if row is None:
        return
    keys = ("question", "answer") if rules.output_key is None else ("question", "answer", rules.output_key)
    if _key_problems(row, keys, where, findings):
        return
    different = [key for key in keys if row[key] != expected[key] or type(row[key]) is not type(expected[key])]
    for key in different:
        message = f"it is not that of {names[0]} line {number}: {shown(row[key])}"
        findings.add("CORRESPONDENCE", f"{where}: {key}", message)
    if not different and not _same_layout(row, line):
        findings.add("LAYOUT_EDITED", where, "its values are sound, but its bytes are not what was written")


def _json_object(line: bytes, where: str, findings: Findings) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        findings.add("TRUNCATED", where, "the last line has no end: the file was cut off or added to")
    try:
        row = parse_json(line)
    except ValueError as error:
        findings.add("INVALID_JSON", where, f"it is not valid JSON: {error}")
        return None
    if not isinstance(row, dict):
        findings.add("INVALID_JSON", where, "it is not a JSON object")
        return None
    return row


def _key_problems(row: Mapping[str, Any], keys: tuple[str, ...], where: str, findings: Findings) -> bool:
    if tuple(row) == keys:
        return False
    missing = [key for key in keys if key not in row]
    unknown = [key for key in row if key not in keys]
    if missing:
        findings.add("MISSING_KEY", where, f"it lacks {', '.join(missing)}")
    if unknown:
        findings.add("UNKNOWN_KEY", where, f"it has unknown keys: {shown(', '.join(unknown))}", allowed=", ".join(keys))
    if not missing and not unknown:
        findings.add("KEY_ORDER", where, "its keys are not in their order", allowed=", ".join(keys))
    return bool(missing or unknown)


def _same_layout(row: Mapping[str, Any], line: bytes) -> bool:
    """Whether ``line`` is what would be written; a missing line end has been reported already."""
    try:
        return render_row(row).rstrip(b"\n") == line.rstrip(b"\n")
    except UnicodeEncodeError:
        return False


def _wrong_type(findings: Findings, where: str, key: str, value: object, allowed: str) -> bool:
    findings.add("WRONG_TYPE", f"{where}: {key}", f"it says {shown(value)}", allowed=allowed)
    return True


def _request_number(value: str) -> int | None:
    digits = value.removeprefix("request-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 18 and request_id(int(digits)) == value:
        return int(digits)
    return None
