"""Real vLLM servers, one for each way of running it, and the oracle that reads their counters without the product."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import pytest
from tests.real.real_server import SERVED_MODEL, RealServer, make_tiny_model
from tests.real.real_vllm import real_vllm
from xdist.scheduler import LoadScopeScheduling

from ais_bench_prefix_cache.cli import main

BLOCK_SIZE = 32
API_KEY = "sk-key-of-the-real-tests"


@dataclass(frozen=True)
class ServerKind:
    """One way of running vLLM; ``adds_bos`` is the tokenizer's doing."""

    engines: int = 1
    adds_bos: bool = False
    options: tuple[str, ...] = ()
    start: dict[str, bool] = field(default_factory=dict)


KINDS = {
    "one-engine": ServerKind(options=("--api-key", API_KEY)),
    # vLLM starts as many API processes as engines.
    "two-engines": ServerKind(engines=2),
    "two-engines-one-api-process-bos": ServerKind(engines=2, adds_bos=True, options=("--api-server-count", "1")),
    # vLLM refuses a cache that cannot hold one request of max_model_len tokens.
    "forty-blocks": ServerKind(options=("--num-gpu-blocks-override", "40", "--max-model-len", "1024")),
    "bare": ServerKind(start={"developer_mode": False, "tells_cached_tokens": False}),
    "no-prefix-caching": ServerKind(options=("--no-enable-prefix-caching",)),
    "no-log-stats": ServerKind(options=("--disable-log-stats",)),
}
TWO_SGLANG_RANKS = "two-sglang-ranks"


@dataclass(frozen=True)
class JudgedServer:
    """A running vLLM and what a Scenario has to say about it."""

    real: RealServer
    tokenizer: Path
    engines: int
    block_size: int = BLOCK_SIZE
    api_key: str = ""
    reset_path: str = "/reset_prefix_cache"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, deepseek_tokenizer_dir: Path) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", deepseek_tokenizer_dir)


@pytest.fixture(scope="session")
def tiny_model_with_bos(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The same model with a post-processor that puts a BOS before every prompt."""
    directory = tmp_path_factory.mktemp("model-with-bos") / "tiny"
    shutil.copytree(tiny_model, directory)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    bos = "<｜begin▁of▁sentence｜>"
    bos_id = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == bos)
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }
    tokenizer["post_processor"] = {"type": "Sequence", "processors": [tokenizer["post_processor"], template]}
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def other_tokenizer(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The same vocabulary with half of the merges: other tokens for most words."""
    directory = tmp_path_factory.mktemp("other-tokenizer") / "tiny"
    shutil.copytree(tiny_model, directory)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    merges = tokenizer["model"]["merges"]
    tokenizer["model"]["merges"] = merges[: len(merges) // 2]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    return directory


@dataclass
class SharedServer:
    """The one server that tests of a kind share: it runs until another server is wanted."""

    kind: str | None = None
    running: JudgedServer | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    def stop(self) -> None:
        self.kind = self.running = None
        self.stack.close()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[SharedServer]:
    shared = SharedServer()
    yield shared
    shared.stop()


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory, shared_server: SharedServer) -> Callable[..., Any]:
    """``with serving(model, engines=2, options=[…]) as server``: a judged server for the time of a block."""

    @contextmanager
    def serve(
        model: Path,
        *,
        engines: int = 1,
        block_size: int = BLOCK_SIZE,
        options: tuple[str, ...] = (),
        beside_the_shared: bool = False,
        **start: bool,
    ) -> Iterator[JudgedServer]:
        if not beside_the_shared:
            shared_server.stop()
        log = tmp_path_factory.mktemp("vllm") / "server.log"
        with real_vllm(model, log, block_size=block_size, engines=engines, options=options, **start) as vllm:
            yield JudgedServer(vllm, model, engines, block_size, API_KEY if "--api-key" in options else "")

    return serve


def server_of(test: str) -> str | None:
    """The kind of server that a test's id names."""
    return max((kind for kind in (*KINDS, TWO_SGLANG_RANKS) if kind in test), key=len, default=None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one kind of server run one after another, so that each kind starts once."""
    kinds = [None, *KINDS, TWO_SGLANG_RANKS]
    items.sort(key=lambda item: kinds.index(server_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``: a process for all tests of one kind of server, or of one file; those with most tests first."""

    class ByServer(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return server_of(nodeid) or nodeid.partition("::")[0]

    return ByServer(config, log)


@pytest.fixture
def server(
    request: pytest.FixtureRequest,
    serving: Callable[..., Any],
    shared_server: SharedServer,
    tiny_model: Path,
    tiny_model_with_bos: Path,
) -> JudgedServer:
    """A server of the kind that the test names (indirectly)."""
    if shared_server.running is None or shared_server.kind != request.param:
        kind = KINDS[request.param]
        started = serving(
            tiny_model_with_bos if kind.adds_bos else tiny_model,
            engines=kind.engines,
            options=kind.options,
            **kind.start,
        )
        shared_server.stop()
        shared_server.running = shared_server.stack.enter_context(started)
        shared_server.kind = request.param
    return shared_server.running


@pytest.fixture
def scenario_for(tmp_path: Path, project_root: Path) -> Callable[..., Path]:
    """Writes a Scenario for a judged server into ``tmp_path`` and returns its path."""

    def write(server: JudgedServer, **sections: dict[str, Any]) -> Path:
        scenario: dict[str, Any] = {
            "run": {"run_id": "judged", "random_seed": 7, "output_dir": "./outputs/judged"},
            "tokenizer": {"path": str(server.tokenizer), "block_size": server.block_size},
            "corpus": {"path": str(project_root / "src/ais_bench_prefix_cache/demo/corpus.jsonl")},
            "requests": {
                "count": 40,
                "input_length": {"mode": "fixed", "value": 320},
                "output_length": {"mode": "fixed", "value": 2},
            },
            "prefix_cache": {"mode": "warmup", "target_hit_rate": 0.6},
            "service": {
                "inference_url": f"{server.real.url}/v1/completions",
                "metrics_url": f"{server.real.url}/metrics",
                "reset_url": server.real.url + server.reset_path,
                "model": SERVED_MODEL,
                "dp_size": server.engines,
                "poll_interval_seconds": 1,
                "timeout_seconds": 60,
            },
            "aisbench": {
                "work_dir": "./outputs/aisbench",
                "extra_args": {"--num-warmups": 0},
                "model": {"generation_kwargs": {"temperature": 0, "ignore_eos": True}},
            },
        }
        if server.api_key:
            scenario["service"]["api_key"] = server.api_key
        for name, section in sections.items():
            target = scenario.setdefault(name, {})
            for key, value in section.items():
                target[key] = (
                    {**target[key], **value} if isinstance(target.get(key), dict) and key == "model" else value
                )
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(scenario, indent=2), encoding="utf-8")
        return path

    return write


@dataclass(frozen=True)
class Judged:
    """What one run planned, from ``full.jsonl``, and what the server counted, from the raw metric texts and responses.

    Pairs are (prompt tokens, hit tokens): by rank, and by the request's index.
    """

    analysis: dict[str, Any]
    planned: dict[int | None, tuple[int, int]]
    counted: dict[int, tuple[int, int]]
    requests_planned: dict[int, tuple[int, int]]
    requests_seen: dict[int, tuple[int, int]]

    @property
    def planned_total(self) -> tuple[int, int]:
        return (sum(q for q, _ in self.planned.values()), sum(h for _, h in self.planned.values()))

    @property
    def counted_total(self) -> tuple[int, int]:
        return (sum(q for q, _ in self.counted.values()), sum(h for _, h in self.counted.values()))


Texts = Union[str, list[str]]


def counter_by_engine(text: str, name: str) -> dict[int, int]:
    """Engine number → value of one vLLM counter in a metric text."""
    pattern = re.compile(rf'^vllm:{name}_total{{.*?engine="(\d+)".*}} (\S+)$', re.MULTILINE)
    return {int(engine): int(float(value)) for engine, value in pattern.findall(text)}


def counter_by_rank(texts: Texts, name: str) -> dict[int, int]:
    """As :func:`counter_by_engine`; with one text for each port the port's position is the rank."""
    if isinstance(texts, str):
        return counter_by_engine(texts, name)
    return {rank: sum(counter_by_engine(text, name).values()) for rank, text in enumerate(texts)}


CountedBetween = Callable[[Texts, Texts], dict[int, tuple[int, int]]]


def vllm_counted(before: Texts, after: Texts) -> dict[int, tuple[int, int]]:
    """Rank → queries and hits between two looks at vLLM's counters."""
    queries, hits = (
        {
            rank: value - counter_by_rank(before, name).get(rank, 0)
            for rank, value in counter_by_rank(after, name).items()
        }
        for name in ("prefix_cache_queries", "prefix_cache_hits")
    )
    return {rank: (queries[rank], hits[rank]) for rank in queries}


@pytest.fixture
def prepare(capsys: pytest.CaptureFixture[str]) -> Callable[[Path], dict[str, Any]]:
    """Prepares a Scenario in this process, which loads the libraries of tokenizers once; what it printed."""

    def run(scenario: Path) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["prepare", "--scenario", str(scenario)]) == 0
        printed: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return printed

    return run


@pytest.fixture
def judge(
    prepare: Callable[[Path], dict[str, Any]],
    command_line: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> Callable[..., Judged]:
    """Prepares a Scenario and runs it through the command line; sums up both sides from raw files."""

    def run(scenario: Path, counted_between: CountedBetween = vllm_counted) -> Judged:
        prepared = prepare(scenario)
        command_line("run", "--scenario", scenario, cwd=tmp_path, timeout=600)
        planned: dict[int | None, tuple[int, int]] = {}
        requests_planned = {}
        with Path(prepared["full"]).open(encoding="utf-8") as rows:
            for row in map(json.loads, rows):
                requests_planned[row["sequence_index"]] = (row["actual_input_tokens"], row["theoretical_hit_tokens"])
                tokens, shared = planned.get(row["dp_rank"], (0, 0))
                planned[row["dp_rank"]] = (
                    tokens + row["actual_input_tokens"],
                    shared + row["theoretical_hit_tokens"],
                )
        analysis = json.loads(Path(prepared["analysis"]).read_text(encoding="utf-8"))
        before = analysis["runtime"]["metrics_baseline"]["raw_prometheus"]
        after = analysis["runtime"]["metrics_after"]["raw_prometheus"]
        counted = counted_between(before, after)
        (usage,) = Path(analysis["runtime"]["aisbench"]["exp_dir"]).rglob("*_usage.jsonl")
        requests_seen = {}
        with usage.open(encoding="utf-8") as rows:
            for row in map(json.loads, rows):
                requests_seen[row["sequence_index"]] = (row["prompt_tokens"], row.get("cached_tokens"))
        return Judged(analysis, planned, counted, requests_planned, requests_seen)

    return run
