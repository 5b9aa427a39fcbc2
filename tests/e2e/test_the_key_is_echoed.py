"""`run` against a server that says the key back, anywhere and in any spelling: it is in no file, word or argument."""

from __future__ import annotations

import base64
import codecs
import html
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from tests.doubles.fault_proxy import Action, Answer, FaultProxy, Seen, fault_proxy
from tests.doubles.scenarios import scenario_file
from tests.doubles.word_data_set import prepare_words

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = pytest.mark.aisbench

KEY = "sk-Say/it+Back=7Q4w"
SPELLINGS: dict[str, str] = {
    "itself": KEY,
    "header": f"Bearer {KEY}",
    "url": quote(KEY, safe=""),
    "every character percent": "".join(f"%{ord(c):02X}" for c in KEY),
    "twice url": quote(quote(KEY, safe="")),
    "html": html.escape("".join(f"&#{ord(c)};" for c in KEY)),
    "unicode escapes": "".join(f"\\u{ord(c):04x}" for c in KEY),
    "json": json.dumps(json.dumps(KEY).replace("/", "\\/")),
    "hex": KEY.encode().hex(),
    "hex upper": KEY.encode().hex(":").upper(),
    "base64": base64.b64encode(KEY.encode()).decode().rstrip("="),
    "base64 of header": base64.b64encode(f"Authorization: Bearer {KEY}".encode()).decode()[32:44],
    "base64 for urls": base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("="),
    "base32": base64.b32encode(KEY.encode()).decode()[:24],
    "numbers": str(list(KEY.encode()))[1:-1],
    "repr": repr(KEY.encode())[2:-1],
    "upper": KEY.upper(),
    "swapped": KEY.swapcase(),
    "backwards": KEY[::-1],
    "rot13": codecs.encode(KEY, "rot13"),
}


def said(spelling: str) -> str:
    """As a server would say it; what is a part of a longer text comes whole."""
    if spelling == "base64 of header":
        return base64.b64encode(f"Authorization: Bearer {KEY}".encode()).decode()
    return base64.b32encode(KEY.encode()).decode() if spelling == "base32" else SPELLINGS[spelling]


def stream(*events: object) -> Answer:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return Answer(200, "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]), "text/event-stream")


def choice(text: str) -> dict[str, object]:
    return {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": None}]}


def usage(**changes: object) -> dict[str, object]:
    return {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3} | changes}


PLACES: dict[str, Callable[[str], Answer]] = {
    "status, reason and body": lambda key: Answer(500, f"no: {key}", "text/plain", reason=f"No {key}"),
    "end of a long body": lambda key: Answer(400, "." * 590 + key, "text/plain"),
    "very long body": lambda key: Answer(400, " " * 65_530 + key + "." * 99, "text/plain"),
    "error object": lambda key: Answer(401, json.dumps({"error": {"message": key}}), "application/json"),
    "error event": lambda key: stream({"error": {"message": f"wrong {key}", "type": key}}),
    "bare error event": lambda key: stream({"object": "error", "message": key}),
    "text": lambda key: stream(choice(f"you said {key}"), usage()),
    "text in two parts": lambda key: stream(choice(key[: len(key) // 2]), choice(key[len(key) // 2 :]), usage()),
    "usage": lambda key: stream(choice("a"), usage(prompt_tokens=key)),
    "usage itself": lambda key: stream(choice("a"), {"choices": [], "usage": key}),
    "cached tokens": lambda key: stream(choice("a"), usage(prompt_tokens_details={"cached_tokens": [key]})),
    "details": lambda key: stream(choice("a"), usage(prompt_tokens_details=key)),
    "no JSON": lambda key: stream("{" + key),
    "redirect": lambda key: Answer(307, key, reason=key, headers=(("location", f"http://127.0.0.1:9/{key}"),)),
    "headers": lambda key: Answer(403, "", headers=((f"x-{len(key)}", key), ("www-authenticate", f'Bearer "{key}"'))),
}
CASES = [(place, spelling) for place in PLACES for spelling in SPELLINGS]


class Judge:
    """Looks for the key in all that was written below a directory, shown, and passed as arguments."""

    def __init__(self, scenario: Path) -> None:
        self.scenario = scenario
        self.seen: dict[str, bytes] = {}

    def run(self) -> tuple[int, str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "ais_bench_prefix_cache", "run", "--scenario", str(self.scenario)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.scenario.parent,
            env=os.environ | {"TMPDIR": str(self.scenario.parent / "t")},
        )
        done = threading.Event()
        watcher = threading.Thread(target=self._watch_arguments, args=(done,))
        watcher.start()
        out, errors = process.communicate(timeout=600)
        done.set()
        watcher.join()
        self.seen["stdout"], self.seen["stderr"] = out, errors
        for path in self.scenario.parent.rglob("*"):
            if path.is_file() and path != self.scenario:
                self.seen[str(path)] = path.read_bytes()
        return process.returncode, errors.decode()

    def _watch_arguments(self, done: threading.Event) -> None:
        while not done.wait(0.3):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.seen["arguments"] = self.seen.get("arguments", b"") + path.read_bytes() + b"\n"
                except OSError:
                    continue

    def findings(self) -> list[str]:
        return [
            f"{where}: {name}: …{content[max(0, at - 60) : at + 60]!r}"
            for where, content in self.seen.items()
            for name, spelling in SPELLINGS.items()
            for form in {spelling.encode(), json.dumps(spelling)[1:-1].encode()}
            if (at := content.find(form)) >= 0
        ]


@pytest.fixture(scope="module")
def prepared(
    deepseek_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, FaultProxy, str]]:
    configuration = ServerConfiguration(tokenizer=deepseek_tokenizer_dir, model="tiny")
    with (
        running_server(configuration, api_key=KEY) as url,
        fault_proxy(url) as proxy,
        tempfile.TemporaryDirectory(dir="/tmp") as short,
    ):
        directory = Path(short)
        (directory / "t").mkdir()
        scenario = scenario_file(
            directory,
            tokenizer=deepseek_tokenizer_dir,
            url=proxy.url,
            requests={"count": len(CASES), "input_length": {"mode": "fixed", "value": 64}},
            prefix_cache={"mode": "warmup", "target_hit_rate": 0.5, "groups": {"count": 1}},
            service={"model": "tiny", "api_key": KEY, "timeout_seconds": 20, "dp_size": 1},
            aisbench={"work_dir": "./aisbench", "model": {"batch_size": 8, "retry": 0}},
        )
        prepare_words(scenario)
        yield scenario, proxy, url


def test_while_aisbench_sends(prepared: tuple[Path, FaultProxy, str]) -> None:
    scenario, proxy, url = prepared
    proxy.reset(url)

    def rule(seen: Seen) -> Action:
        if seen.formal:
            place, spelling = CASES[(seen.number - 1) % len(CASES)]
            return PLACES[place](said(spelling))
        if seen.path.endswith("/metrics"):
            text = httpx.get(url + seen.path, trust_env=False, headers={"authorization": f"Bearer {KEY}"}).text
            return Answer(200, text + "".join(f"# {each}\n" for each in SPELLINGS.values()), "text/plain")
        return "pass"

    proxy.rule = rule
    judge = Judge(scenario)
    code, errors = judge.run()
    assert code == 4, errors
    assert sum(seen.formal for seen in proxy.seen) == len(CASES), errors
    failed = [content for where, content in judge.seen.items() if where.endswith("_failed.jsonl")]
    assert failed
    assert b"***" in failed[0]
    assert judge.findings() == []


@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/v1/completions", "/metrics", "/reset_prefix_cache"])
def test_before_anything_is_sent(path: str, prepared: tuple[Path, FaultProxy, str]) -> None:
    scenario, proxy, url = prepared
    everything = " ".join(map(said, SPELLINGS))
    for answer in (
        Answer(500, everything, "text/plain", reason=everything[:1500]),
        Answer(200, json.dumps({"data": [{"id": everything}], "error": {"message": everything}}), "application/json"),
    ):
        proxy.reset(url)
        proxy.rule = lambda seen, answer=answer: answer if seen.path.split("?")[0].endswith(path) else "pass"  # type: ignore[misc]
        judge = Judge(scenario)
        code, errors = judge.run()
        assert code in (0, 3, 4), errors
        assert any(seen.path.split("?")[0].endswith(path) for seen in proxy.seen)
        assert judge.findings() == [], errors
