"""What a data set says must follow from its recorded configuration, whoever made all digests fit.

One small data set of each kind; each test changes one thing, seals everything again, and must be told what is wrong.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.sealed_data_sets import KINDS, DataSet, Manifest, Rows, one_of_each_kind, seal

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.datasets.format.documents import render_document, sealed
from ais_bench_prefix_cache.datasets.kinds import verify_data_set
from ais_bench_prefix_cache.foundation.errors import ArtifactError


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> dict[str, Path]:
    """A directory for each kind, made once, and its manifest."""
    return one_of_each_kind(tmp_path_factory.mktemp("originals"), qwen3_tokenizer_dir)


@pytest.fixture
def data_set(originals: dict[str, Path], tmp_path: Path) -> Callable[[str], DataSet]:
    """A fresh copy of a kind's data set."""
    return lambda kind: DataSet.copy_of(originals[kind], tmp_path)


def validate(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["validate", "--manifest", str(path), *options])
    return code, json.loads(capsys.readouterr().out)


def places(report: dict[str, Any]) -> str:
    return " ".join(f"{error['code']} {error['where']}" for error in report["errors"])


def swap(rows: Rows, key: str) -> None:
    rows[2][key], rows[3][key] = rows[3][key], rows[2][key]


def renumbered(rows: Rows) -> None:
    for index, row in enumerate(rows):
        row.update(request_id=f"request-{index:08d}", sequence_index=index)


def reverse(rows: Rows) -> None:
    rows.reverse()
    renumbered(rows)


def scale_shared(rows: Rows) -> None:
    for row in rows:
        row.update(shared_prefix_tokens=0, natural_suffix_tokens=row["actual_input_tokens"] - 16)
        row.update(theoretical_hit_tokens=0, theoretical_hit_rate=0.0)


def other_corpus_row(rows: Rows) -> None:
    """Of the group that the Scenario gives rows 7 and 3."""
    row = next(row for row in rows if row["group_id"] == "group-1" and row["gsm_indices"])
    row.update(gsm_indices=[9], gsm_hashes=["0" * 64])


def two_digests_of_a_row(rows: Rows) -> None:
    """Two requests take the same row of the corpus, and say so with different digests."""
    rows[0].update(gsm_indices=rows[1]["gsm_indices"], gsm_hashes=["0" * 64] * len(rows[1]["gsm_indices"]))


def first_turns(rows: Rows) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of two conversations with one system prompt."""
    firsts = [row for row in rows if row["turn"] == 0]
    return next((a, b) for a in firsts for b in firsts if a is not b and a["group_id"] == b["group_id"])


def another_system_prompt(rows: Rows) -> None:
    first_turns(rows)[1]["token_ids"][0] += 1


def same_message(rows: Rows) -> None:
    """Both say the same for a block, where theory says that they part."""
    a, b = first_turns(rows)
    for row in (a, b):
        begin = row["system_prompt_tokens"] // 16 * 16
        row["token_ids"][begin : begin + 16] = [*row["token_ids"][begin : row["system_prompt_tokens"]], *[5] * 16][:16]


ROW_CHANGES: list[tuple[str, Callable[[Rows], object], str]] = [
    ("text", lambda rows: rows[3].update(max_tokens=rows[3]["max_tokens"] + 1), "max_tokens"),
    ("text", lambda rows: [row.update(max_tokens=5) for row in rows], "max_tokens"),
    ("text", reverse, "group_id"),
    ("text", lambda rows: swap(rows, "actual_input_tokens"), "actual_input_tokens"),
    ("text", lambda rows: rows[3].update(request_random_seed=7), "request_random_seed"),
    ("text", scale_shared, "shared_prefix_tokens"),
    ("text", lambda rows: rows.pop(), "ROW_COUNT"),
    ("csv", lambda rows: rows[0].update(lane_sequence=3), "lane_sequence"),
    ("csv", reverse, "occurrence_index_within_group"),
    ("csv", lambda rows: rows.pop(), "ROW_COUNT"),
    ("mm", lambda rows: [row.update(max_out_len=5) for row in rows], "max_out_len"),
    ("trace", lambda rows: rows[1].update(timestamp_ms=-1), "timestamp_ms"),
    ("trace", lambda rows: rows[1].update(trace_hash_ids=[1, 2, 3, 4, 5]), "trace_hash_ids"),
    ("trace", lambda rows: rows[0].update(theoretical_hit_tokens=32), "SHARING_DIFFERS"),
    ("text", two_digests_of_a_row, "gsm_hashes"),
    ("text", lambda rows: rows[0]["gsm_hashes"].pop(), "gsm_hashes"),
    ("overrides", other_corpus_row, "gsm_indices"),
    ("conversation", lambda rows: rows[0].update(answer="said"), "answer"),
    ("conversation", lambda rows: rows[1].update(system_prompt="said"), "system_prompt"),
    ("conversation", another_system_prompt, "PREFIX_DIFFERS"),
    ("scripted", same_message, "NOT_UNIQUE"),
    ("distribution", lambda rows: [row.update(max_tokens=5) for row in rows], "max_tokens"),
    (
        "distribution",
        lambda rows: rows[4].update(parent_prompt_index=5 - rows[4]["parent_prompt_index"], prefix_id=0),
        "parent_prompt_index",
    ),
]


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    ROW_CHANGES,
    ids=[f"{number} {kind} {expected}" for number, (kind, _, expected) in enumerate(ROW_CHANGES)],
)
def test_rows_that_the_configuration_does_not_give_are_named(
    kind: str,
    change: Callable[[Rows], object],
    expected: str,
    data_set: Callable[[str], DataSet],
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged = data_set(kind)
    damaged.change_rows(change)
    damaged.seal()
    code, report = validate(damaged.path, capsys)
    assert code == 2
    assert expected in places(report)


def put(document: Manifest, path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for section in sections:
        document = document[section]
    document[key] = value


CONFIGURATION_CHANGES: list[tuple[str, str, Any]] = [
    *((kind, "effective_config.schema_version", "2.0") for kind in ("text", "mm", "trace")),
    *((kind, "effective_config.service.inference_url", 5) for kind in ("text", "mm", "trace")),
    *((kind, "effective_config.run.random_seed", "x") for kind in ("text", "mm", "trace")),
    *((kind, "effective_config.service.api_key", "sk-1") for kind in ("text", "mm", "trace")),
    *((kind, "effective_config.surprise", 1) for kind in KINDS),
    ("text", "effective_config.prefix_cache.order.strategy", "nonsense"),
    ("text", "effective_config.prefix_cache.order.strategy", "global_shuffle"),
    ("text", "effective_config.prefix_cache.groups.assignment", 5),
    ("text", "effective_config.prefix_cache.groups.count", 3),
    ("text", "effective_config.prefix_cache.target_hit_rate", 0.1),
    ("text", "effective_config.prefix_cache.mode", "cold"),
    ("text", "effective_config.requests.count", 2**31 - 1),
    ("text", "effective_config.requests.input_length.values", [48, 70, 55, 90, 61, 84, 49, 78]),
    ("text", "effective_config.requests.output_length.max", 20),
    ("text", "effective_config.run.random_seed", 43),
    ("text", "effective_config.service.dp_size", 3),
    ("text", "effective_config.service.kv_cache_blocks", 4),
    ("text", "prefix_cache.trajectory.largest_distance_pp", 0.5),
    ("text", "prefix_cache.trajectory.path", "beam"),
    ("csv", "effective_config.prefix_cache.order.strategy", "global_shuffle"),
    ("csv", "effective_config.service.dp_size", 1),
    ("mm", "effective_config.requests.count", 5),
    ("mm", "effective_config.requests.output_length.value", 5),
    ("trace", "effective_config.service.dp_size", 1),
    ("trace", "trace.block_size", 32),
    ("csv", "effective_config.requests.output_length.path", True),
    ("csv", "effective_config.requests.output_length.more", 1),
    ("overrides", "effective_config.prefix_cache.groups.overrides.group-1.corpus_selection.values", [7]),
    ("conversation", "effective_config.conversation.count", 4),
    ("conversation", "effective_config.conversation.turns.max", 4),
    ("conversation", "effective_config.service.dp_size", 1),
    ("scripted", "effective_config.conversation.answers", "generated"),
    ("distribution", "effective_config.seed", 43),
    ("distribution", "effective_config.prefix_count", 4),
    ("distribution", "effective_config.repeat_rate", 0.5),
    ("distribution", "effective_config.prefix_algorithm", "zipf"),
    ("distribution", "effective_config.input_lengths.order", "increasing"),
    ("distribution", "effective_config.input_lengths.distribution", [[40, 61, 8]]),
    ("distribution", "effective_config.output_lengths.max_output_len", 10),
    ("distribution", "prefix_cache.reachable_prefix_tokens", 1),
]


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    CONFIGURATION_CHANGES,
    ids=[f"{number} {kind} {path}" for number, (kind, path, _) in enumerate(CONFIGURATION_CHANGES)],
)
def test_a_configuration_that_does_not_give_the_rows_is_refused(
    kind: str, path: str, value: Any, data_set: Callable[[str], DataSet], capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = data_set(kind)
    put(damaged.manifest, path, value)
    damaged.seal()
    code, report = validate(damaged.path, capsys)
    assert code == 2
    assert not report["ok"]


@pytest.mark.parametrize("kind", KINDS)
def test_deep_makes_the_rows_again(
    kind: str,
    originals: dict[str, Path],
    data_set: Callable[[str], DataSet],
    qwen3_tokenizer_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    intact = data_set(kind)
    base = originals["text"].parents[2]
    options = ["--tokenizer", str(qwen3_tokenizer_dir), "--corpus", str(base / "corpus.jsonl")]
    options += ["--trace", str(base / "trace.jsonl")] if kind == "trace" else []
    code, report = validate(intact.path, capsys, "--deep", *options)
    assert (code, report["deep"]["rebuilt"], report["deep"]["tokenizer_named_by"]) == (0, True, "--tokenizer")
    # Two texts of one length change places: every count is as it was.
    before = intact.rows(next(iter(intact.manifest["artifacts"])))
    lengths = [row.get("actual_input_tokens", row.get("actual_token_length", 0)) for row in before]
    pairs = [(a, b) for a in range(len(before)) for b in range(a) if lengths[a] == lengths[b]]
    if not pairs:
        return

    def exchange(rows: Rows) -> None:
        (a, b), keys = (
            pairs[0],
            ("question", "seed_sha256", "divergence_block_sha256", "seed_marker_token_id", "prompt"),
        )
        for key in keys:
            if key in rows[a]:
                rows[a][key], rows[b][key] = rows[b][key], rows[a][key]

    intact.change_rows(exchange)
    intact.seal()
    code, report = validate(intact.path, capsys, "--deep", *options)
    assert code == 2, "the texts of two rows were exchanged"
    found = {error["code"] for error in report["errors"]}
    assert found == {"NOT_AS_BUILT"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_at_once(
    kind: str, data_set: Callable[[str], DataSet], capsys: pytest.CaptureFixture[str]
) -> None:
    intact = data_set(kind)
    for path in (*map(intact.file, intact.manifest["artifacts"]), intact.path):
        content = path.read_bytes()
        aside = path.with_name("aside")
        aside.write_bytes(content)
        for replace in (
            lambda path=path: os.mkfifo(path),
            lambda path=path, aside=aside: path.symlink_to(aside),
            lambda path=path: path.symlink_to("/dev/zero"),
            lambda path=path: path.mkdir(),
        ):
            path.unlink()
            replace()
            code, report = validate(intact.path, capsys)
            assert (code, report["errors"][0]["code"]) == (2, "UNREADABLE_FILE"), path.name
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_a_manifest_names_is_opened(
    kind: str, data_set: Callable[[str], DataSet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tokenizer or corpus of the manifest can do nothing, because nobody looks at it."""
    damaged = data_set(kind)
    trap = tmp_path / "trap"
    os.mkfifo(trap)
    for place in ("effective_config.tokenizer.path", "tokenizer.path", "effective_config.corpus.path"):
        put(damaged.manifest, place, str(trap))
    put(damaged.manifest, "effective_config.tokenizer.trust_remote_code", True)
    damaged.seal()
    opened: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("open", "os.listdir", "os.scandir"):
            opened.append(str(arguments[0]))

    watching = True
    sys.addaudithook(watch)
    try:
        assert validate(damaged.path, capsys)[0] == 0
        code, report = validate(damaged.path, capsys, "--deep")
    finally:
        watching = False
    assert (code, [error["code"] for error in report["errors"]]) == (2, ["TOKENIZER_NEEDED"])
    assert "nothing about its tokens" in report["errors"][0]["message"]
    assert str(damaged.path) in opened
    assert str(trap) not in opened


def test_deep_without_a_corpus_says_what_is_not_proven(
    data_set: Callable[[str], DataSet], qwen3_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = validate(data_set("text").path, capsys, "--deep", "--tokenizer", str(qwen3_tokenizer_dir))
    assert (code, report["deep"]["rebuilt"]) == (0, False)
    assert report["deep"]["not_proven"] == [
        "that making the prompts again gives the same bytes: the corpus (--corpus) is not at hand"
    ]


def test_the_users_scenario_names_the_sources(
    originals: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = originals["text"].parents[2] / "text.json"
    capsys.readouterr()
    assert main(["validate", "--deep", "--scenario", str(scenario)]) == 0
    deep = json.loads(capsys.readouterr().out)["deep"]
    assert (deep["tokenizer_named_by"], deep["rebuilt"], deep["not_proven"]) == ("--scenario", True, [])


def test_a_signature_says_who_made_it(
    data_set: Callable[[str], DataSet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    intact, key, other = data_set("text"), tmp_path / "key", tmp_path / "other"
    key.write_bytes(b"k" * 32)
    other.write_bytes(b"o" * 32)
    (tmp_path / "short").write_bytes(b"k" * 31)

    def code_of(*options: str) -> str:
        code, report = validate(intact.path, capsys, *options)
        return "" if code == 0 else report["errors"][0]["code"]

    assert code_of("--signature", str(key)) == "SIGNATURE_INVALID"
    assert code_of("--seal", str(tmp_path / "short")) == "KEY_UNUSABLE"
    assert code_of("--seal", str(key)) == ""
    signature = intact.path.with_name(intact.path.name + ".hmac")
    content = b"ais-bench-prefix-cache manifest 1\n" + intact.path.read_bytes()
    assert signature.read_text() == f"hmac-sha256 {hmac.new(b'k' * 32, content, 'sha256').hexdigest()}\n"
    assert code_of("--signature", str(key)) == ""
    assert code_of("--signature", str(other)) == "SIGNATURE_INVALID"
    put(intact.manifest, "plugin_version", "9.9")
    intact.seal()
    assert code_of() == ""
    assert code_of("--signature", str(key)) == "SIGNATURE_INVALID"


def test_a_trace_has_no_analysis_of_a_run(
    data_set: Callable[[str], DataSet], capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = data_set("trace")
    path = damaged.file("analysis")
    document = json.loads(path.read_bytes())
    document["status"] = "complete"
    seal(path, document)
    damaged.seal()
    code, report = validate(damaged.path, capsys)
    assert (code, [error["code"] for error in report["errors"]]) == (2, ["WRONG_VALUE"])
    assert report["errors"][0]["where"].endswith("analysis.json: status")


def test_a_configuration_with_another_digest_is_named(
    data_set: Callable[[str], DataSet], capsys: pytest.CaptureFixture[str]
) -> None:
    intact = data_set("text")
    document = json.loads(intact.path.read_text(encoding="utf-8"))
    intact.path.write_bytes(render_document(sealed({**document, "effective_config_sha256": "0" * 64})))
    code, report = validate(intact.path, capsys)
    assert (code, places(report)) == (2, f"CONFIG_EDITED {intact.path.name}: effective_config_sha256")


def test_a_data_set_of_copies_is_not_sent(data_set: Callable[[str], DataSet]) -> None:
    with pytest.raises(ArtifactError, match="it has no ranks, warm-up or analysis") as caught:
        verify_data_set(data_set("distribution").path)
    assert caught.value.problems[0].code == "DISTRIBUTION"
