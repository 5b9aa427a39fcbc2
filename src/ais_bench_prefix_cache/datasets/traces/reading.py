"""Reads a file of requests for a replay: texts, token ids or the block ids of a trace.

A row is one of, in this order:

- a trace's row: ``hash_ids`` (a block each; the last may be unfinished), ``input_length`` and, if known,
  ``output_length``: Mooncake (blocks of 512 tokens) and Qwen-Bailian (blocks of 16);
- token ids: a list of integers;
- a text, encoded as the server would encode it; of chats the texts of the messages, without a chat template.

Two blocks of a trace are the same only if all blocks before them are, too, whatever their ids say: Qwen-Bailian's ids
name the content of one block. Rows are streamed.

Rows of token ids and texts may say what vLLM mixes into the names of blocks: ``lora`` (a name, or an object with name
and path), ``cache_salt``, and ``images``, a list of objects with hash, offset and length in tokens. ``model`` keeps the
models of one file apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.findings import shown
from ais_bench_prefix_cache.foundation.regular_files import open_regular
from ais_bench_prefix_cache.foundation.row_files import BadRow, RowFile
from ais_bench_prefix_cache.foundation.row_texts import USUAL_FIELDS, field_value, find_field, has_half_character
from ais_bench_prefix_cache.kvcache.block_hash import MAX_TOKEN_ID, ExtraKeys, MultimodalItem, block_hashes
from ais_bench_prefix_cache.kvcache.trace_replay import TraceRequest

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

PROMPT_FIELDS = ("prompt_token_ids", "token_ids", *USUAL_FIELDS[:3], "input", *USUAL_FIELDS[3:])
ID_FIELDS = ("hash_ids", "prompt_token_ids", "token_ids")
OUTPUT_FIELDS = ("max_tokens", "output_length", "max_out_len", "output_tokens")
INTEGER_FIELDS = (*OUTPUT_FIELDS, "input_length", "timestamp", "timestamp_ms")
TRACE_BLOCK_SIZES = (512, 16)
BATCH_ROWS = 128
LATEST_TIME = 1 << 53
"""Seconds or milliseconds; a float counts up to it one by one."""


@dataclass(frozen=True)
class TraceFields:
    """Which keys of a row say what; None takes the first known name that the row has."""

    prompt: str | None = None
    output: str | None = None
    group: str = "group_id"
    rank: str = "dp_rank"
    images: str = "images"


@dataclass(frozen=True)
class TraceRow:
    """One request as it was read.

    ``ids`` are token ids (``id_tokens`` 1) or block ids, each for ``id_tokens`` tokens. ``timestamp_ms`` (of a row's
    ``timestamp_ms`` or ``timestamp``) is 0 where it has none; Qwen-Bailian's seconds (rows with a ``chat_id``) have
    been converted.
    """

    line: int
    ids: Sequence[int]
    id_tokens: int
    prompt_tokens: int
    output_tokens: int
    group: str | None
    rank: int | None
    timestamp_ms: float
    extra_keys: ExtraKeys | None = None

    def request(self, block_size: int) -> TraceRequest:
        """The request in blocks of ``block_size`` tokens.

        Raises:
            ArtifactError: the trace's own blocks cannot be put together to such blocks.
        """
        if block_size % self.id_tokens:
            raise ArtifactError.of(
                Code.TRACE_BLOCK_SIZE,
                f"line {self.line}",
                f"its ids stand for {self.id_tokens} tokens each, which do not make up blocks of {block_size}",
                allowed=f"--block-size: a multiple of {self.id_tokens}",
            )
        whole = self.ids[: self.prompt_tokens // self.id_tokens]
        hashes = block_hashes(whole, block_size // self.id_tokens, extra_keys=self.extra_keys)
        return TraceRequest(hashes, self.prompt_tokens, self.output_tokens, self.group, self.rank)


def read_trace(
    path: Path,
    *,
    tokenizer: PromptTokenizer | None = None,
    fields: TraceFields | None = None,
    trace_block_size: int | None = None,
    output_tokens: int | None = None,
) -> Iterator[TraceRow]:
    """The rows of ``path``, in its order. ``output_tokens`` overrides what rows say about their output.

    Raises:
        ArtifactError: a row is not JSON, has no prompt or one that cannot be used; texts without a tokenizer.
    """
    fields = fields or TraceFields()
    reader = _Reader(fields, trace_block_size, output_tokens)
    with open_regular(path, follow_links=True) as stream:
        file = RowFile(stream, path, ArtifactError, (fields.rank, *INTEGER_FIELDS, fields.output or OUTPUT_FIELDS[0]))
        rows = file.read(lambda row: (row, reader.prompt(row)))
        while batch := list(islice(rows, BATCH_ROWS)):
            texts = [prompt for _, (_, prompt) in batch if isinstance(prompt, str)]
            if texts and tokenizer is None:
                raise ArtifactError.of(
                    Code.TOKENIZER_NEEDED,
                    str(path),
                    "holds prompts as texts",
                    hint="Give --tokenizer DIR, the server's own.",
                )
            encoded = iter(tokenizer.encode_batch(texts) if tokenizer is not None else ())
            for number, (row, prompt) in batch:
                try:
                    yield reader.row(number, row, next(encoded) if isinstance(prompt, str) else prompt)
                except BadRow as bad:
                    where = file.place(number)
                    raise ArtifactError.of(bad.code, where, str(bad), allowed=bad.allowed, hint=bad.hint) from None


def check_block_trace(path: Path, block_size: int | None = None) -> tuple[int, int]:
    """Reads a whole trace of ``hash_ids``; returns the tokens that an id stands for and the number of requests.

    Raises:
        ArtifactError: there is no request, or one that cannot be read or has no ``hash_ids``.
    """
    count, found = 0, 0
    for row in read_trace(path, trace_block_size=block_size):
        if row.id_tokens == 1:
            raise ArtifactError.of(
                Code.NO_HASH_IDS,
                f"{path.name} line {row.line}",
                "has no hash_ids",
                hint="Only such traces are imported.",
            )
        count, found = count + 1, row.id_tokens
    if not count:
        raise ArtifactError.of(Code.NO_REQUESTS, str(path), "holds no requests")
    return found, count


class _Reader:
    """Rows of a file, as they are read one after the other. Its methods raise :class:`BadRow`."""

    def __init__(self, fields: TraceFields, block_size: int | None, output_tokens: int | None) -> None:
        self._fields = fields
        self._block_size = block_size
        self._output_tokens = output_tokens
        self._numbers: dict[int, int] = {}

    def prompt(self, row: Mapping[str, Any]) -> str | list[int]:
        """A text, or ids."""
        names = ("hash_ids", *PROMPT_FIELDS) if self._fields.prompt is None else (self._fields.prompt,)
        name = find_field(row, names)
        if name is None:
            raise BadRow(
                Code.NO_PROMPT,
                f"has no {self._fields.prompt or 'prompt'}",
                allowed=f"hash_ids, {', '.join(PROMPT_FIELDS)}, or what --field names",
                hint=f"The row has {', '.join(map(repr, row)) or 'no fields'}.",
            )
        value = field_value(row, name)
        if isinstance(value, str) and name not in ID_FIELDS:
            if has_half_character(value):
                raise BadRow(Code.BAD_PROMPT, f"{name} holds half of a character (a lone surrogate)")
            return value
        if isinstance(value, list) and all(type(each) is int for each in value):
            if not value or (min(value) >= 0 and max(value) <= MAX_TOKEN_ID):
                return value
            if name == "hash_ids":
                return [self._number(each) for each in value]
        if name == "hash_ids":
            raise BadRow(Code.BAD_PROMPT, "hash_ids cannot be used", allowed="a list of integers")
        raise BadRow(Code.BAD_PROMPT, f"{name} cannot be used", allowed=f"a text, or ids of 0 to {MAX_TOKEN_ID}")

    def _number(self, hash_id: int) -> int:
        """A number of 32 bits for an id that is none, the same each time; they are taken from the top down."""
        lowest = MAX_TOKEN_ID - len(self._numbers)
        if 0 <= hash_id < lowest:
            return hash_id
        if 0 <= hash_id <= MAX_TOKEN_ID:
            raise BadRow(Code.BAD_PROMPT, f"hash_ids holds {hash_id} beside numbers of more than 32 bits")
        return self._numbers.setdefault(hash_id, lowest)

    def row(self, line: int, row: Mapping[str, Any], ids: list[int]) -> TraceRow:
        id_tokens, prompt_tokens = 1, len(ids)
        if self._fields.prompt is None and "hash_ids" in row:
            prompt_tokens = self._integer(row, "input_length", 1)
            id_tokens = self._id_tokens(len(ids), prompt_tokens)
        if not prompt_tokens:
            raise BadRow(Code.BAD_PROMPT, "its prompt is empty")
        group, rank = row.get(self._fields.group), row.get(self._fields.rank)
        if rank is not None and type(rank) is not int:
            raise BadRow(Code.BAD_NUMBER, f"{self._fields.rank} is {rank!r}", allowed="an integer, or null")
        return TraceRow(
            line=line,
            ids=ids,
            id_tokens=id_tokens,
            prompt_tokens=prompt_tokens,
            output_tokens=self._output(row),
            group=None if group is None else str(group),
            rank=rank,
            timestamp_ms=self._milliseconds(row),
            extra_keys=self._extra_keys(row, id_tokens, prompt_tokens),
        )

    def _output(self, row: Mapping[str, Any]) -> int:
        if self._output_tokens is not None:
            return self._output_tokens
        name = self._fields.output or next((name for name in OUTPUT_FIELDS if name in row), None)
        return 1 if name is None else max(1, self._integer(row, name, 0))

    def _id_tokens(self, ids: int, prompt_tokens: int) -> int:
        """The trace's block size: as given, or the one for which the first row has the right number of ids."""
        if self._block_size is None:
            self._block_size = next((b for b in TRACE_BLOCK_SIZES if ids == -(-prompt_tokens // b)), None)
            if self._block_size is None:
                raise BadRow(
                    Code.TRACE_BLOCK_SIZE,
                    f"has {ids} hash_ids for {prompt_tokens} tokens: no known trace format",
                    hint="Say with --trace-block-size how many tokens an id stands for.",
                )
        if not prompt_tokens // self._block_size <= ids <= -(-prompt_tokens // self._block_size):
            raise BadRow(
                Code.TRACE_BLOCK_SIZE,
                f"has {ids} hash_ids for {prompt_tokens} tokens",
                allowed=f"one for every {self._block_size} tokens",
            )
        return self._block_size

    def _milliseconds(self, row: Mapping[str, Any]) -> float:
        name = "timestamp_ms" if "timestamp_ms" in row else "timestamp"
        timestamp: Any = row.get(name)
        if timestamp is None:
            return 0
        # What is compared first, with an integer of any size, needs no float for it; NaN is in no interval.
        if type(timestamp) not in (int, float) or not 0 <= timestamp <= LATEST_TIME:
            raise BadRow(Code.BAD_NUMBER, f"{name} is {shown(timestamp)}", allowed=f"a number from 0 to {LATEST_TIME}")
        milliseconds: float = round(timestamp * 1000) if "chat_id" in row else timestamp
        return milliseconds

    def _extra_keys(self, row: Mapping[str, Any], id_tokens: int, prompt_tokens: int) -> ExtraKeys | None:
        """Keys that keep requests apart although their tokens are equal; empty ones are none, as for vLLM."""
        model, salt = (self._name(row, name) for name in ("model", "cache_salt"))
        lora, images = self._lora(row), self._images(row, id_tokens, prompt_tokens)
        if not (model or salt or lora or images):
            return None
        return ExtraKeys(lora=lora, cache_salt=salt, multimodal_items=images, model=model)

    def _name(self, row: Mapping[str, Any], key: str) -> str | None:
        value = row.get(key)
        if value is None or isinstance(value, str):
            return value or None
        raise BadRow(Code.BAD_KEY, f"{key} is {value!r}", allowed="a text")

    def _lora(self, row: Mapping[str, Any]) -> tuple[str, str] | None:
        value = row.get("lora")
        if isinstance(value, Mapping):
            name, path = value.get("name"), value.get("path", "")
            if isinstance(name, str) and name and isinstance(path, str):
                return name, path
        elif value is None or isinstance(value, str):
            return (value, "") if value else None
        raise BadRow(Code.BAD_KEY, f"lora is {value!r}", allowed="a name, or an object with name and path")

    def _images(self, row: Mapping[str, Any], id_tokens: int, prompt_tokens: int) -> tuple[MultimodalItem, ...]:
        name = self._fields.images
        images = row.get(name)
        if not images:
            return ()
        if id_tokens > 1:
            raise BadRow(
                Code.BAD_IMAGES,
                f"{name} stands beside hash_ids, which name what their blocks hold, images included",
            )
        if not isinstance(images, list) or not all(isinstance(image, Mapping) for image in images):
            raise BadRow(
                Code.BAD_IMAGES,
                f"{name} is no list of objects",
                allowed='[{"hash": "…", "offset": 3, "length": 576}, …], places in tokens',
                hint="--image-field names another key.",
            )
        items = []
        for image in images:
            identifier, offset, length = image.get("hash"), image.get("offset"), image.get("length")
            if not isinstance(identifier, str) or not identifier:
                raise BadRow(Code.BAD_IMAGES, f"an image's hash is {identifier!r}", allowed="a text")
            for key, value, smallest in (("offset", offset, 0), ("length", length, 1)):
                if type(value) is not int or value < smallest:
                    message = f"the {key} of the image {identifier} is {value!r}"
                    raise BadRow(Code.BAD_IMAGES, message, allowed=f"an integer of {smallest} or more")
            items.append(MultimodalItem(identifier, offset, length))
        items.sort(key=lambda item: item.offset)
        end = 0
        for item in items:
            if item.offset < end or item.offset + item.length > prompt_tokens:
                other = "inside another" if item.offset < end else f"not within the prompt's {prompt_tokens}"
                places = f"tokens {item.offset} … {item.offset + item.length - 1}"
                raise BadRow(Code.BAD_IMAGES, f"the image {item.identifier} is {places}, {other}")
            end = item.offset + item.length
        return tuple(items)

    def _integer(self, row: Mapping[str, Any], name: str, smallest: int) -> int:
        value = row.get(name)
        if type(value) is not int or value < smallest:
            raise BadRow(Code.BAD_NUMBER, f"{name} is {value!r}", allowed=f"an integer of {smallest} or more")
        return value
