"""Checks of ``full.jsonl`` and ``requests.jsonl``, row by row, and the theory that the rows add up to.

Rows come in bytes. From a row as this program writes it, the few values that are free are taken from their places; all
others follow from them and from the rows before, so the bytes around the prompt can be written again and compared. The
prompt itself is compared with the other file as bytes. A row that is different in anything is parsed and told what.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from ais_bench_prefix_cache.datasets.format.documents import is_count, is_sha256
from ais_bench_prefix_cache.datasets.text.rows import (
    ANSWER,
    COLLISION_STATUS,
    FULL_KEYS,
    render_row,
    request_id,
    request_row,
)
from ais_bench_prefix_cache.datasets.text.theory import GroupTheory, Share, Theory, rate
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.foundation.strict_json import parse_json

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any, BinaryIO

# The parts of a row in their order: place, lengths, question, corpus references, digests, claims, divergence.
_PLACE_FORMAT = (
    b'{"request_id": "request-%08d", "sequence_index": %d, "group_id": "group-%d"'
    b', "occurrence_index_within_group": %d, "dp_rank": %b, "lane_sequence": %b'
)
_GROUP_BEGIN = b', "group_id": "group-'
_LENGTHS_BEGIN = b', "target_input_tokens": '
_LENGTHS_FORMAT = (
    _LENGTHS_BEGIN + b'%d, "actual_input_tokens": %d, "max_tokens": %d'
    b', "shared_prefix_tokens": %d, "seed_tokens": %d, "natural_suffix_tokens": %d'
)
_QUESTION_BEGIN = b', "question": '
_QUESTION_END = b', "answer": "none", "gsm_indices": ['
_DIGESTS_BEGIN = b', "canonical_prefix_sha256": "'
_SEED_BEGIN = b'", "seed_sha256": "'
_SEED_AT = len(_DIGESTS_BEGIN) + 64 + len(_SEED_BEGIN)
_RANDOM_SEED_BEGIN = b'", "request_random_seed": '
_RANDOM_SEED_AT = _SEED_AT + 64 + len(_RANDOM_SEED_BEGIN)
_CLAIMS_FORMAT = (
    b', "watermark_before": %d, "theoretical_hit_tokens": %d, "watermark_after": %d, "theoretical_hit_rate": %b'
    b', "divergence_block_sha256": "'
)
_ROW_END = b'", "divergence_unique": true, "collision_status": "pass"}\n'
_DIVERGENCE_AT = -len(_ROW_END) - 64
_HEXADECIMAL = b"0123456789abcdef"
_LARGEST_NUMBER, _LARGEST_DIGITS = 10**18, 39
_REMEMBERED = 1 << 14
"""Rows repeat each other's lengths, claims and references; so many of them are known at a time."""

# The scanner of the json module, in C where there is one: it only looks for the end of a string and its escapes.
_scan_string: Callable[[str, int], tuple[str, int]] = json.decoder.scanstring  # type: ignore[attr-defined]

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


class RowRules:
    """What the manifest's configuration says about every row. ``canonical_prefixes``: (SHA-256, tokens) by group."""

    def __init__(
        self,
        *,
        mode: str,
        block_size: int,
        seed_tokens: int,
        minimum_non_shared_tokens: int,
        dp_size: int,
        requested_target_hit_rate: float,
        output_key: str | None,
        canonical_prefixes: Sequence[tuple[str, int]],
    ) -> None:
        self.mode = mode
        self.block_size = block_size
        self.seed_tokens = seed_tokens
        self.minimum_non_shared_tokens = minimum_non_shared_tokens
        self.dp_size = dp_size
        self.requested_target_hit_rate = requested_target_hit_rate
        self.output_key = output_key
        self.canonical_prefixes = canonical_prefixes


class _Expected:
    """What must be true of a row, given its group, its lengths and the rows before it."""

    __slots__ = (
        "capacity",
        "dp_rank",
        "hit_tokens",
        "lane_sequence",
        "occurrence",
        "watermark_after",
        "watermark_before",
    )

    def __init__(
        self,
        occurrence: int,
        dp_rank: int | None,
        lane_sequence: int | None,
        watermark: int,
        shared: int,
        capacity: int,
    ) -> None:
        self.occurrence = occurrence
        self.dp_rank = dp_rank
        self.lane_sequence = lane_sequence
        self.watermark_before = watermark
        self.hit_tokens, self.watermark_after = (shared, watermark) if shared < watermark else (watermark, shared)
        self.capacity = capacity


def check_rows(
    full: BinaryIO, requests: BinaryIO, names: tuple[str, str], rules: RowRules, findings: Findings
) -> tuple[Theory, int]:
    """Check every row of both files against ``rules`` and each other; returns what they add up to, and their number.

    ``names`` are the two files' names for messages. Of each row only 16 bytes stay, for the uniqueness of digests.
    """
    replay = _Replay(rules, names[0], findings)
    number = 0
    for number, line in enumerate(full, 1):
        request_line = requests.readline()
        expected_line = replay.accept(line, number)
        if expected_line is not None:
            if request_line != expected_line:
                _explain_request(request_line, json.loads(expected_line), number, names, rules, findings)
            continue
        row = _parse_row(line, f"{names[0]} line {number}", findings)
        if row is not None:
            _explain_request(request_line, request_row(row, rules.output_key), number, names, rules, findings)
            replay.check(row, number)
        elif not request_line:
            _explain_request(request_line, {}, number, names, rules, findings)
    surplus = sum(1 for _ in requests)
    if surplus:
        findings.add(Code.ROW_COUNT, names[1], f"it has {surplus} rows more than {names[0]} ({number})")
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
        self._digests_begin = [_DIGESTS_BEGIN + digest.encode() + _SEED_BEGIN for digest, _ in rules.canonical_prefixes]
        self._input_lengths, self._output_lengths = self._theory.input_lengths, self._theory.output_lengths
        self._seeds = array("q")
        self._divergences = array("q")

    def accept(self, line: bytes, number: int) -> bytes | None:
        """Add up a row that is right in every byte and return the line that must stand in the other file.

        None, and nothing added up, for any other row.
        """
        rules = self._rules
        begin, end = line.find(_QUESTION_BEGIN), line.rfind(_QUESTION_END)
        place_end, middle = line.find(_LENGTHS_BEGIN, 0, begin), line.find(_DIGESTS_BEGIN, end)
        lengths = _lengths_in(line[place_end:begin], rules.seed_tokens)
        if lengths is None or middle < end:
            return None
        tokens, max_tokens, shared = lengths
        place, tail = line[:place_end], line[middle:]
        try:
            group_at = place.index(_GROUP_BEGIN) + len(_GROUP_BEGIN)
            group = int(place[group_at : place.index(b'"', group_at)])
            random_seed_end = tail.index(b",", _RANDOM_SEED_AT)
        except ValueError:
            return None
        if not 0 <= group < len(self._groups):
            return None
        expected = self._expect(group, tokens, shared)
        rank = b"null" if expected.dp_rank is None else b"%d" % expected.dp_rank
        lane = b"null" if expected.lane_sequence is None else b"%d" % expected.lane_sequence
        seed_sha256 = tail[_SEED_AT : _SEED_AT + 64]
        random_seed = tail[_RANDOM_SEED_AT:random_seed_end]
        divergence_sha256 = tail[_DIVERGENCE_AT : _DIVERGENCE_AT + 64]
        claims = _claims(expected.watermark_before, expected.hit_tokens, expected.watermark_after, tokens)
        digests = self._digests_begin[group] + seed_sha256 + _RANDOM_SEED_BEGIN + random_seed
        question = line[begin + len(_QUESTION_BEGIN) : end]
        if (
            place != _PLACE_FORMAT % (number - 1, number - 1, group, expected.occurrence, rank, lane)
            or tail != digests + claims + divergence_sha256 + _ROW_END
            or shared % rules.block_size
            or shared > expected.capacity
            or seed_sha256.strip(_HEXADECIMAL)
            or (divergence_sha256 != seed_sha256 and divergence_sha256.strip(_HEXADECIMAL))
            or not _is_decimal(random_seed)
            or not _are_corpus_references(line[end + len(_QUESTION_END) : middle])
            or not _is_json_string(question)
        ):
            return None
        self._add_up(group, tokens, max_tokens, shared, expected, seed_sha256, divergence_sha256)
        if rules.output_key is None:
            return b'{"question": ' + question + b', "answer": "none"}\n'
        return b'{"question": %b, "answer": "none", "%b": %d}\n' % (question, rules.output_key.encode(), max_tokens)

    def check(self, row: Mapping[str, Any], number: int) -> None:
        """Say what is wrong with a row of the right form, and add it up."""
        rules = self._rules
        group = int(row["group_id"].removeprefix("group-"))
        if group >= len(self._groups):
            self._say(number, "group_id", row["group_id"], f"group-0 … group-{len(self._groups) - 1}")
            return
        tokens, shared = row["actual_input_tokens"], row["shared_prefix_tokens"]
        expected = self._expect(group, tokens, shared)
        for key, value in (
            ("request_id", request_id(number - 1)),
            ("sequence_index", number - 1),
            ("occurrence_index_within_group", expected.occurrence),
            ("dp_rank", expected.dp_rank),
            ("lane_sequence", expected.lane_sequence),
            ("target_input_tokens", tokens),
            ("seed_tokens", rules.seed_tokens),
            ("natural_suffix_tokens", tokens - shared - rules.seed_tokens),
            ("canonical_prefix_sha256", rules.canonical_prefixes[group][0]),
            ("watermark_before", expected.watermark_before),
            ("theoretical_hit_tokens", expected.hit_tokens),
            ("watermark_after", expected.watermark_after),
            ("theoretical_hit_rate", rate(expected.hit_tokens, tokens)),
        ):
            if row[key] != value:
                self._say(number, key, row[key], value)
        if row["max_tokens"] < 1:
            self._say(number, "max_tokens", row["max_tokens"], "at least 1")
        if shared % rules.block_size or shared > expected.capacity:
            allowed = f"a multiple of {rules.block_size} up to {expected.capacity}"
            self._say(number, "shared_prefix_tokens", shared, allowed)
        if len(row["gsm_indices"]) != len(row["gsm_hashes"]):
            self._say(number, "gsm_hashes", row["gsm_hashes"], "one digest for each of gsm_indices")
        digests = (row["seed_sha256"].encode(), row["divergence_block_sha256"].encode())
        self._add_up(group, tokens, row["max_tokens"], shared, expected, *digests)

    def _expect(self, group: int, tokens: int, shared: int) -> _Expected:
        rules = self._rules
        occurrence = self._groups[group].requests
        capacity = max(tokens - rules.minimum_non_shared_tokens, 0) // rules.block_size * rules.block_size
        rank = lane = None
        if rules.mode == "warmup":
            watermark = rules.canonical_prefixes[group][1]
        else:
            lane, rank = divmod(occurrence, rules.dp_size)
            watermark = self._watermarks.get((group, rank), 0)
        return _Expected(occurrence, rank, lane, watermark, shared, capacity)

    def _add_up(
        self,
        number: int,
        tokens: int,
        max_tokens: int,
        shared: int,
        expected: _Expected,
        seed_sha256: bytes,
        divergence_sha256: bytes,
    ) -> None:
        group, rank, capacity = self._groups[number], expected.dp_rank, expected.capacity
        group.add(tokens, expected.hit_tokens)
        if shared > group.canonical_prefix_tokens:
            group.canonical_prefix_tokens = shared
        if capacity > group.max_shared_prefix_tokens:
            group.max_shared_prefix_tokens = capacity
        if rank is None:
            group.max_hit_tokens += capacity
        else:
            self._ranks[rank].add(tokens, expected.hit_tokens)
            reachable = self._reachable_watermarks.get((number, rank), 0)
            group.max_hit_tokens += min(capacity, reachable)
            self._watermarks[number, rank] = expected.watermark_after
            self._reachable_watermarks[number, rank] = max(capacity, reachable)
        self._input_lengths[tokens] += 1
        self._output_lengths[max_tokens] += 1
        self._seeds.append(hash(seed_sha256))
        self._divergences.append(hash(divergence_sha256))

    def finish(self) -> Theory:
        """Check what only all rows together show."""
        for key, digests in (("seed_sha256", self._seeds), ("divergence_block_sha256", self._divergences)):
            repeated = len(digests) - len(set(digests))
            if repeated:
                self._findings.add(
                    Code.NOT_UNIQUE,
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
            Code.TARGET_MISSED,
            self._name,
            f"the rows hit {actual} tokens, but {nearest} can be reached and are nearer to the requested rate "
            f"{theory.requested_target_hit_rate}",
        )
        return nearest

    def _say(self, number: int, key: str, claimed: object, expected: object) -> None:
        self._findings.add(
            Code.WRONG_VALUE, f"{self._name} line {number}: {key}", f"it says {shown(claimed)}", allowed=str(expected)
        )


def _decimal_ratio(number: float) -> tuple[int, int]:
    """``number`` as the decimal that people write for it: 0.3 is (3, 10), not its binary neighbour."""
    mantissa, _, exponent = repr(float(number)).partition("e")
    whole, _, decimals = mantissa.partition(".")
    shift = int(exponent or 0) - len(decimals)
    digits = int(whole + decimals)
    return (digits * 10**shift, 1) if shift >= 0 else (digits, 10**-shift)


@lru_cache(_REMEMBERED)
def _lengths_in(content: bytes, seed_tokens: int) -> tuple[int, int, int] | None:
    """(input tokens, output tokens, shared tokens) that a row says, or None where they do not fit each other."""
    try:
        tokens, _, max_tokens, shared, _, _ = (int(field.rpartition(b" ")[2]) for field in content.split(b", ")[1:])
    except ValueError:
        return None
    suffix_tokens = tokens - shared - seed_tokens
    if suffix_tokens < 0 or shared < 0 or not 0 < tokens < _LARGEST_NUMBER or not 0 < max_tokens < _LARGEST_NUMBER:
        return None
    written = _LENGTHS_FORMAT % (tokens, tokens, max_tokens, shared, seed_tokens, suffix_tokens)
    return (tokens, max_tokens, shared) if content == written else None


@lru_cache(_REMEMBERED)
def _claims(watermark_before: int, hit_tokens: int, watermark_after: int, tokens: int) -> bytes:
    """What a row must say about its hits."""
    hit_rate = repr(rate(hit_tokens, tokens)).encode()
    return _CLAIMS_FORMAT % (watermark_before, hit_tokens, watermark_after, hit_rate)


@lru_cache(_REMEMBERED)
def _are_corpus_references(content: bytes) -> bool:
    """Whether ``content`` is ``1, 2], "gsm_hashes": ["…", "…"]``: row numbers, and as many digests."""
    indices, separator, digests = content[:-1].partition(b'], "gsm_hashes": [')
    numbers, hashes = (each.split(b", ") if each else [] for each in (indices, digests))
    return (
        bool(separator)
        and content.endswith(b"]")
        and len(numbers) == len(hashes)
        and all(map(_is_decimal, numbers))
        and all(
            len(each) == 66 and each[:1] == each[-1:] == b'"' and not each[1:-1].strip(_HEXADECIMAL) for each in hashes
        )
    )


def _is_decimal(digits: bytes) -> bool:
    """Whether ``digits`` are a number from 0 up as JSON writes it, of at most 39 digits."""
    return digits.isdigit() and len(digits) <= _LARGEST_DIGITS and (digits[:1] != b"0" or digits == b"0")


def _is_json_string(content: bytes) -> bool:
    """Whether ``content`` is exactly one JSON string."""
    try:
        text = content.decode()
        return text.startswith('"') and _scan_string(text, 1)[1] == len(text)
    except ValueError:
        return False


def _parse_row(line: bytes, where: str, findings: Findings) -> dict[str, Any] | None:
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
        findings.add(Code.LAYOUT_EDITED, where, "its values are sound, but its bytes are not what was written")
    return row


def _explain_request(
    line: bytes, expected: Mapping[str, Any], number: int, names: tuple[str, str], rules: RowRules, findings: Findings
) -> None:
    """Say how a row of ``requests.jsonl`` differs from the one that its row of ``full.jsonl`` asks for."""
    where = f"{names[1]} line {number}"
    if not line:
        findings.add(Code.ROW_COUNT, where, f"it ends here, but {names[0]} goes on")
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
        findings.add(Code.CORRESPONDENCE, f"{where}: {key}", message)
    if not different and not _same_layout(row, line):
        findings.add(Code.LAYOUT_EDITED, where, "its values are sound, but its bytes are not what was written")


def _json_object(line: bytes, where: str, findings: Findings) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        findings.add(Code.TRUNCATED, where, "the last line has no end: the file was cut off or added to")
    try:
        row = parse_json(line)
    except ValueError as error:
        findings.add(Code.INVALID_JSON, where, f"it {error}")
        return None
    if not isinstance(row, dict):
        findings.add(Code.INVALID_JSON, where, "it is not a JSON object")
        return None
    return row


def _key_problems(row: Mapping[str, Any], keys: tuple[str, ...], where: str, findings: Findings) -> bool:
    if tuple(row) == keys:
        return False
    missing = [key for key in keys if key not in row]
    unknown = [key for key in row if key not in keys]
    if missing:
        findings.add(Code.MISSING_KEY, where, f"it lacks {', '.join(missing)}")
    if unknown:
        findings.add(
            Code.UNKNOWN_KEY, where, f"it has unknown keys: {shown(', '.join(unknown))}", allowed=", ".join(keys)
        )
    if not missing and not unknown:
        findings.add(Code.KEY_ORDER, where, "its keys are not in their order", allowed=", ".join(keys))
    return bool(missing or unknown)


def _same_layout(row: Mapping[str, Any], line: bytes) -> bool:
    """Whether ``line`` is what would be written; a missing line end has been reported already."""
    try:
        return render_row(row).rstrip(b"\n") == line.rstrip(b"\n")
    except UnicodeEncodeError:
        return False


def _wrong_type(findings: Findings, where: str, key: str, value: object, allowed: str) -> bool:
    findings.add(Code.WRONG_TYPE, f"{where}: {key}", f"it says {shown(value)}", allowed=allowed)
    return True


def _request_number(value: str) -> int | None:
    digits = value.removeprefix("request-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 18 and request_id(int(digits)) == value:
        return int(digits)
    return None
