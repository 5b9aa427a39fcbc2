"""Tables in box-drawing characters, the look of AISBench's own."""

from __future__ import annotations

from collections.abc import Sequence


def render_grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """``rows`` below ``header``, each cell as wide as its column's widest; without a newline at the end."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "│" + "│".join(f" {cell:<{width}} " for cell, width in zip(row, widths, strict=True)) + "│"

    def rule(begin: str, dash: str, cross: str, end: str) -> str:
        return begin + cross.join(dash * (width + 2) for width in widths) + end

    body = f"\n{rule('├', '─', '┼', '┤')}\n".join(line(row) for row in rows)
    return "\n".join([rule("╒", "═", "╤", "╕"), line(header), rule("╞", "═", "╪", "╡"), body, rule("╘", "═", "╧", "╛")])
