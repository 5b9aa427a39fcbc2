"""What ``prompts`` prints: the documented keys of each row, written as every other row of the package is."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from itertools import cycle, islice
from typing import Any

import pytest

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.prompts import PromptSource, PromptSpec, WordEstimate
from ais_bench_prefix_cache.prompts.prompt_rows import PromptRows

SPECS = [PromptSpec("repeat"), PromptSpec("unique"), PromptSpec("shared-prefix", 0.5, 3)]
AWKWARD = ['"quoted"', "back\\slash", "naïve", "line\u2028end", "next\x85line", "天地", "tab\there"]


class AwkwardWords(WordEstimate):
    """Fills prompts up with words that JSON has to escape."""

    def filler(self, tokens: int, seed: int) -> str:
        return " ".join(islice(cycle(AWKWARD), tokens))

    opening = filler


@pytest.mark.parametrize("max_tokens", [None, 7])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.mode))
def test_a_line_is_the_row_as_json(spec: PromptSpec, max_tokens: int | None) -> None:
    source = PromptSource(spec, counter=AwkwardWords(), seed=1, case_id="c", phase="p", input_tokens=40)
    rows = PromptRows(max_tokens)
    for index in (*range(20), 3):
        prompt = source.take(index)
        shared = spec.mode == "shared-prefix"
        row: dict[str, Any] = {"question": prompt.text, "answer": "none"}
        if max_tokens is not None:
            row["max_tokens"] = max_tokens
        row |= {
            "prompt_index": index,
            "prompt_id": prompt.prompt_id,
            "input_tokens": 40,
            "exact": False,
            "prefix_group": prompt.prefix_group,
            "shared_prefix_tokens": 20 if shared else None,
            "shared_prefix_blocks": None,
            "digest": hashlib.sha256(prompt.text.encode()).hexdigest()[:16],
        }
        expected = json.dumps(row, ensure_ascii=False).replace("\u2028", "\\u2028").replace("\x85", "\\u0085")
        assert rows.line(index, prompt) == expected.encode() + b"\n"
        assert len(prompt.text.split(" ")) == 40


def test_rows_of_the_command_are_those_of_its_source(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    options = "--mode shared-prefix --shared-prefix-ratio 0.5 --prefix-groups 3 --count 9 --input-tokens 40 --seed 5"
    assert main(["prompts", *options.split()]) == 0
    source = PromptSource(
        SPECS[2], counter=WordEstimate(), seed=5, case_id="default", phase="measured", input_tokens=40
    )
    captured = capfdbinary.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert [row["question"] for row in rows] == [source.prompt(index).text for index in range(9)]
    assert json.loads(captured.err)["digest"] == source.digest()


@pytest.mark.parametrize("options", ["--mode unique", "--mode shared-prefix --shared-prefix-ratio 0.5"])
def test_memory_does_not_grow_with_the_number_of_prompts(options: str) -> None:
    program = (
        "import re, sys; from ais_bench_prefix_cache.cli import main; code = main(sys.argv[1:]); "
        # Not ru_maxrss, which a child inherits from the process that started it.
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1], file=sys.stderr); sys.exit(code)"
    )
    peaks, printed = [], []
    for count in ("2000", "20000"):
        command = ["prompts", *options.split(), "--count", count, "--input-tokens", "512"]
        finished = subprocess.run([sys.executable, "-c", program, *command], capture_output=True)
        assert finished.returncode == 0, finished.stderr
        peaks.append(int(finished.stderr.splitlines()[-1]) * 1024)
        printed.append(len(finished.stdout))
    # Ten times the prompts are 50 MB more of text, and no more than the allocator's noise in memory.
    assert printed[1] - printed[0] > 30_000_000
    assert peaks[1] - peaks[0] < 3_000_000


@pytest.mark.parametrize("command", ["prompts --count 1 --input-tokens 40", "simulate requests.jsonl"])
def test_errors_name_options_and_not_keys_of_a_scenario(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--tokenizer", "/no/such"]) == 2
    assert capsys.readouterr().err == (
        "error [TOKENIZER_NOT_FOUND] --tokenizer: the directory '/no/such' does not exist (allowed: a directory with "
        "the tokenizer of the served model, or a model name)\n"
    )
