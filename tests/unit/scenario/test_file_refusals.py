"""Each way in which a Scenario file cannot be read has a sentence of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.scenario.loading import load_scenario


def refusal(path: Path) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, environment={})
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "s.json: the Scenario file is empty\n    an empty Scenario is written {}"),
        (b" \n\t", "s.json: the Scenario file is empty\n    an empty Scenario is written {}"),
        (b"\xef\xbb\xbf{}", "s.json: the Scenario file begins with a byte-order mark\n    save it without"),
        ("{}".encode("utf-16"), "s.json: the Scenario file is UTF-16\n    save it as UTF-8"),
        (
            '{"run":\n {"run_id": "数据"}}'.encode("gbk"),
            "s.json: the Scenario file is not UTF-8: byte 0xca at position 21 (line 2)\n    save it as UTF-8",
        ),
        (b"[]", 's.json: the Scenario is not a JSON object (allowed: an object: { "run": … })'),
        (b"3", 's.json: the Scenario is not a JSON object (allowed: an object: { "run": … })'),
        (b"NaN", 's.json: the Scenario is not a JSON object (allowed: an object: { "run": … })'),
        (b"[" * 100_000, "s.json: the Scenario file is nested more than 64 levels deep"),
        (
            b'{"aisbench": {"model": {"generation_kwargs": {"x": ' + b"[" * 70 + b"]" * 70 + b"}}}}",
            "s.json: the Scenario file is nested more than 64 levels deep",
        ),
    ],
)
def test_unusable_bytes(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(data)
    assert refusal(path) == message


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"run": {}',
        "{} {}",
        '{"run": {},\n}',
        "{'run': {}}",
        '{\n  // the run\n  "run": {}}',
        '{"run": True}',
        '{"a\nb": 1}',
    ],
)
def test_syntax_errors_are_said_as_python_says_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    error = caught.value
    place = f"(line {error.lineno}, column {error.colno})"
    assert refusal(path) == f"s.json: the Scenario file is not JSON: {error.msg} {place}"


def test_a_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "s.json") == f"{tmp_path}/s.json: the Scenario file does not exist"


def test_a_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: the Scenario file is a directory\n    name the file in it"


def test_a_file_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert refusal(tmp_path / "a" / "b") == f"{tmp_path}/a/b: the Scenario file cannot be read: Not a directory"


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(b"{}")
    path.chmod(0)
    refusal(tmp_path / "missing.json")  # imports everything, which another user may not
    with as_an_ordinary_user():
        assert refusal(path) == f"{path}: the Scenario file may not be read by this user"


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """The superuser may read every file."""
    user = os.geteuid()
    os.seteuid(user or 65534)
    yield
    os.seteuid(user)


def test_an_endless_file() -> None:
    assert refusal(Path("/dev/zero")) == "/dev/zero: the Scenario file cannot be read: it is a device, socket or FIFO"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"run": {"random_seed": NaN}}', "run.random_seed: NaN is not a JSON number"),
        (
            '{"service": {"timeout_seconds": -Infinity}}',
            "service.timeout_seconds: -Infinity is not a JSON number",
        ),
        ('{"prefix_cache": {"target_hit_rate": 1e999}}', "prefix_cache.target_hit_rate: the number is too large"),
        (
            '{"requests": {"count": ' + "9" * 5000 + "}}",
            "requests.count: the integer does not fit into 64 bits",
        ),
        (
            '{"aisbench": {"model": {"generation_kwargs": {"seed": 9223372036854775808}}}}',
            "aisbench.model.generation_kwargs.seed: the integer does not fit into 64 bits",
        ),
        (
            '{"run": {"run_id": "a", "run_id": "b"}}',
            "run.run_id: the key appears more than once\n    keep one",
        ),
        (
            '{"aisbench": {"extra_args": {"--a": 1, "--a": 1}}}',
            "aisbench.extra_args.--a: the key appears more than once\n    keep one",
        ),
        ('{"run": {"run_id": "a\\u0000b"}}', "run.run_id: the text holds a NUL character (\\u0000)"),
        ('{"service": {"model": "a\\nb"}}', "service.model: the text holds a control character (\\u000a)"),
        ('{"corpus": {"field": "\\ud800"}}', "corpus.field: the text holds half of a surrogate pair (\\ud800)"),
        (
            '{"service": {"engine_label_map": {"\\ud800": 0}}}',
            'service.engine_label_map["\\ud800"]: the key holds half of a surrogate pair (\\ud800)',
        ),
    ],
)
def test_values_that_python_would_let_pass(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text, encoding="utf-8")
    assert refusal(path) == f"s.json: {message}"


def test_stop_strings_may_hold_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"aisbench": {"model": {"generation_kwargs": {"stop": ["\\n\\n"]}}}}', encoding="utf-8")
    assert load_scenario(path, environment={}).aisbench.model.generation_kwargs == {"stop": ["\n\n"]}
