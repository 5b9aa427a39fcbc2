"""What all pictures of pages have in common: an empty figure, its colours, and its SVG.

Drawn by matplotlib, which is well kept and writes plain SVG (plotly and altair need a script of megabytes to show
anything). Text stays text. Colours are written as placeholders that become the page's CSS variables, so that a picture
is dark where the page is.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError

_VARIABLES = {
    "#010101": "var(--ink)",
    "#020202": "var(--line)",
    "#030303": "var(--dim)",
    "#04a101": "var(--c1)",
    "#04a102": "var(--c2)",
    "#04a103": "var(--c3)",
    "#04a104": "var(--c4)",
    "#04a105": "var(--c5)",
    "#04a106": "var(--c6)",
}
INK, LINE, DIM, *COLOURS = _VARIABLES
MARKERS = "osD^vP"


@dataclass(frozen=True)
class Chart:
    """One picture: its heading, its SVG, and a sentence that says what it shows."""

    title: str
    svg: str
    caption: str


def empty_figure(height: float = 3.2) -> tuple[Any, Any]:
    """An empty figure of 5.6 inches, which a screen of 400 pixels still shows readably."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ArtifactError.of(
            Code.REPORT_NEEDS,
            "the page",
            "pictures are drawn by matplotlib, which is not installed",
            hint="pip install 'ais-bench-prefix-cache[report]'",
        ) from None
    figure = Figure(figsize=(5.6, height), layout="constrained")
    axes = figure.subplots()
    style_axes(axes)
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def style_axes(axes: Any) -> None:
    """The page's colours for ticks and frame."""
    axes.tick_params(colors=INK, labelsize=9)
    for side, spine in axes.spines.items():
        spine.set_color(DIM)
        spine.set_visible(side not in ("top",))


def label_axes(axes: Any, horizontal: str, vertical: str) -> None:
    """What the axes show, with its unit."""
    axes.set_xlabel(horizontal, color=INK, fontsize=10)
    axes.set_ylabel(vertical, color=INK, fontsize=10)


def add_legend(axes: Any) -> None:
    """Names of the lines, where there are several."""
    if len(axes.get_lines()) > 1:
        axes.legend(frameon=False, labelcolor=INK, fontsize=9)


def figure_svg(figure: Any) -> str:
    """The figure as an element that scales with the page, its placeholders replaced by the page's colours."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "page"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', text, count=1)
    text = re.sub(r' xlink:href="', ' href="', text)
    for placeholder, variable in _VARIABLES.items():
        text = text.replace(placeholder, variable)
    return re.sub(r"font: [^;\"]*?([\d.]+px)[^;\"]*;", r"font-size: \1;", text)
