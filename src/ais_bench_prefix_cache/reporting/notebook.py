"""Results where people look at them: data frames, and tables in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError

if TYPE_CHECKING:
    import pandas

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A caption, the names of the columns, and rows whose first cell names the row."""


def data_frame(columns: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """A frame of columns, or of rows. Raises PrefixCacheError where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise PrefixCacheError.of(
            Code.REPORT_NEEDS,
            "to_pandas",
            "pandas is not installed",
            hint="pip install pandas; without it the result's own fields have the same figures",
        ) from None
    return pandas.DataFrame(columns)


def html_tables(title: str, tables: Sequence[Table], remarks: Sequence[str] = ()) -> str:
    """A title, tables and remarks as HTML for a notebook; every text is escaped."""
    parts = [f"<p><strong>{escape(title)}</strong></p>"]
    for caption, header, rows in tables:
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
        body = "".join(
            f'<tr><th scope="row">{escape(first)}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
            for first, *cells in rows
        )
        parts.append(f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>")
    if remarks:
        parts.append("<ul>" + "".join(f"<li>{escape(remark)}</li>" for remark in remarks) + "</ul>")
    return "\n".join(parts)


def remarks_of(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warnings and findings in a line each."""
    return [f"{entry['code']}: {entry['message']}" for entry in entries]
