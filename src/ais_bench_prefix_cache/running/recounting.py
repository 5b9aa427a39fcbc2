"""What an analysis says was measured, worked out again from what it was worked out from.

The texts of both looks at the counters stand in the analysis itself, the records of the requests and the configuration
in the run's directory. A figure that somebody edited, and then made every digest fit again, has to survive this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.analysis.analysis_document import (
    REQUESTS_KEY,
    USAGE_KEY,
    KnownRun,
    SnapshotTexts,
    restored,
)
from ais_bench_prefix_cache.analysis.data_set_analysis import analyze_data_set
from ais_bench_prefix_cache.analysis.performance import PERFORMANCE_KEY, performance_section
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.request_record import RequestRecord
from ais_bench_prefix_cache.analysis.run_facts import FACTS_KEY
from ais_bench_prefix_cache.analysis.seen_request import CachedTokensState, SeenRequest
from ais_bench_prefix_cache.datasets.format.document_checks import MEASURED_STATUSES, compare_exactly
from ais_bench_prefix_cache.datasets.format.documents import read_document, read_sealed
from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory
from ais_bench_prefix_cache.datasets.format.rows import read_rows
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, SnapshotError
from ais_bench_prefix_cache.foundation.findings import Findings
from ais_bench_prefix_cache.foundation.regular_files import open_regular
from ais_bench_prefix_cache.foundation.telling import no_note
from ais_bench_prefix_cache.reporting.records_file import read_records
from ais_bench_prefix_cache.scenario.effective import service_from_effective, validation_from_effective

_FIGURES = (
    "actual",
    "theory_actual_difference_pp",
    "theory_actual_signed_difference_pp",
    "theory_actual_absolute_difference_pp",
)
_JUDGED = ("validation", "warnings", "findings", REQUESTS_KEY, USAGE_KEY)
"""Another version may say these in other words."""
_MEASURED = frozenset({"runtime", REQUESTS_KEY, USAGE_KEY, PERFORMANCE_KEY})
_OF_THE_CORPUS = frozenset({Code.CORPUS_CHANGED.value, Code.CORPUS_MISSING.value})


def with_analysis_of(data_set: VerifiedDataSet, run: RunDirectory | None) -> VerifiedDataSet:
    """The data set with the analysis that ``run`` left in place of its newest. Raises ArtifactError for a damaged one.

    A run that did not finish left none; what another run measured is not taken for it.
    """
    if run is None:
        return data_set
    if not run.analysis.exists():
        known = {key: value for key, value in data_set.analysis.items() if key not in _MEASURED}
        return replace(data_set, analysis={**known, "status": "prepared"})
    return replace(data_set, analysis=read_sealed(run.analysis, what="analysis of the run"))


def recount(data_set: VerifiedDataSet, run: RunDirectory | None = None) -> list[str]:
    """Check what is said to have been measured with a verified data set: in its analysis, which ``run`` may have left.

    Returns what could not be worked out again, for want of the run's files. Raises ArtifactError with every figure that
    comes out otherwise.
    """
    analysis = data_set.analysis
    if analysis.get("status") not in MEASURED_STATUSES:
        return []
    if data_set.planned_elsewhere:
        return ["what was measured: another program may have written it"]
    runtime = restored(lambda found: dict(found["runtime"]), analysis, "runtime")
    sent = runtime.get("rows_sha256", data_set.rows_sha256)
    if sent != data_set.rows_sha256:
        if run is not None:
            return ["what was measured: the rows beside the run are not those that it sent"]
        where = f"{data_set.paths.analysis.name}: runtime.rows_sha256"
        raise ArtifactError.of(Code.WRONG_VALUE, where, "what was measured was measured with other rows")
    directory = run or RunDirectory.recorded(data_set.paths, analysis)
    complete = analysis["status"] == "complete"
    config: Mapping[str, Any] = data_set.manifest["effective_config"]
    run_config = config if directory is None else read_document(directory.config, what="configuration of the run")[0]
    records = read_records(directory.requests) if directory is not None and directory.requests.exists() else []
    expected = restored(
        lambda found: _worked_out(data_set, found, run_config if complete else config, records), analysis, "runtime"
    )
    if records:
        expected[PERFORMANCE_KEY] = restored(
            lambda found: _performance(found, expected, run_config, records), analysis, PERFORMANCE_KEY
        )
    findings, where = Findings(), data_set.paths.analysis.name
    same_version = data_set.manifest["plugin_version"] == __version__
    for key in (*_FIGURES, *(_JUDGED if same_version else ()), *([PERFORMANCE_KEY] if records else [])):
        compare_exactly({key: expected[key]} if key in expected else {}, _only(analysis, key), where, findings)
    for key in ("metrics_baseline", "metrics_after", *((FACTS_KEY,) if same_version else ())):
        wanted, found = (_only(document["runtime"], key) for document in (expected, analysis))
        compare_exactly(wanted, found, f"{where}: runtime", findings)
    if complete and directory is not None:
        _check_texts(directory, analysis, findings)
    findings.raise_if_any()
    return [] if records else ["what the requests took: the run left no records of them"]


def _only(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {key: document[key]} if key in document else {}


def _texts(analysis: Mapping[str, Any], look: str) -> tuple[str, ...]:
    """The texts of a look that an analysis holds. Raises TypeError where it holds none."""
    texts = analysis["runtime"][f"metrics_{look}"]["raw_prometheus"]
    texts = texts if isinstance(texts, list) else [texts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise TypeError(look)
    return tuple(texts)


def _worked_out(
    data_set: VerifiedDataSet, analysis: Mapping[str, Any], config: Mapping[str, Any], records: Sequence[RequestRecord]
) -> dict[str, Any]:
    """The analysis as its own texts, and the records, give it."""
    facts = replace(KnownRun.of_analysis(analysis).facts, cache_prediction=None)
    if records:
        retried, failed = sum(record.retries > 0 for record in records), sum(not record.success for record in records)
        facts = replace(facts, retried_requests=retried, failed_requests=failed)
    looks = [_texts(analysis, look) for look in ("baseline", "after")]
    baseline, after = (SnapshotTexts(texts, tuple(f"text {n}" for n in range(len(texts)))) for texts in looks)
    columns = RequestColumns.from_rows(read_rows(data_set.paths.full)) if data_set.kind.hits_are_known else None
    recorded: dict[str, Any] = analysis.get(REQUESTS_KEY) or {}
    silent: CachedTokensState = "null" if recorded.get("reported_null") else "absent"
    try:
        worked_out = analyze_data_set(
            data_set,
            columns,
            baseline,
            after,
            service=service_from_effective(config),
            validation=validation_from_effective(config),
            status=analysis["status"],
            note=no_note,
            seen=[_seen(record, silent) for record in records],
            facts=facts,
        )
    except SnapshotError as error:
        raise ArtifactError(error.problems) from None
    document: dict[str, Any] = json.loads(json.dumps(worked_out))
    # Only the run knows what it found of the corpus, and which of its servers answered without a figure.
    kept = [each for each in analysis["warnings"] if each.get("code") in _OF_THE_CORPUS]
    if kept:
        document["warnings"] += kept
        document["validation"]["status"] = "PASS_WITH_WARNING"
    silence = ("reported_null", "reported_nothing")
    requests = document.get(REQUESTS_KEY)
    if requests and sum(requests[key] for key in silence) == sum(recorded[key] for key in silence):
        requests |= {key: recorded[key] for key in silence}
    return document


def _seen(record: RequestRecord, silent: CachedTokensState) -> SeenRequest:
    return SeenRequest(
        sequence_index=record.index,
        state=silent if record.hit_tokens is None else "reported",
        cached_tokens=record.hit_tokens,
        prompt_tokens=record.input_tokens,
        attempts=record.retries + 1,
        success=record.success,
        sent=record.sent_s,
    )


def _performance(
    analysis: Mapping[str, Any],
    expected: Mapping[str, Any],
    config: Mapping[str, Any],
    records: Sequence[RequestRecord],
) -> Any:
    section = performance_section(
        records,
        batch_size=analysis["runtime"]["aisbench"]["batch_size"],
        request_rate=config["aisbench"]["model"].get("request_rate"),
        slo=validation_from_effective(config).slo,
        are_turns="turns" in expected.get("theory", {}),
    )
    return json.loads(json.dumps(section))


def _check_texts(directory: RunDirectory, analysis: Mapping[str, Any], findings: Findings) -> None:
    """The run's own files of both looks hold the texts that the analysis holds."""
    for look in ("baseline", "after"):
        for port, text in enumerate(_texts(analysis, look)):
            path = directory.metrics(look, port)
            try:
                with open_regular(path) as stream:
                    same = stream.read() == text.encode()
            except OSError as error:
                findings.add(Code.UNREADABLE_FILE, str(path), f"it cannot be read: {error.strerror}")
                continue
            if not same:
                findings.add(Code.CONTENT_EDITED, str(path), "it is not the text that the analysis holds")
