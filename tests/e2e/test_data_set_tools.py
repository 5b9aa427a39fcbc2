"""The documented examples of `distribution`, `extract` and `prompts` run as they stand, only smaller."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.cli import main

DOCUMENTS = ("distribution.md", "extract.md", "prompt-sources.md")
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


def blocks(text: str) -> list[str]:
    return re.findall(r"```(?:console|python|csv|json)\n.*?```", text, re.DOTALL)


def commands(document: Path) -> list[list[str]]:
    text = "\n".join(CONSOLE.findall(document.read_text(encoding="utf-8")))
    return [shlex.split(line)[1:] for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def smaller(command: list[str]) -> list[str]:
    """A twentieth of the lengths and counts, in blocks of an eighth."""
    made = list(command)
    for option, divisor in (("--input-len", 20), ("--num-prompts", 10), ("--blocksize", 8)):
        if option in made and command[0] == "distribution":
            place = made.index(option) + 1
            made[place] = str(max(1, int(made[place]) // divisor))
    if "--distribution" in made:
        place = made.index("--distribution") + 1
        made[place] = re.sub(r"\d+", lambda number: str(max(1, int(number[0]) // 20)), made[place])
    return made


@pytest.fixture
def folder(
    tmp_path: Path,
    deepseek_tokenizer_dir: Path,
    gsm8k_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Path:
    """What the examples name: a tokenizer, a corpus, a CSV file, the rows of conversations."""
    (tmp_path / "tokenizer").symlink_to(deepseek_tokenizer_dir)
    (tmp_path / "GSM8K.jsonl").write_text(
        "".join(gsm8k_path.open(encoding="utf-8").readlines()[:200]), encoding="utf-8"
    )
    rows = "".join(f"{length},{length // 8}\n" for length in (204, 102, 409, 70, 300, 128))
    (tmp_path / "input_prompt_tokens_output_tokens.csv").write_text("input_prompt_tokens,output_tokens\n" + rows)
    monkeypatch.chdir(tmp_path)
    talk = {
        "run": {"run_id": "talk", "output_dir": "./talk"},
        "tokenizer": {"path": "./tokenizer", "block_size": 16},
        "corpus": {"path": "./GSM8K.jsonl"},
        "conversation": {"count": 3, "answers": "scripted"},
    }
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    assert main(["prepare", "--mode", "conversation", "--scenario", "talk.json"]) == 0
    (made,) = tmp_path.glob("talk_*/result/*.full.jsonl")
    (tmp_path / "talk.full.jsonl").write_bytes(made.read_bytes())
    capsys.readouterr()
    return tmp_path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documented_examples_run(
    name: str, folder: Path, project_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = project_root / "docs" / name
    found = commands(document)
    assert found
    for command in found:
        assert main(smaller(command)) == 0, command
        output = capsys.readouterr().out
        if command[0] in ("distribution", "extract"):
            said = json.loads(output)
            written = Path(said["requests" if command[0] == "distribution" else "output"])
            text = written.read_text(encoding="utf-8")
            assert len(json.loads(text) if text.startswith("[") else rows_of(written)) == said["rows"] > 0
        if command[0] == "distribution":
            assert abs(said["repeat_rate"] - said["requested_repeat_rate"]) < 0.05
            assert said["replay_hit_rate"] == said["repeat_rate"]
        if command[0] == "validate":
            assert json.loads(output)["deep"]["hit_tokens"] > 0
        if command[0] == "prompts":
            assert len(output.splitlines()) == int(command[command.index("--count") + 1])


def test_the_documented_python_example_runs(folder: Path, project_root: Path) -> None:
    text = (project_root / "docs" / "prompt-sources.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(example, "prompt-sources.md", "exec"), {})


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_chinese_page_has_the_same_examples(name: str, project_root: Path) -> None:
    docs = project_root / "docs"
    english, chinese = ((folder / name).read_text(encoding="utf-8") for folder in (docs, docs / "zh"))
    assert blocks(chinese) == blocks(english)


def test_an_existing_file_is_never_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "distribution --tokenizer tokenizer --input-len 40 --num-prompts 5 --repeat-rate 0.4 --output-len 3 --output"
    )
    made = []
    for _ in range(3):
        assert main([*command.split(), "out.jsonl"]) == 0
        made.append(json.loads(capsys.readouterr().out)["requests"])
    assert made == ["out.jsonl", "out_1.jsonl", "out_2.jsonl"]
    first, second = rows_of(Path("out.jsonl")), rows_of(Path("out_1.jsonl"))
    assert [row.pop("prefix_pool_path") for row in (first[0], second[0])] == [
        "out.prefixes.jsonl",
        "out_1.prefixes.jsonl",
    ]
    assert [row["question"] for row in first] == [row["question"] for row in second]
    # The audit file alone takes the name, too.
    Path("out_3.prefixes.jsonl").touch()
    assert main([*command.split(), "out.jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == "out_4.jsonl"
    assert not [path for path in Path().iterdir() if "partial" in path.name]


def test_every_documented_field_is_written_and_figures_agree_with_the_raw_tokenizer(
    folder: Path, deepseek_tokenizer_dir: Path, project_root: Path
) -> None:
    from transformers import AutoTokenizer

    lengths = [90, 40, 64, 7, 33, 120, 16]
    Path("lengths.csv").write_text("output_tokens,input_prompt_tokens\n" + "".join(f"{n + 1},{n}\n" for n in lengths))
    options = (
        "--input-token-csv lengths.csv --output-length-mode custom --repeat-rate 0.5 --blocksize 8 --prefix-count 3"
    )
    assert main(["distribution", "--tokenizer", "tokenizer", *options.split(), "--output", "out.jsonl"]) == 0
    rows, origins = rows_of(Path("out.jsonl")), rows_of(Path("out.prefixes.jsonl"))
    document = (project_root / "docs" / "distribution.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in document for key in [*rows[0], *origins[0]])
    raw = AutoTokenizer.from_pretrained(str(deepseek_tokenizer_dir))
    encoded = [raw.encode(row["question"]) for row in rows]
    assert [len(ids) for ids in encoded] == lengths == [row["actual_token_length"] for row in rows]
    assert [row["max_tokens"] for row in rows] == [length + 1 for length in lengths]
    assert [row["cached_input_token_length"] for row in origins] == [row["prefix_token_length"] for row in rows]
    assert [row["source"] for row in origins] == [
        "GSM8K",
        *(f"prompt:{row['parent_prompt_index']}" for row in rows[1:]),
    ]
    assert rows[0]["constructed_prefix_token_length"] == 90
    assert rows[0]["seed_marker_token_id"] is None
    for index, (row, ids) in enumerate(zip(rows[1:], encoded[1:], strict=True), start=1):
        prefix, parent = row["prefix_token_length"], row["parent_prompt_index"]
        assert max(0, index - 3) <= parent < index
        assert ids[:prefix] == encoded[parent][:prefix]
        assert ids[max(prefix, len(ids) and raw.bos_token_id in ids[:1])] == row["seed_marker_token_id"]
        assert str(raw.decode([row["seed_marker_token_id"]])).startswith(" ")
    manifest = json.loads(Path("out.manifest.json").read_text())
    assert manifest["prefix_cache"]["prefix_tokens"] == sum(row["prefix_token_length"] for row in rows)


def test_wrong_options_come_all_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "--input-len 0 --input-token-csv x.csv --repeat-rate 1.5 --blocksize 0 --prefix-count 0 "
        "--output-length-mode uniform --min-output-len 9 --max-output-len 3 --output-len 5"
    )
    assert main(["distribution", "--tokenizer", "tokenizer", *options.split()]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error [WRONG_OPTION] input lengths: --input-token-csv and --input-len were given (allowed: exactly one of "
        "--distribution, --input-token-csv, --input-len with --num-prompts)",
        "error [WRONG_OPTION] --input-len: it is 0 (allowed: a whole number from 1 up)",
        "error [WRONG_OPTION] --num-prompts: it is missing (allowed: a whole number from 1 up)",
        "error [WRONG_OPTION] --repeat-rate: it is 1.5 (allowed: 0 to 1)",
        "error [WRONG_OPTION] --blocksize: it is 0 (allowed: a whole number from 1 up)",
        "error [WRONG_OPTION] --prefix-count: it is 0 (allowed: a whole number from 1 up)",
        "error [WRONG_OPTION] --output-len: it has no meaning with --output-length-mode uniform",
        "error [WRONG_OPTION] --max-output-len: it is 3, less than --min-output-len 9",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--input-len 9 --num-prompts 2 --output-length-mode custom",
            "error [WRONG_OPTION] --output-length-mode: custom reads the column output_tokens of the file that gives "
            "the input lengths\n    Give both columns in one CSV file, with --input-token-csv.",
        ),
        (
            "--input-token-csv only-inputs.csv --output-length-mode custom",
            'error [MISSING_COLUMN] only-inputs.csv line 1: no column of lengths; found "input_prompt_tokens" '
            '(allowed: "output_tokens")',
        ),
        (
            "--distribution 5-3:1,x,4-9:0 --output-len 1",
            "error [WRONG_INTERVAL] --distribution, part 1: '5-3:1' is no interval (allowed: LOW-HIGH:COUNT with 1 <= "
            "LOW <= HIGH and COUNT >= 1, for example 3600-3800:56)",
        ),
        ("--distribution gone.txt --output-len 1", "error [MISSING_FILE] gone.txt: the file does not exist"),
        (
            "--input-len 9 --num-prompts 2 --output-len 1 --corpus gone.jsonl",
            "error [CORPUS_NOT_FOUND] --corpus: the file 'gone.jsonl' does not exist",
        ),
    ],
)
def test_refusals_say_what_to_do_and_write_nothing(
    options: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("only-inputs.csv").write_text("input_prompt_tokens\n5\n")
    before = sorted(Path().iterdir())
    assert main(["distribution", "--tokenizer", "tokenizer", "--repeat-rate", "0.5", *options.split()]) == 2
    assert capsys.readouterr().err.startswith(said)
    assert sorted(Path().iterdir()) == before


def test_lengths_that_cannot_be_made_are_refused_before_writing(
    folder: Path, tokenizer_dir: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with_bos = str(tokenizer_dir("llama2"))
    before = sorted(Path().iterdir())
    options = "--input-len 1 --num-prompts 3 --repeat-rate 0.5 --output-len 1 --blocksize 1"
    assert main(["distribution", "--tokenizer", with_bos, *options.split()]) == 2
    assert capsys.readouterr().err == (
        "error [BLOCK_SIZE_TOO_SMALL] --blocksize: the tokenizer puts 1 special token(s) before every prompt, so with "
        "blocks of 1 every prompt would hit them (allowed: at least 2)\n"
    )
    assert main(["distribution", "--tokenizer", with_bos, *options.split()[:-1], "2"]) == 2
    assert capsys.readouterr().err == (
        "error [PROMPT_TOO_SHORT] input lengths: a prompt of 1 token(s) has no room for 1 special token(s) before it, "
        "0 after it and a word that tells it from the others (allowed: at least 2)\n"
    )
    assert sorted(Path().iterdir()) == before


def test_the_older_txt_file_of_intervals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("fenbu.txt").write_text("20-22:3,\n30-30:2\n", encoding="utf-8-sig")
    options = "--distribution fenbu.txt --order increasing --repeat-rate 0 --output-len 4 --output out.jsonl"
    assert main(["distribution", "--tokenizer", "tokenizer", *options.split()]) == 0
    rows = rows_of(Path("out.jsonl"))
    lengths = [row["actual_token_length"] for row in rows]
    assert lengths == sorted(lengths)
    assert lengths[3:] == [30, 30]
    assert set(lengths[:3]) <= {20, 21, 22}
    assert json.loads(capsys.readouterr().out)["repeat_rate"] == 0


def damage_row(number: int, **changes: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        rows = rows_of(path)
        rows[number] |= changes
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")

    return damage


def reseal(name: str) -> None:
    """What someone would do who edits a file and makes the digests fit again."""
    import hashlib

    from ais_bench_prefix_cache.datasets.format.documents import render_document, sealed

    path = Path(f"{name}.manifest.json")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for key, file in (("requests", f"{name}.jsonl"), ("prefixes", f"{name}.prefixes.jsonl")):
        content = Path(file).read_bytes()
        manifest["artifacts"][key] |= {
            "rows": content.count(b"\n"),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    path.write_bytes(render_document(sealed(manifest)))


def test_validate_finds_damage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--input-len 48 --num-prompts 8 --repeat-rate 0.4 --blocksize 8 --output-len 3 --output out.jsonl"
    assert main(["distribution", "--tokenizer", "tokenizer", *options.split()]) == 0
    files = {name: Path(name).read_bytes() for name in ("out.jsonl", "out.prefixes.jsonl", "out.manifest.json")}

    def codes_after(damage: Callable[[], object], *more: str) -> set[str]:
        for name, content in files.items():
            Path(name).write_bytes(content)
        damage()
        capsys.readouterr()
        assert main(["validate", "--manifest", "out.manifest.json", *more]) == 2
        return {problem["code"] for problem in json.loads(capsys.readouterr().out)["errors"]}

    main_file, audit = Path("out.jsonl"), Path("out.prefixes.jsonl")
    rows = rows_of(main_file)
    assert codes_after(lambda: damage_row(3, max_tokens=4)(main_file)) == {"FILE_HASH", "WRONG_VALUE"}
    assert codes_after(main_file.unlink) == {"MISSING_FILE"}
    manifest = Path("out.manifest.json")
    edited = files["out.manifest.json"].replace(b'"prefix_count": 20', b'"prefix_count": 21')
    assert codes_after(lambda: manifest.write_bytes(edited)) == {"CONTENT_EDITED", "WRONG_VALUE"}

    def resealed(damage: Callable[[], object]) -> Callable[[], None]:
        def both() -> None:
            damage()
            reseal("out")

        return both

    for changes, code in (
        ({"max_tokens": 4}, "WRONG_VALUE"),
        ({"target_token_length": 47}, "WRONG_VALUE"),
        ({"parent_prompt_index": 5, "prefix_id": 5}, "WRONG_VALUE"),
        ({"seed_marker_token_id": rows[2]["seed_marker_token_id"]}, "MARKER_TWICE"),
        ({"tail_token_length": "3"}, "WRONG_TYPE"),
        ({"prefix_candidate_count": 21}, "WRONG_VALUE"),
        ({"prefix_pool_path": "other.jsonl"}, "WRONG_VALUE"),
        ({"extra": 1}, "UNKNOWN_KEY"),
    ):
        assert code in codes_after(resealed(partial(damage_row(3, **changes), main_file))), changes
    assert "CORRESPONDENCE" in codes_after(resealed(lambda: damage_row(2, source="prompt:1000")(audit)))
    swapped = rows[4]["question"]
    deep = codes_after(
        resealed(lambda: damage_row(3, question=swapped + " and more")(main_file)), "--deep", "--tokenizer", "tokenizer"
    )
    assert deep >= {"DEEP_CHECK"}


def test_commands_that_need_ranks_say_that_a_distribution_has_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--input-len 24 --num-prompts 2 --repeat-rate 0.4 --blocksize 8 --output-len 3 --output out.jsonl"
    assert main(["distribution", "--tokenizer", "tokenizer", *options.split()]) == 0
    capsys.readouterr()
    assert main(["report", "--manifest", "out.manifest.json"]) == 2
    assert capsys.readouterr().err.startswith("error [")


def test_prompts_writes_documented_rows_that_extract_reads(
    folder: Path, deepseek_tokenizer_dir: Path, project_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    options = "--mode shared-prefix --shared-prefix-ratio 0.5 --count 6 --input-tokens 70 --blocksize 8 --max-tokens 9"
    assert main(["prompts", "--tokenizer", "tokenizer", *options.split()]) == 0
    output = capsys.readouterr()
    Path("prompts.jsonl").write_text(output.out, encoding="utf-8")
    rows = rows_of(Path("prompts.jsonl"))
    document = (project_root / "docs" / "prompt-sources.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in document for key in rows[0])
    raw = AutoTokenizer.from_pretrained(str(deepseek_tokenizer_dir))
    encoded = [raw.encode(row["question"]) for row in rows]
    assert [len(ids) for ids in encoded] == [70] * 6
    # Half of 70 tokens are 35: four blocks of eight.
    assert {(row["shared_prefix_tokens"], row["shared_prefix_blocks"]) for row in rows} == {(32, 4)}
    assert len({tuple(ids[:32]) for ids in encoded}) == 1
    assert len({tuple(ids[32:40]) for ids in encoded}) == 6
    said = json.loads(output.err.splitlines()[-1])
    assert said["generator_version"] == 1
    assert main(["prompts", "--tokenizer", "tokenizer", *options.split()]) == 0
    assert json.loads(capsys.readouterr().err.splitlines()[-1]) == said
    assert main(["extract", "prompts.jsonl"]) == 0
    assert [row["max_tokens"] for row in rows_of(Path("prompts_extracted.jsonl"))] == [9] * 6


def test_prompts_refuses_wrong_options_all_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts", "--mode", "unique", "--prefix-groups", "2", "--count", "1", "--input-tokens", "64"]) == 2
    assert capsys.readouterr().err == (
        "error [PROMPT_SPEC] prefix_groups: it is 2, but the mode is unique "
        "(allowed: none, or the mode shared-prefix)\n"
    )
    assert main(["prompts", "--count", "0", "--input-tokens", "0"]) == 2
    assert capsys.readouterr().err == (
        "error [WRONG_OPTION] --count: it is 0 (allowed: a whole number from 1 up)\n"
        "error [WRONG_OPTION] --input-tokens: it is 0 (allowed: a whole number from 1 up)\n"
    )
    assert main(["prompts", "--count", "1", "--input-tokens", "20"]) == 2
    assert capsys.readouterr().err == (
        "error [PROMPT_TOO_SHORT] input tokens: prompts of 20 token(s) cannot be controlled in the mode unique "
        "(allowed: at least 32)\n"
    )
