"""The report as one web page: no script, nothing from the network, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ais_bench_prefix_cache.reporting.summary_table import summary_rows

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5b6675; --paper: #fbfbfa; --line: #d9dde3;
  --theory: #8a94a3; --seen: #1668b3; --bad: #b42318; --note: #6b7280; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7eaee; --dim: #9aa5b4; --paper: #14181d; --line: #323a45;
  --theory: #76808f; --seen: #5aa7ea; --bad: #ff8a7a; --note: #8b95a3; } }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 80rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; } .wide + .wide { margin-top: 1.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
th { color: var(--dim); font-weight: 600; }
.figures :is(th, td):not(:first-child) { text-align: right; }
.bars td:last-child { width: 22rem; white-space: normal; }
.bar { height: .55rem; margin: .15rem 0; border-radius: 2px; }
.theory { background: var(--theory); } .seen { background: var(--seen); }
.key { display: inline-block; width: .8rem; height: .55rem; border-radius: 2px; margin-right: .4rem; }
.finding { border-left: 3px solid var(--bad); padding: .2rem .8rem; margin: .8rem 0; max-width: 60rem; }
.finding.note { border-color: var(--note); }
code, .path { font-family: ui-monospace, monospace; font-size: .85em; overflow-wrap: anywhere; }
p { color: var(--dim); margin: .3rem 0; }
"""


def render_report_page(
    performance: Mapping[str, Any], analysis: Mapping[str, Any], *, run_id: str, config: Mapping[str, Any]
) -> str:
    """HTML of :func:`~.results.performance_report`, of the analysis and of what was run by ``effective_config``."""
    parts = [f"<h1>{escape(run_id)}</h1>", _what_was_run(analysis, config), *_prefix_cache(analysis)]
    metrics: Mapping[str, Mapping[str, Any]] = performance["metrics"]
    columns = list(next(iter(metrics.values()))) if metrics else []
    parts.append("<h2>Performance</h2>")
    parts.append(
        _table(
            ["Per request", *columns],
            ([name, *(row[column] for column in columns)] for name, row in metrics.items()),
            kind="figures",
        )
    )
    common = [[name, stage, value] for name, stages in performance["common"].items() for stage, value in stages.items()]
    parts.append(_table(["Whole run", "Stage", "Value"], common, kind="figures"))
    parts.append(f'<p>From AISBench: <span class="path">{escape(performance["csv"])}</span></p>')
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(run_id)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _what_was_run(analysis: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """One line: model, server's version, kind of cache or images, requests, ranks, concurrency, when."""
    service, runtime = config["service"], analysis["runtime"]
    mode = config["prefix_cache"]["mode"] if "theory" in analysis else ", ".join(config["multimodal"]["scenarios"])
    versions = sorted({str(version) for version in runtime.get("precheck", {}).get("versions", {}).values()})
    started = runtime.get("phases", {}).get("formal", {}).get("started_at")
    facts = [
        f"model {service['model']}",
        *([f"server version {', '.join(versions)}"] if versions else []),
        mode,
        f"{config['requests']['count']} requests",
        f"data-parallel ranks: {service['dp_size']}",
        f"batch_size {config['aisbench']['model']['batch_size']}",
        *([f"sent from {started[:19].replace('T', ' ')} UTC"] if started else []),
    ]
    return f"<p>{escape(' · '.join(facts))}</p>"


def _prefix_cache(analysis: Mapping[str, Any]) -> list[str]:
    parts = ["<h2>Prefix cache</h2>", _table(["Metric", "Value"], summary_rows(analysis))]
    requests = analysis.get("requests") or {}
    legend = (
        '<p><span class="key theory"></span>theory &nbsp; <span class="key seen"></span>seen by the server, '
        "in hit tokens</p>"
    )
    parts_of_time = enumerate(requests.get("over_time", ()), start=1)
    for title, first, tallies in (
        ("By rank", "Rank", requests.get("by_dp", {})),
        ("By group", "Group", requests.get("by_group", {})),
        (
            "Over time",
            "Part",
            {str(number): tally for number, tally in parts_of_time},
        ),
    ):
        if len(tallies) > 1:
            parts += [f"<h2>{title}</h2>", legend, _bars(first, tallies)]
    findings: Sequence[Mapping[str, Any]] = [*analysis.get("findings", ()), *analysis.get("warnings", ())]
    if findings:
        parts.append("<h2>Findings and warnings</h2>")
    for finding in findings:
        remedy = f"<p>{escape(finding['remedy'])}</p>" if finding.get("remedy") else ""
        text = escape(str(finding.get("message", "")))
        kind = "finding note" if finding.get("severity") == "note" else "finding"
        parts.append(f'<div class="{kind}"><code>{escape(finding["code"])}</code> {text}{remedy}</div>')
    return parts


def _bars(first: str, tallies: Mapping[str, Mapping[str, int]]) -> str:
    """One row an entry: requests that match, hit tokens, and two bars on a common scale."""
    most = max(max(tally["expected_hits"], tally["seen_hits"]) for tally in tallies.values()) or 1
    rows = []
    for name, tally in tallies.items():
        bars = "".join(
            f'<div class="bar {kind}" style="width:{100 * tally[key] / most:.2f}%" title="{tally[key]} tokens"></div>'
            for kind, key in (("theory", "expected_hits"), ("seen", "seen_hits"))
        )
        cells = (
            escape(name),
            f"{tally['matched']} of {tally['requests']}",
            str(tally["expected_hits"]),
            str(tally["seen_hits"]),
            bars,
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{cell}</th>" for cell in (first, "Requests as predicted", "Theory", "Seen", ""))
    return f'<div class="wide"><table class="bars figures"><tr>{head}</tr>{"".join(rows)}</table></div>'


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]], *, kind: str = "words") -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}"><tr>{head}</tr>{body}</table></div>'
