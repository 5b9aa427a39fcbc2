"""The lines of a text data set's files, joined from pieces that are escaped once.

A row's text is almost all of it, and most of a text is what other rows hold, too: corpus rows and beginnings of
canonical prefixes. What a row is besides, its ledger says; its text is put into the line where the ledger left none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.datasets.format.rows import LineBatch, line_with_text, text_in_row
from ais_bench_prefix_cache.exact_text.row_text import EncodedRows, Span, Text

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.text.drafts import Draft
    from ais_bench_prefix_cache.datasets.text.kind import TextLedger


class TextLines:
    """Makes lines from drafts. Memory grows with the rows and beginnings that are used, not with the drafts.

    ``row_sha256`` has the digest of each corpus row that a draft may use.
    """

    def __init__(self, rows: EncodedRows, row_sha256: Mapping[int, str], block_size: int) -> None:
        self._rows = rows
        self._row_sha256 = row_sha256
        self._block_size = block_size
        self._escaped_rows: dict[Span, bytes] = {}
        self._escaped_openings: dict[tuple[int, int], bytes] = {}

    def batch(self, ledger: TextLedger, drafts: Sequence[Draft]) -> LineBatch:
        """The lines of drafts, for each file of rows."""
        files: list[list[bytes]] = []
        for draft in drafts:
            index, used = draft.request.index, draft.used_rows
            seed_sha256, divergence_sha256 = draft.digests(self._block_size)
            row = ledger.row(
                index,
                "",
                corpus_indices=list(used),
                corpus_sha256=[self._row_sha256[each] for each in used],
                seed_sha256=seed_sha256,
                divergence_sha256=divergence_sha256,
            ).as_json()
            text = self.escaped(draft)
            rows = (row, *ledger.companions(index, row))
            files = files or [[] for _ in rows]
            for parts, each in zip(files, rows, strict=True):
                parts.extend(line_with_text(each, text))
        return LineBatch(len(drafts), tuple([b"".join(parts) for parts in files]))

    def escaped(self, draft: Draft) -> bytes:
        """The text of a draft as JSON writes it, without quotes."""
        pieces = [text_in_row(draft.seed).encode()]
        if draft.canonical is not None:
            pieces.insert(0, self._opening(draft))
        known = self._escaped_rows.get
        pieces += [known(span) or self._span(span) for span in draft.suffix.spans]
        if draft.suffix.fillers:
            pieces.append(text_in_row(self._rows.render(Text(fillers=draft.suffix.fillers))).encode())
        return b" ".join(pieces)

    def _span(self, span: Span) -> bytes:
        """The words of a span; those of a whole row are remembered."""
        escaped = text_in_row(self._rows.render(Text([span]))).encode()
        if span == self._rows.whole[span[0]]:
            self._escaped_rows[span] = escaped
        return escaped

    def _opening(self, draft: Draft) -> bytes:
        assert draft.canonical is not None
        key = draft.request.group, draft.request.shared
        escaped = self._escaped_openings.get(key)
        if escaped is None:
            escaped = text_in_row(draft.canonical.text(draft.request.shared)).encode()
            self._escaped_openings[key] = escaped
        return escaped
