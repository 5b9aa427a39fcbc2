"""``prepare --mode conversation``, judged by raw ``transformers`` and by tokens put together here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.tokenizer_families import FAMILIES, UNPROVEN, family_params

from ais_bench_prefix_cache.cli import main

SECTION = {
    "count": 7,
    "turns": {"mode": "uniform", "min": 1, "max": 4},
    "system_prompts": {"count": 2, "length": {"mode": "explicit", "values": [40, 33]}},
    "first_message_length": {"mode": "uniform", "min": 3, "max": 30},
    "message_length": {"mode": "uniform", "min": 1, "max": 20},
    "answer_length": {"mode": "uniform", "min": 1, "max": 20},
}


@pytest.fixture
def prepare(tmp_path: Path, gsm8k_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(
        tokenizer: Path, *, block_size: int = 16, dp_size: int = 1, expect: int = 0, name: str = "talk", **section: Any
    ) -> Any:
        scenario = tmp_path / f"{name}.json"
        document = {
            "run": {"run_id": name, "output_dir": str(tmp_path / name)},
            "tokenizer": {"path": str(tokenizer), "block_size": block_size},
            "corpus": {"path": str(gsm8k_path)},
            "service": {"dp_size": dp_size},
            "conversation": {**SECTION, **section},
        }
        scenario.write_text(json.dumps(document))
        assert main(["prepare", "--scenario", str(scenario)]) == expect
        printed = capsys.readouterr()
        return printed.err if expect else json.loads(printed.out)

    return run


def rows_of(files: dict[str, str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(files["full"]).read_text().splitlines()]


@pytest.mark.parametrize("answers", ["generated", "scripted"])
@pytest.mark.parametrize("family", family_params(*(each for each in (*FAMILIES, *UNPROVEN) if each != "bytes only")))
def test_every_text_has_its_tokens_and_parts_where_planned(
    prepare: Any, tokenizer_dir: Any, family: str, answers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    directory = tokenizer_dir(family)
    files = prepare(directory, answers=answers)
    raw = AutoTokenizer.from_pretrained(directory)

    def encoded(text: str) -> list[int]:
        ids: list[int] = raw(text, add_special_tokens=False)["input_ids"]
        return ids

    rows = rows_of(files)
    prompts: list[list[int]] = []
    histories: list[list[int]] = []
    for row in rows:
        system = encoded(row["system_prompt"]) if row["system_prompt"] else []
        assert row["token_ids"] == [*system, *encoded(row["question"])]
        assert (len(system), len(row["token_ids"])) == (
            row["system_prompt_tokens"],
            row["system_prompt_tokens"] + row["message_tokens"],
        )
        before = [] if row["continues"] is None else histories[row["continues"]]
        prompts.append([*before, *row["token_ids"]])
        assert len(prompts[-1]) == row["actual_input_tokens"]
        answer = row["answer_token_ids"]
        if answers == "scripted":
            assert answer == encoded(row["answer"]) and len(answer) == row["max_tokens"]
            assert row["spare_token_id"] != answer[0]
        else:
            assert (row["answer"], answer, row["spare_token_id"]) == ("none", [], None)
            answer = [-1] * row["max_tokens"]
        histories.append([*prompts[-1], *answer])
    first_turns = [(row, prompt) for row, prompt in zip(rows, prompts, strict=True) if row["turn"] == 0]
    for number, (row, prompt) in enumerate(first_turns):
        for other, earlier in first_turns[:number]:
            pairs = zip(prompt, earlier, strict=False)
            common = next(place for place, (one, two) in enumerate(pairs) if one != two)
            shared = row["system_prompt_tokens"] if row["group_id"] == other["group_id"] else 0
            assert shared <= common < shared // 16 * 16 + 16
    assert main(["validate", "--manifest", files["manifest"], "--deep", "--tokenizer", str(directory)]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("family", family_params(*(each for each in FAMILIES if each != "bytes only")))
def test_texts_of_whole_histories_have_the_planned_tokens(
    prepare: Any, tokenizer_dir: Any, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Special tokens are those that the server puts before every text."""
    from transformers import AutoTokenizer

    directory = tokenizer_dir(family)
    raw = AutoTokenizer.from_pretrained(directory)
    # BLOOM's vocabulary has tokens with a space in their middle.
    if family == "bloom" or raw.encode("a")[-1:] != raw.encode("a", add_special_tokens=False)[-1:]:
        said = prepare(directory, form="text", answers="scripted", expect=2)
        assert "a special token after every text" in said or "histories of texts are not exact" in said
        return
    files = prepare(directory, form="text", answers="scripted")
    histories: list[str] = []
    prompts: list[list[int]] = []
    for row in rows_of(files):
        before = [] if row["continues"] is None else [histories[row["continues"]]]
        text = " ".join([*before, *filter(None, (row["system_prompt"], row["question"]))])
        prompts.append(raw.encode(text))
        assert len(prompts[-1]) == row["actual_input_tokens"]
        assert prompts[-1][-len(row["token_ids"]) :] == row["token_ids"]
        if row["continues"] is not None:
            # Up to the answer it is what was computed before, and the answer is encoded as planned.
            known, answer = prompts[row["continues"]], rows_of(files)[row["continues"]]["answer_token_ids"]
            assert prompts[-1][: len(known) + len(answer)] == [*known, *answer]
        histories.append(f"{text} {row['answer']}")
        spare = raw.encode(f"{text} {row['spare']}")
        assert spare == [*prompts[-1], row["spare_token_id"]] and row["spare_token_id"] != row["answer_token_ids"][0]
        first = row["answer"].split(" ")[0]
        assert not first.startswith(row["spare"]) and not row["spare"].startswith(first)
    assert main(["validate", "--manifest", files["manifest"], "--deep", "--tokenizer", str(directory)]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("family", UNPROVEN)
def test_texts_whose_words_are_not_provably_alone_are_refused(prepare: Any, tokenizer_dir: Any, family: str) -> None:
    said = prepare(tokenizer_dir(family), form="text", answers="scripted", expect=2)
    assert "histories of texts are not exact" in said and 'Use conversation.form "token_ids".' in said


def test_theory_stands_in_manifest_and_analysis(prepare: Any, qwen3_tokenizer_dir: Path) -> None:
    files = prepare(qwen3_tokenizer_dir)
    rows, manifest = rows_of(files), json.loads(Path(files["manifest"]).read_text())
    theory = json.loads(Path(files["analysis"]).read_text())["theory"]
    hits = [row["theoretical_hit_tokens"] for row in rows]
    assert (
        (theory["requests"], theory["hit_tokens"])
        == (len(rows), sum(hits))
        == (manifest["requests"]["count"], sum(hits))
    )
    for key, field in (("groups", "group_id"), ("dp", "dp_rank"), ("turns", "turn")):
        for name, share in theory[key].items():
            part = [row for row in rows if str(row[field]) == name]
            assert share["hit_tokens"] == sum(row["theoretical_hit_tokens"] for row in part)
            assert share["input_tokens"] == sum(row["actual_input_tokens"] for row in part)
    assert manifest["conversations"]["count"] == 7


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("theoretical_hit_tokens", 16, "line 1: theoretical_hit_tokens"),
        ("continues", 0, "line 1: continues"),
        ("token_ids", [5], "line 1: token_ids: it has 1 tokens"),
        ("spare_token_id", None, "line 1: spare_token_id: it says None"),
        ("answer_token_ids", [2**32], "line 1: answer_token_ids"),
    ],
)
def test_what_does_not_follow_from_the_scenario_is_found(
    prepare: Any, qwen3_tokenizer_dir: Path, key: str, value: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = prepare(qwen3_tokenizer_dir, answers="scripted")
    path = Path(files["full"])
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([json.dumps({**json.loads(first), key: value}, ensure_ascii=False) + "\n", *others]))
    assert main(["validate", "--manifest", files["manifest"]]) == 2
    assert said in capsys.readouterr().err


def test_lengths_of_a_file_become_part_of_the_data_set(
    prepare: Any, qwen3_tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = tmp_path / "turns.csv"
    lengths.write_text("turns\n2\n1\n3\n")
    files = prepare(qwen3_tokenizer_dir, count=3, turns={"mode": "csv", "path": str(lengths)})
    lengths.unlink()
    config = json.loads(Path(files["manifest"]).read_text())["effective_config"]
    assert config["conversation"]["turns"] == {"mode": "explicit", "values": [2, 1, 3]}
    assert [row["turn"] for row in rows_of(files)] == [0, 1, 0, 0, 1, 2]
    assert main(["validate", "--manifest", files["manifest"]]) == 0
    capsys.readouterr()


def test_a_page_of_one_token_needs_first_tokens_that_differ(prepare: Any, qwen3_tokenizer_dir: Path) -> None:
    rows = rows_of(prepare(qwen3_tokenizer_dir, block_size=1, count=40, turns={"mode": "fixed", "value": 1}))
    firsts = [row["token_ids"][row["system_prompt_tokens"]] for row in rows]
    assert len(set(firsts)) == 40


def test_a_code_without_room_is_refused(prepare: Any, qwen3_tokenizer_dir: Path) -> None:
    error = prepare(
        qwen3_tokenizer_dir,
        count=3000,
        turns={"mode": "fixed", "value": 1},
        system_prompts={"count": 1, "length": {"mode": "fixed", "value": 31}},
        expect=2,
    )
    assert "CODE_TOO_LONG" in error
    assert "needs 2 tokens, but message 0 begins 1 before the end of a block" in error


def test_a_vocabulary_without_words_of_one_token_is_refused(prepare: Any, tokenizer_dir: Any) -> None:
    assert "NO_CODE_WORDS" in prepare(tokenizer_dir("bytes only"), expect=2)


def test_a_cache_that_forgets_is_warned_of(
    tmp_path: Path, gsm8k_path: Path, qwen3_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "small.json"
    document = {
        "run": {"run_id": "small", "output_dir": str(tmp_path / "small")},
        "tokenizer": {"path": str(qwen3_tokenizer_dir), "block_size": 16},
        "corpus": {"path": str(gsm8k_path)},
        "service": {"kv_cache_blocks": 30, "dp_size": 1},
        "conversation": {**SECTION, "turns": {"mode": "fixed", "value": 5}},
        "aisbench": {"model": {"batch_size": 7}},
    }
    scenario.write_text(json.dumps(document))
    assert main(["prepare", "--scenario", str(scenario)]) == 0
    files = json.loads(capsys.readouterr().out)
    analysis = json.loads(Path(files["analysis"]).read_text())
    (warning,) = analysis["warnings"]
    assert warning["code"] == "CACHE_TOO_SMALL"
    assert warning["predicted_hits"] < warning["planned_hits"] == analysis["theory"]["hit_tokens"]
    assert main(["validate", "--manifest", files["manifest"]]) == 0
    capsys.readouterr()


BRANCHES = {"after_turn": 1, "count": 3, "turns": {"mode": "fixed", "value": 2}}


@pytest.mark.parametrize("routing", ["sticky", "round_robin", "free"])
@pytest.mark.parametrize("message", ["own", "same"])
@pytest.mark.parametrize("answers", ["generated", "scripted"])
def test_branches_begin_differently_or_are_the_same_request(
    prepare: Any,
    qwen3_tokenizer_dir: Path,
    answers: str,
    message: str,
    routing: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = {"branches": {**BRANCHES, "message": message}, "turns": {"mode": "fixed", "value": 3}}
    files = prepare(qwen3_tokenizer_dir, **section, answers=answers, routing=routing, dp_size=2)
    rows = rows_of(files)
    assert len(rows) == 7 * (9 if message == "own" else 6)
    assert {row["dp_rank"] for row in rows} == ({None} if routing == "free" else {0, 1})
    by_history: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["continues"] is not None:
            by_history.setdefault(row["continues"], []).append(row)
    siblings = [each for each in by_history.values() if len(each) > 1]
    assert [len(each) for each in siblings] == [4] * 7
    for first, *others in siblings:
        assert first["branch"] == 0
        for number, other in enumerate(others, 1):
            assert other["branch"] == number
            if message == "same":
                assert other["repeats"] == first["sequence_index"]
                assert (other["token_ids"], other["question"]) == (first["token_ids"], first["question"])
            else:
                assert other["repeats"] is None
        if message == "own":
            assert len({row["token_ids"][0] for row in (first, *others)}) == 4
    manifest, theory = (json.loads(Path(files[key]).read_text()) for key in ("manifest", "analysis"))
    assert manifest["conversations"]["branches"] == 21
    assert manifest["dp"] == {"size": 2, "route": routing}
    assert (theory["theory"]["dp"] == {}) == ("range" in theory["theory"]) == (routing == "free")
    arguments = ["validate", "--manifest", files["manifest"], "--deep", "--tokenizer", str(qwen3_tokenizer_dir)]
    assert main(arguments) == 0, capsys.readouterr().err
    capsys.readouterr()


def test_what_a_target_misses_is_told(prepare: Any, qwen3_tokenizer_dir: Path) -> None:
    files = prepare(qwen3_tokenizer_dir, target_hit_rate=0.8)
    analysis = json.loads(Path(files["analysis"]).read_text())
    assert analysis["theoretical_hit_rate"] == pytest.approx(0.8, abs=0.005)
    assert analysis["warnings"] == []
    files = prepare(qwen3_tokenizer_dir, name="far", target_hit_rate=0.01)
    (warning,) = json.loads(Path(files["analysis"]).read_text())["warnings"]
    assert (warning["code"], warning["requested_target_hit_rate"]) == ("TARGET_DEVIATION", 0.01)


def test_more_branches_than_first_words_are_refused(prepare: Any, tokenizer_dir: Any) -> None:
    """A vocabulary of few words of one token."""
    error = prepare(
        tokenizer_dir("gpt2"),
        count=1,
        turns={"mode": "fixed", "value": 1},
        branches={"count": 1000},
        expect=2,
    )
    assert "CODE_TOO_LONG" in error
    assert "of a history needs a first token of its own" in error
