"""The one design of all pages: templates and a style sheet in ``pages/``, filled by jinja2."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError


def render_page(template: str, **content: Any) -> str:
    """HTML that stands alone. Every text is escaped. Raises ArtifactError where jinja2 is not installed."""
    try:
        import jinja2
    except ImportError:
        raise ArtifactError.of(
            Code.REPORT_NEEDS,
            "the page",
            "pages are made with jinja2, which is not installed",
            hint="pip install 'ais-bench-prefix-cache[report]'",
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page: str = environment.get_template(template).render(css=_file("page.css"), **content)
    return page


def _file(name: str) -> str:
    return (files("ais_bench_prefix_cache.reporting") / "pages" / name).read_text(encoding="utf-8")
