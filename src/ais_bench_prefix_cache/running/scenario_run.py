"""A run from nothing but a Scenario's file: the data set that fits, made where there is none, sent and analyzed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ais_bench_prefix_cache.datasets.kinds import kind_named
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import (
    ArtifactError,
    PrefixCacheError,
    ScenarioError,
    Terminated,
    os_error_problem,
)
from ais_bench_prefix_cache.foundation.log_files import run_log
from ais_bench_prefix_cache.foundation.telling import Note, ProgressBar, no_bar, no_note
from ais_bench_prefix_cache.running.phases import Phases
from ais_bench_prefix_cache.running.prepared_data import find_or_prepare
from ais_bench_prefix_cache.running.run_sequence import RunOutcome, run_benchmark
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import TokenizerConfig


def run_scenario(
    path: Path,
    *,
    settings: Sequence[str] = (),
    labels: Mapping[str, str] = MappingProxyType({}),
    template_path: Path | None = None,
    load: Callable[[TokenizerConfig], PromptTokenizer] = load_tokenizer,
    note: Note = no_note,
    bar: ProgressBar = no_bar,
) -> RunOutcome:
    """Run the Scenario at ``path``.

    Arguments are those of :func:`~.prepared_data.find_or_prepare` and :func:`~.run_sequence.run_benchmark`.

    Raises:
        PrefixCacheError: of the kind that says what failed; its ``closing`` names the phase and what became of the
            analysis, and so does the text of a KeyboardInterrupt.
    """
    found = find_or_prepare(path, settings=settings, load=load, note=note, bar=bar)
    # Text and images have rules of their own: which of them hold, the prepared manifest says.
    kind = kind_named(found.document["benchmark_mode"])
    scenario = load_scenario(path, rules=kind.scenario_rules, settings=settings)
    if not kind.takes_template and template_path is not None:
        raise ScenarioError.of(
            Code.CONFIG_IS_FOR_TEXT,
            "--config",
            "the prepared data set is not text, so it is sent with the built-in template",
            hint="Leave --config out.",
        )
    with run_log(found.paths.log("run")) as log:
        phases = Phases(log, note)
        analysis_before = _inode(found.paths.analysis)

        def state() -> str:
            # A log that cannot be written any more may fail the run after its analysis has been replaced.
            unchanged = _inode(found.paths.analysis) == analysis_before
            return f"{found.paths.analysis.name} is {'unchanged' if unchanged else 'complete'}"

        try:
            outcome = run_benchmark(
                scenario,
                found.paths.manifest,
                phases=phases,
                bar=bar,
                load=load,
                template_path=None if template_path is None else template_path.absolute(),
                labels=labels,
            )
        except (PrefixCacheError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            failure = error if isinstance(error, PrefixCacheError) else ArtifactError(os_error_problem(error))
            failure.closing = f"run failed in the phase {phases.current}; {state()}"
            raise failure from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"run interrupted in the phase {phases.current}; {state()}") from None
        except Terminated:
            raise Terminated(f"run terminated in the phase {phases.current}; {state()}") from None
        for entry in (*outcome.analysis["warnings"], *outcome.analysis["findings"]):
            log.warning("[%s] %s", entry["code"], entry["message"])
        log.info("complete: %s", outcome.analysis_path)
    return outcome


def _inode(path: Path) -> int | None:
    """Tells a replaced file from the one before; None where there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return None
