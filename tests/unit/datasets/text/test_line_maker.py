"""The same bytes from any number of processes, and from rows rendered one by one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.prompt_plans import load
from tests.doubles.tokenizer_families import CORPORA

from ais_bench_prefix_cache.datasets.format.rows import render_row
from ais_bench_prefix_cache.datasets.range_workers import made_in_order
from ais_bench_prefix_cache.datasets.text.assembly import AssembledPromptSet, build_prompt_set
from ais_bench_prefix_cache.datasets.text.kind import TextLedger, text_content
from ais_bench_prefix_cache.datasets.text.line_maker import LineMaker
from ais_bench_prefix_cache.exact_text.corpus import load_corpus
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.planning.planner import plan_scenario
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import Scenario

COUNT = 150
WARM = {"mode": "warmup", "target_hit_rate": 0.5, "seed_blocks": 1, "minimum_non_shared_length": 16}
COLD = WARM | {"mode": "cold", "target_hit_rate": 0.4, "seed_blocks": 2, "minimum_non_shared_length": 32}
OVERRIDES = {
    "group-1": {"corpus_selection": {"mode": "indices", "values": [3, 1, 4]}},
    "group-2": {"corpus_selection": {"mode": "indices", "values": [2]}},
}
CASES: dict[str, dict[str, Any]] = {
    "warm-up": {"prefix_cache": WARM | {"groups": {"count": 4}}},
    "cold": {"prefix_cache": COLD | {"groups": {"count": 3}}},
    "overrides": {"prefix_cache": WARM | {"groups": {"count": 4, "overrides": OVERRIDES}}},
    "selection": {"corpus": {"selection": {"mode": "indices", "values": [0, 5, 2, 2, 7]}}},
}
Prepared = tuple[Scenario, Plan, AssembledPromptSet]


@pytest.fixture(scope="session")
def prepared(tokenizer_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Prepared]:
    def make(case: str, family: str = "llama2", verify: str = "proof") -> Prepared:
        directory = tmp_path_factory.mktemp("prepared")
        rows = "".join(json.dumps({"question": row}) + "\n" for row in CORPORA["mixed"])
        (directory / "corpus.jsonl").write_text(rows, encoding="utf-8")
        document = {
            "schema_version": "1.0",
            "run": {"run_id": "w", "random_seed": 7, "output_dir": "./out"},
            "tokenizer": {"path": str(tokenizer_dir(family)), "block_size": 16},
            "corpus": {"path": "./corpus.jsonl", "field": "question"} | CASES[case].get("corpus", {}),
            "requests": {
                "count": COUNT,
                "input_length": {"mode": "range", "ranges": [{"min": 70, "max": 400, "count": COUNT}]},
                "output_length": {"mode": "fixed", "value": 8},
            },
            "output": {"output_key": "max_tokens"},
            "prefix_cache": CASES[case].get("prefix_cache", WARM | {"groups": {"count": 2}}),
            "service": {"dp_size": 1},
        }
        (directory / "scenario.json").write_text(json.dumps(document))
        scenario = load_scenario(directory / "scenario.json")
        plan = plan_scenario(scenario)
        corpus = load_corpus(scenario.corpus.path, "question")
        tokenizer, _ = load(tokenizer_dir(family))
        return scenario, plan, build_prompt_set(scenario, plan, tokenizer, corpus, verify=verify)  # type: ignore[arg-type]

    return make


def expected_lines(scenario: Scenario, plan: Plan, prompts: AssembledPromptSet) -> tuple[bytes, bytes]:
    """The files of a data set, each row rendered by itself from its whole text."""
    content = text_content(scenario, plan, prompts)
    rows = [row.as_json() for row in content.rows]
    requests = [content.ledger.companions(index, row)[0] for index, row in enumerate(rows)]
    return b"".join(map(render_row, rows)), b"".join(map(render_row, requests))


def maker_of(scenario: Scenario, plan: Plan, prompts: AssembledPromptSet) -> LineMaker:
    ledger = text_content(scenario, plan, prompts).ledger
    assert isinstance(ledger, TextLedger)
    return LineMaker(scenario, ledger.prefixes, prompts.ranges, prompts.row_sha256(), prompts.encode_whole)


@pytest.mark.parametrize("case", CASES)
def test_any_ranges_give_the_lines_of_rows_rendered_one_by_one(case: str, prepared: Callable[..., Prepared]) -> None:
    scenario, plan, prompts = prepared(case)
    full, requests = expected_lines(scenario, plan, prompts)
    for size in (1, 7, 64, COUNT):
        made: LineMaker = pickle.loads(pickle.dumps(maker_of(scenario, plan, prompts)))
        lines = made.lines()
        # The last ranges first: none needs the ones before it.
        parts = list(prompts.parts(size))[::-1]
        batches = [batch for part in parts for batch in list(made.batches(part, lines))[::-1]][::-1]
        assert b"".join(batch.lines[0] for batch in batches) == full
        assert b"".join(batch.lines[1] for batch in batches) == requests
        assert sum(batch.rows for batch in batches) == COUNT


@pytest.mark.parametrize(
    ("workers", "verify"),
    [
        (1, "proof"),
        (2, "proof"),
        pytest.param(3, "proof", marks=pytest.mark.slow),
        pytest.param(2, "full", marks=pytest.mark.slow),
    ],
)
def test_any_number_of_workers_writes_the_same_bytes(
    workers: int, verify: str, prepared: Callable[..., Prepared]
) -> None:
    scenario, plan, prompts = prepared("overrides", verify=verify)
    full, requests = expected_lines(scenario, plan, prompts)
    batches = list(made_in_order(maker_of(scenario, plan, prompts), prompts.parts(20), workers=workers))
    assert [batch.rows for batch in batches] == [20] * 7 + [10]
    assert b"".join(batch.lines[0] for batch in batches) == full
    assert b"".join(batch.lines[1] for batch in batches) == requests


def test_unproven_prompts_are_joined_from_the_same_pieces(prepared: Callable[..., Prepared]) -> None:
    scenario, plan, prompts = prepared("warm-up", "unigram without split")
    full, _ = expected_lines(scenario, plan, prompts)
    ledger = text_content(scenario, plan, prompts).ledger
    assert isinstance(ledger, TextLedger)
    assert not prompts.proven
    lines = maker_of(scenario, plan, prompts).lines()
    assert b"".join(lines.batch(ledger, drafts).lines[0] for drafts in prompts.drafts()) == full


def test_a_worker_that_refutes_the_proof_says_so(
    prepared: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, plan, prompts = prepared("warm-up", verify="full")
    made = maker_of(scenario, plan, prompts)
    whole = PromptTokenizer.encode_batch
    monkeypatch.setattr(PromptTokenizer, "encode_batch", lambda self, texts: [[*ids, 1] for ids in whole(self, texts)])
    with pytest.raises(GenerationError, match="the prompt of request 0 has "):
        list(made.batches(next(prompts.parts(COUNT)), made.lines()))
    error = GenerationError(prompts.ranges.lexicon.not_exact("request 3 differs").problems)
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


def test_a_tokenizer_arrives_in_another_process_as_it_was(tokenizer_dir: Callable[[str], Path]) -> None:
    tokenizer, raw = load(tokenizer_dir("llama2"))
    arrived: PromptTokenizer = pickle.loads(pickle.dumps(tokenizer))
    texts = [*CORPORA["mixed"], *tokenizer.added_token_texts()]
    assert arrived.encode_batch(texts) == [raw(text)["input_ids"] for text in texts]
    assert (arrived.prefix_ids, arrived.join_proof) == (tokenizer.prefix_ids, tokenizer.join_proof)
