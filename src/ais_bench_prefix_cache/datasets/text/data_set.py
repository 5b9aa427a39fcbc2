"""Writes the four files of a text data set, all or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.datasets.format.documents import sealed
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.writing import FileSet
from ais_bench_prefix_cache.datasets.text.manifest import prepared_manifest
from ais_bench_prefix_cache.datasets.text.rows import full_rows, render_row, request_row
from ais_bench_prefix_cache.datasets.text.theory import analysis_document, theory_of_plan

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.text.prompt_set import PromptSet
    from ais_bench_prefix_cache.planning.plan import Plan
    from ais_bench_prefix_cache.scenario.model import Scenario

Rows = Iterable[dict[str, Any]]


def write_data_set(
    scenario: Scenario,
    paths: RunPaths,
    *,
    plan: Plan,
    prompts: PromptSet,
    corpus_sha256: str,
    tokenizer: Mapping[str, Any],
    warnings: Sequence[Mapping[str, Any]] = (),
    replace: bool,
    progress: Callable[[Rows], Iterator[dict[str, Any]]] = iter,
) -> dict[str, Any]:
    """Write full, requests, analysis and, last, the manifest; returns the analysis.

    Rows are streamed, so memory does not grow with the data. ``progress`` passes the rows through. ``replace`` allows
    the data files to exist already (an inspected manifest is always upgraded). ``warnings`` are those of the analysis
    that theory alone does not give.
    """
    from ais_bench_prefix_cache.planning.summary import trajectory_summary

    theory = theory_of_plan(plan)
    trajectory = trajectory_summary(plan)
    with FileSet(replace=replace) as files:
        full = files.open(paths.full)
        requests = files.open(paths.requests)
        for row in progress(full_rows(plan, prompts)):
            full.write(render_row(row))
            requests.write(render_row(request_row(row, scenario.output_key)))
        target_warning_pp = scenario.validation.target_warning_pp
        analysis = sealed(analysis_document(paths.run_id, theory, trajectory, target_warning_pp, warnings))
        artifacts = {
            "full": full.finish(),
            "requests": requests.finish(),
            "analysis": files.write_document(paths.analysis, analysis),
        }
        manifest = prepared_manifest(
            scenario,
            paths,
            theory=theory,
            trajectory=trajectory,
            prompts=prompts,
            corpus_sha256=corpus_sha256,
            tokenizer=tokenizer,
            artifacts=artifacts,
        )
        files.write_document(paths.manifest, manifest, replace=True)
        files.commit()
    return analysis
