"""The prepared data set that a run sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ais_bench_prefix_cache.datasets.format.manifest_search import FoundManifest, ManifestSearch, find_manifest
from ais_bench_prefix_cache.datasets.kinds import PREPARED_KINDS, sent_kinds
from ais_bench_prefix_cache.datasets.preparing import prepare_data_set
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.telling import Note, ProgressBar, no_bar, no_note
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import Scenario, TokenizerConfig


def find_prepared(scenario: Scenario, note: Note = no_note) -> FoundManifest:
    """The newest prepared data set that the Scenario asks for; ``note`` hears of newer ones that were passed over.

    Raises:
        ArtifactError: there is none.
    """
    search = _search(scenario)
    if search.found is None:
        notes = [f"the newest one differs in {', '.join(search.differing)}"] if search.differing else []
        passed = " ".join(f"({text})" for text in (*notes, *search.notes))
        raise ArtifactError.of(
            Code.NOT_PREPARED,
            str(scenario.path),
            f"no prepared data set of this Scenario lies beside {scenario.run.output_dir} {passed}".rstrip(),
            hint="Run prepare with this Scenario first.",
        )
    for text in search.notes:
        note(f"note: {text}")
    return search.found


def find_or_prepare(
    path: Path,
    *,
    settings: Sequence[str] = (),
    load: Callable[[TokenizerConfig], PromptTokenizer] = load_tokenizer,
    note: Note = no_note,
    bar: ProgressBar = no_bar,
) -> FoundManifest:
    """The data set that a run of the Scenario at ``path`` sends: the newest that fits, else a new one.

    Arguments and errors are those of :func:`~ais_bench_prefix_cache.datasets.preparing.prepare_data_set`.
    """
    search = _search(load_scenario(path, rules=None, settings=settings))
    for text in search.notes:
        note(f"note: {text}")
    if search.found is not None:
        return search.found
    why = f" (the newest one differs in {', '.join(search.differing)})" if search.differing else ""
    note(f"note: no data set fits{why}; one is prepared now")
    made = prepare_data_set(path, settings=settings, load=load, note=note, bar=bar)
    return FoundManifest(made.paths, made.manifest)


def _search(scenario: Scenario) -> ManifestSearch:
    """One that can be sent, where there is any.

    Of another kind, verifying says what to do with it: nothing else is prepared and sent in its place.
    """
    others = PREPARED_KINDS if scenario.conversation is None else ()
    return find_manifest(scenario, ("prepared",), benchmark_modes=sent_kinds(scenario), second_choice=others)
