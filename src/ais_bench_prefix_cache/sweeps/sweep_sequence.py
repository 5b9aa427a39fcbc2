"""A sweep from its plan to its page: each point at its turn emptied, warmed, proven, sent, counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.datasets.format.writing import claimed
from ais_bench_prefix_cache.datasets.kinds import kind_named
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, PrefixCacheError, Problem, ScenarioError, Terminated
from ais_bench_prefix_cache.foundation.telling import Note, ProgressBar, no_bar, no_note
from ais_bench_prefix_cache.running.scenario_run import run_scenario
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import Scenario, TokenizerConfig
from ais_bench_prefix_cache.sweeps.plan import SweepPlan
from ais_bench_prefix_cache.sweeps.points import point_name, points_of, run_order, settings_of
from ais_bench_prefix_cache.sweeps.results import Sweep, complete_row, failed_row, read_sweep
from ais_bench_prefix_cache.sweeps.sweep_directory import Row, SweepDirectory
from ais_bench_prefix_cache.sweeps.sweep_page import write_sweep_page

Loader = Callable[[TokenizerConfig], PromptTokenizer]


def sweep(
    scenario: Path | str,
    fields: Mapping[str, Sequence[Any]],
    *,
    repeat: int = 1,
    shuffle: int | None = None,
    directory: Path | str | None = None,
    load: Loader = load_tokenizer,
    note: Note = no_note,
    bar: ProgressBar = no_bar,
) -> Sweep:
    """Run a Scenario at every combination of the values of ``fields``, ``repeat`` times.

    ``fields`` maps a field of the Scenario (``"prefix_cache.target_hit_rate"``) to its values. The order is all points
    once, then all again; with ``shuffle`` a random one of that seed. ``directory`` (new or empty) is where the sweep is
    kept, by default one beside the Scenario's ``run.output_dir``. A run that fails is recorded, the others go on.

    Raises:
        ScenarioError: the Scenario cannot be used at some point; nothing has been sent.
        ArtifactError: the directory cannot be used.
    """
    plan = plan_sweep(scenario, points_of(fields), repeat, shuffle)
    return begin_sweep(plan, directory, load=load, note=note, bar=bar)


def plan_sweep(
    scenario: Path | str, points: Sequence[Mapping[str, Any]], repeat: int = 1, shuffle: int | None = None
) -> SweepPlan:
    """The plan, whose Scenario has been checked at every point. Raises ScenarioError with all that is wrong."""
    path = Path(scenario).absolute()
    loaded = load_points(path, points)
    return SweepPlan.of(path, loaded[0].sha256, [dict(point) for point in points], repeat, shuffle)


def load_points(path: Path, points: Sequence[Mapping[str, Any]]) -> list[Scenario]:
    """The Scenario at every point. Raises ScenarioError with every problem once."""
    loaded: list[Scenario] = []
    problems: dict[Problem, None] = {}
    for point in points:
        settings = settings_of(point)
        try:
            kind = kind_named(load_scenario(path, rules=None, settings=settings).benchmark_mode)
            loaded.append(load_scenario(path, rules=kind.scenario_rules, settings=settings))
        except ScenarioError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ScenarioError(problems)
    return loaded


def begin_sweep(
    plan: SweepPlan,
    directory: Path | str | None = None,
    *,
    load: Loader = load_tokenizer,
    note: Note = no_note,
    bar: ProgressBar = no_bar,
) -> Sweep:
    """Run a plan in a new directory. Errors are those of :func:`sweep`."""
    if directory is None:
        settings = settings_of(plan.fields(0))
        output_dir = load_scenario(plan.scenario, rules=None, settings=settings).run.output_dir
        files = SweepDirectory.create(output_dir, datetime.now())
    else:
        files = SweepDirectory(Path(directory).absolute())
        files.path.mkdir(parents=True, exist_ok=True)
        if any(files.path.iterdir()):
            hint = "Go on with an unfinished sweep by --resume, or name another directory."
            raise ArtifactError.of(Code.FILE_EXISTS, str(files.path), "the directory is not empty", hint=hint)
    files.write_plan(plan)
    note(f"sweep: {files.path}")
    return resume_sweep(files.path, load=load, note=note, bar=bar)


def resume_sweep(
    directory: Path | str, *, load: Loader = load_tokenizer, note: Note = no_note, bar: ProgressBar = no_bar
) -> Sweep:
    """Make every run of a sweep that has no result yet: those that failed, too.

    Raises:
        ArtifactError: there is no sweep, its files are damaged, or its Scenario has changed since it was begun.
    """
    files = SweepDirectory(Path(directory).absolute())
    plan = files.read_plan()
    scenario = load_scenario(plan.scenario, rules=None, settings=settings_of(plan.fields(0)))
    if scenario.sha256 != plan.scenario_sha256:
        hint = "Put the Scenario back as it was, or begin a new sweep."
        message = "the Scenario is not the one that this sweep was begun with"
        raise ArtifactError.of(Code.SCENARIO_CHANGED, str(plan.scenario), message, hint=hint)
    with claimed(files.path) as mine:
        if not mine:
            raise ArtifactError.of(Code.DIRECTORY_IN_USE, str(files.path), "another command is working on this sweep")
        try:
            _Sweeping(files, plan, cache(load), note, bar).run()
        except (KeyboardInterrupt, Terminated) as stop:
            raise type(stop)(_stopped(files, plan)) from None
    found = read_sweep(files.path)
    try:
        write_sweep_page(files.page, found)
    except ArtifactError as error:
        note(f"note: no page was made: {error.problems[0]}")
    return found


@dataclass(frozen=True)
class _Sweeping:
    files: SweepDirectory
    plan: SweepPlan
    load: Loader
    note: Note
    bar: ProgressBar

    def run(self) -> None:
        rows = {(row["point"], row["repeat"]): row for row in self.files.read_table()}
        order = run_order(len(self.plan.points), self.plan.repeat, self.plan.shuffle)
        open_runs = [each for each in order if rows.get(each, {}).get("status") != "complete"]
        if len(open_runs) < len(order):
            self.note(f"{len(order) - len(open_runs)} of {len(order)} runs are there already")
        started = time.monotonic()
        for number, (point, repeat) in enumerate(open_runs):
            place = f"run {len(order) - len(open_runs) + number + 1} of {len(order)}"
            again = f", repeat {repeat + 1} of {self.plan.repeat}" if self.plan.repeat > 1 else ""
            self.note(f"{place}: {point_name(self.plan.points[point])}{again}")
            row = self._row(point, repeat)
            # What failed before and is run again stands at the end.
            rows.pop((point, repeat), None)
            rows[point, repeat] = row
            self.files.write_table(list(rows.values()))
            left = (time.monotonic() - started) / (number + 1) * (len(open_runs) - number - 1)
            self.note(f"    {_said(row)}{f'; about {_duration(left)} left' if left else ''}")

    def _row(self, point: int, repeat: int) -> Row:
        fields = self.plan.fields(point)
        begun = datetime.now().astimezone()
        try:
            outcome = run_scenario(
                self.plan.scenario,
                settings=settings_of(fields),
                labels={"sweep": self.files.path.name, "point": str(point), "repeat": str(repeat + 1)},
                load=self.load,
                bar=self.bar,
            )
        except PrefixCacheError as error:
            found = failed_row(error)
        else:
            self.files.keep(outcome.directory, point, repeat)
            found = {**complete_row(outcome), "run_directory": str(outcome.directory.path)}
        return {
            "point": point,
            "repeat": repeat,
            **fields,
            **found,
            "started_at": begun.isoformat(timespec="seconds"),
            "seconds": round((datetime.now().astimezone() - begun).total_seconds(), 3),
        }


def _stopped(files: SweepDirectory, plan: SweepPlan) -> str:
    complete = sum(row["status"] == "complete" for row in files.read_table())
    return (
        f"sweep stopped; {complete} of {plan.runs} runs are complete\n"
        f"go on with: ais-bench-prefix-cache sweep --resume {files.path}"
    )


def _said(row: Row) -> str:
    """One run in one line."""
    if row["status"] == "failed":
        return f"failed [{row['error_code']}] {row['error']}"
    rate = row["counted_hit_rate"]
    parts = [] if rate is None else [f"counted {100 * rate:.2f} %{', as planned' if row['as_planned'] else ''}"]
    if row.get("ttft_ms_p50") is not None:
        parts.append(f"TTFT {row['ttft_ms_p50']:.1f} ms")
    if row.get("requests_per_s") is not None:
        parts.append(f"{row['requests_per_s']:.2f} requests/s")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
