"""Writes requests as a trace in Mooncake's format: lengths, times, and ids that are equal where blocks are.

One JSON object a line: ``timestamp`` (milliseconds), ``input_length``, ``output_length``, ``hash_ids``: one id for each
block of the prompt, the last of which may be unfinished. Two ids are equal if and only if the blocks and all that comes
before them are. Source: the traces of Mooncake's FAST '25 release.
"""

from __future__ import annotations

import json

from ais_bench_prefix_cache.datasets.traces.reading import TraceRow
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.kvcache.block_hash import ROOT_HASH, block_hashes, token_bytes

MOONCAKE_BLOCK_SIZE = 512


class MooncakeRows:
    """Numbers blocks in the order in which they appear. Memory grows with the different blocks, not with tokens."""

    def __init__(self, block_size: int = MOONCAKE_BLOCK_SIZE) -> None:
        self.block_size = block_size
        self._numbers: dict[tuple[bytes, bytes], int] = {}

    def line(self, row: TraceRow) -> bytes:
        """The line of one request, with its newline. Rows without a time are sent at 0.

        Raises:
            ArtifactError: the row's own blocks do not make up blocks of this size.
        """
        ids_of_a_block, rest = divmod(self.block_size, row.id_tokens)
        if rest:
            raise ArtifactError.of(
                Code.TRACE_BLOCK_SIZE,
                f"line {row.line}",
                f"its ids stand for {row.id_tokens} tokens each, which do not make up blocks of {self.block_size}",
                allowed=f"--export-block-size: a multiple of {row.id_tokens}",
            )
        hashes = block_hashes(row.ids, ids_of_a_block, extra_keys=row.extra_keys)
        keys = [(block_hash, b"") for block_hash in hashes]
        unfinished = row.ids[len(hashes) * ids_of_a_block :]
        if unfinished:
            keys.append((hashes[-1] if hashes else ROOT_HASH, token_bytes(unfinished)))
        document = {
            "timestamp": row.timestamp_ms,
            "input_length": row.prompt_tokens,
            "output_length": row.output_tokens,
            "hash_ids": [self._numbers.setdefault(key, len(self._numbers)) for key in keys],
        }
        return json.dumps(document).encode() + b"\n"
