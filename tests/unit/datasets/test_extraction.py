"""`extract`: exact lines of every format, errors with line numbers, and never half a file."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.datasets.extraction import FORM_NAMES, FORMS, extract
from ais_bench_prefix_cache.foundation.errors import ArtifactError

QUESTION = 'Wie "viel"? 多少\u2028{x}\\ '
ROW = {"question": QUESTION, "answer": "none", "max_tokens": 7, "prefix_id": -1, "tail_token_length": 3}
TEXT = r'"Wie \"viel\"? 多少\u2028{x}\\ "'

LINES = {
    "plain": '{"question": %s, "answer": "none", "max_tokens": 7}',
    "vllm-custom": '{"prompt": %s, "output_tokens": 7}',
    "sglang": '{"messages": [{"role": "user", "content": %s}], "max_tokens": 7}',
    "aiperf-single-turn": '{"text": %s, "output_length": 7}',
    "aiperf-mooncake-trace": '{"text_input": %s, "output_length": 7}',
    "guidellm": '{"prompt": %s, "output_tokens_count": 7}',
    "evalscope": '{"prompt": %s, "max_tokens": 7}',
    "openai-batch": '{"custom_id": "request-00000000", "method": "POST", "url": "/v1/chat/completions", "body": '
    '{"model": "m", "messages": [{"role": "user", "content": %s}], "max_tokens": 7}}',
}


CELL = QUESTION.replace('"', '""')
CSV = f'question,answer,max_tokens\n"{CELL}",none,7\n"{CELL}",none,7\n'


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def problems(path: Path, output: Path) -> list[str]:
    with pytest.raises(ArtifactError) as caught:
        extract(path, output)
    return [f"[{problem.code}] {problem}" for problem in caught.value.problems]


def test_the_command_offers_every_format() -> None:
    assert list(FORMS) == list(LINES)
    assert [*LINES, "aiperf-multi-turn", "vllm-multi-turn"] == list(FORM_NAMES)


@pytest.mark.parametrize("form", LINES)
def test_golden_lines(form: str, tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", ROW), tmp_path / "out.jsonl"
    model = "m" if form == "openai-batch" else None
    assert extract(source, output, form=form, model=model).rows == 1
    assert output.read_text(encoding="utf-8") == LINES[form] % TEXT + "\n"


def test_default_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "a.b.jsonl", ROW, ROW)
    assert main(["extract", str(source)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "output": str(tmp_path / "a.b_extracted.jsonl"),
        "rows": 2,
        "format": "plain",
    }
    assert main(["extract", str(source), "--format", "guidellm"]) == 0
    assert (tmp_path / "a.b_guidellm.jsonl").is_file()


def test_bad_lines_are_one_error_with_a_count(tmp_path: Path) -> None:
    source = write(
        tmp_path / "in.jsonl",
        ROW,
        "{oops",
        "",
        [1],
        {"question": "q"},
        {"question": "", "answer": 1, "max_tokens": 0},
        ROW | {"max_tokens": True},
        '{"question": "q", "question": "p", "answer": "a", "max_tokens": 1}',
    )
    assert problems(source, tmp_path / "out.jsonl")[0].split("\n") == [
        f"[INVALID_JSON] {source}: 6 of 7 rows cannot be used",
        "    line 2: the line is not JSON: Expecting property name enclosed in double quotes (line 1, column 2) "
        "(allowed: one JSON object)",
        "    and 1 more of this kind: line 4",
        "    line 5: the field 'answer' is missing",
        "    The row has 'question'.",
        "    line 6: question says '' (allowed: text)",
        "    and 1 more of this kind: line 7",
        "    line 8: the line is not strict JSON: the key 'question' appears more than once (allowed: one JSON object)",
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps([ROW, ROW]).encode()),
        ("a.jsonl.gz", gzip.compress(f"{json.dumps(ROW)}\n\n{json.dumps(ROW)}\n".encode())),
        ("a.csv", CSV.encode()),
        ("a.jsonl", 2 * (json.dumps({"prompt": QUESTION, "answer": "none", "max_tokens": 7}).encode() + b"\n")),
        (
            "a.jsonl",
            2 * (json.dumps({"messages": [{"content": QUESTION}], "answer": "none", "max_tokens": 7}).encode() + b"\n"),
        ),
    ],
)
def test_rows_in_other_shapes(name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["extract", str(tmp_path / name)]) == 0
    output = tmp_path / "a_extracted.jsonl"
    assert json.loads(capsys.readouterr().out)["output"] == str(output)
    assert output.read_text(encoding="utf-8") == 2 * (LINES["plain"] % TEXT + "\n")


def test_an_old_output_stays_when_a_line_is_bad_and_is_replaced_otherwise(tmp_path: Path) -> None:
    output = write(tmp_path / "out.jsonl", "old")
    bad = write(tmp_path / "bad.jsonl", *[ROW] * 1000, "{")
    problems(bad, output)
    assert output.read_text() == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "out.jsonl"]
    extract(write(tmp_path / "good.jsonl", ROW), output)
    assert output.read_text(encoding="utf-8") == LINES["plain"] % TEXT + "\n"


def test_files_that_cannot_be(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", ROW)
    assert problems(source, source) == [f"[SAME_FILE] {source}: the output file is the input file"]
    gone, empty = tmp_path / "gone.jsonl", write(tmp_path / "empty.jsonl")
    assert problems(gone, tmp_path / "out.jsonl") == [f"[MISSING_FILE] {gone}: the file does not exist"]
    assert problems(empty, tmp_path / "out.jsonl") == [f"[EMPTY_FILE] {empty}: the file holds no rows"]
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "openai-batch"), "error [WRONG_OPTION] --model: --format openai-batch needs it\n"),
        (("--model", "m"), "error [WRONG_OPTION] --model: --format plain has no place for it\n"),
    ],
)
def test_model_belongs_to_openai_batch(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["extract", str(write(tmp_path / "in.jsonl", ROW)), *options]) == 2
    assert capsys.readouterr().err == said


def test_standard_library_only_and_constant_memory(tmp_path: Path) -> None:
    """Forty megabytes, in a process that may take only a little more than Python itself."""
    line = json.dumps(ROW | {"question": "words " * 700}) + "\n"
    with (tmp_path / "in.jsonl").open("w") as stream:
        stream.writelines(line for _ in range(10_000))
    program = (
        "import sys, resource\n"
        "started = set(sys.modules)\n"
        "from ais_bench_prefix_cache.cli import build_parser\n"
        "arguments = build_parser('extract').parse_args(['extract', 'in.jsonl'])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "arguments.execute(arguments)\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "foreign = [name for name, module in sys.modules.items()\n"
        "           if name not in started and '.' not in name\n"
        "           and 'site-packages' in (getattr(module, '__file__', None) or '')]\n"
        "print(grown // 1024, foreign)\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    grown, foreign = finished.stdout.splitlines()[-1].split(" ", 1)
    assert int(grown) < 20
    assert json.loads(foreign.replace("'", '"')) == []


def test_half_characters_are_named_and_a_byte_order_mark_is_not_part_of_the_file(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"question": "a \\ud800", "answer": "none", "max_tokens": 1}\n')
    assert problems(source, tmp_path / "out.jsonl") == [
        "[WRONG_TYPE] in.jsonl line 1: question holds half of a character (a lone surrogate) (allowed: text)"
    ]
    source.write_bytes(b'\xef\xbb\xbf{"question": "a", "answer": "none", "max_tokens": 1}\n')
    assert extract(source, tmp_path / "out.jsonl").rows == 1
