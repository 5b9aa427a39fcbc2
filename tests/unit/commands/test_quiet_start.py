"""What a command does to its own process while a tokenizer is loaded."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ais_bench_prefix_cache.commands.quiet_start import load_quietly, quiet_start
from ais_bench_prefix_cache.scenario.model import TokenizerConfig


def run(program: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=True
    )


def test_nothing_reaches_stdout_while_a_tokenizer_is_loaded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Some releases of ``tokenizers`` print on gaps in the vocabulary, past Python's own stdout."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 9}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(str(tmp_path))
    capfd.readouterr()
    load_quietly(TokenizerConfig(str(tmp_path), 16, None, False)).identity()
    assert capfd.readouterr().out == ""


def test_what_python_and_compiled_code_print_goes_to_stderr() -> None:
    finished = run(
        "import os\n"
        "from ais_bench_prefix_cache.commands.quiet_start import quiet_start\n"
        "with quiet_start(hide_torch=False):\n"
        "    print('from Python', flush=True)\n"
        "    os.write(1, b'from C\\n')\n"
        "print('the document')\n"
    )
    assert finished.stdout == "the document\n"
    assert finished.stderr == "from Python\nfrom C\n"


@pytest.mark.parametrize("hidden", [True, False])
def test_torch_is_hidden_where_no_remote_code_may_want_it(tmp_path: Path, hidden: bool) -> None:
    (tmp_path / "torch.py").write_text("")
    finished = run(
        "import importlib.util, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from ais_bench_prefix_cache.commands.quiet_start import quiet_start\n"
        f"with quiet_start(hide_torch={hidden}):\n"
        "    try:\n"
        "        import torch\n"
        "    except ImportError:\n"
        "        torch = None\n"
        "print(torch is None, importlib.util.find_spec('torch') is not None)\n",
        tmp_path,
    )
    assert finished.stdout == f"{hidden} True\n"


def test_the_collector_rests_inside_and_skips_afterwards_what_was_made_there() -> None:
    frozen = gc.get_freeze_count()
    try:
        with quiet_start(hide_torch=False):
            assert not gc.isenabled()
            made: list[list[int]] = [[] for _ in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(made)
    finally:
        gc.unfreeze()


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "info")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    with quiet_start(hide_torch=False):
        assert os.environ["TRANSFORMERS_VERBOSITY"] == "info"
        assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
