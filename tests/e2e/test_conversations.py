"""Conversations through the command line, the embedded server and the real AISBench: theory is what is counted."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.fault_proxy import Action, Answer, Seen, fault_proxy
from tests.doubles.scenarios import scenario_file

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = pytest.mark.aisbench

CommandLine = Callable[..., subprocess.CompletedProcess[str]]
SECTION: dict[str, Any] = {
    "count": 10,
    "turns": {"mode": "uniform", "min": 2, "max": 4},
    "system_prompts": {"count": 2, "length": {"mode": "explicit", "values": [83, 47]}},
    "first_message_length": {"mode": "uniform", "min": 1, "max": 40},
    "message_length": {"mode": "uniform", "min": 1, "max": 30},
    "answer_length": {"mode": "uniform", "min": 1, "max": 20},
}


def talk(directory: Path, tokenizer: Path, url: str, *, ranks: int, stream: bool, **section: Any) -> Path:
    scenario = scenario_file(
        directory,
        tokenizer=tokenizer,
        url=url,
        service={"dp_size": ranks, "poll_interval_seconds": 0.5},
        conversation={**SECTION, **section},
        aisbench={"work_dir": "./aisbench", "model": {"batch_size": 6, "stream": stream, "retry": 0}},
    )
    document = json.loads(scenario.read_text())
    del document["requests"], document["prefix_cache"]
    scenario.write_text(json.dumps(document))
    return scenario


def counters(text: str, name: str) -> dict[str, int]:
    lines = [line for line in text.splitlines() if line.startswith(f"vllm:prefix_cache_{name}_total{{")]
    return {line.split('engine="')[1].split('"')[0]: int(float(line.rsplit(" ", 1)[1])) for line in lines}


AGENTS: dict[str, Any] = {
    "routing": "round_robin",
    "branches": {"after_turn": 1, "count": 2, "turns": {"mode": "uniform", "min": 1, "max": 2}},
    "tool_results": {"length": {"mode": "uniform", "min": 20, "max": 80}, "time_ms": {"mode": "fixed", "value": 30}},
}
BRANCHES: dict[str, Any] = {"branches": {"after_turn": 1, "count": 2}}
RETRIES: dict[str, Any] = {"branches": {"after_turn": 1, "count": 2, "message": "same"}}


@pytest.mark.parametrize(
    ("answers", "ranks", "stream", "more"),
    [
        ("generated", 2, True, {}),
        ("scripted", 1, False, {}),
        ("generated", 3, True, AGENTS),
        ("scripted", 2, True, AGENTS),
        ("generated", 2, False, RETRIES),
    ],
    ids=["generated", "scripted", "agents on three ranks in turn", "scripted agents", "retries"],
)
def test_every_turn_and_every_counter_is_as_planned(
    answers: str,
    ranks: int,
    stream: bool,
    more: dict[str, Any],
    deepseek_tokenizer_dir: Path,
    tmp_path: Path,
    command_line: CommandLine,
) -> None:
    configuration = ServerConfiguration(
        tokenizer=deepseek_tokenizer_dir, model="tiny", data_parallel_size=ranks, decode_tokens_per_second=2000
    )
    with running_server(configuration) as url:
        scenario = talk(
            tmp_path,
            deepseek_tokenizer_dir,
            url,
            ranks=ranks,
            stream=stream,
            answers=answers,
            think_time_ms={"mode": "uniform", "min": 1, "max": 300},
            **more,
        )
        inspected = json.loads(command_line("inspect", "--scenario", scenario, cwd=tmp_path).stdout)
        files = json.loads(command_line("prepare", "--scenario", scenario, cwd=tmp_path).stdout.splitlines()[-1])
        command_line("validate", "--manifest", files["manifest"], cwd=tmp_path)
        shown = command_line("run", "--scenario", scenario, cwd=tmp_path).stdout
    rows = [json.loads(line) for line in Path(files["full"]).read_text().splitlines()]
    analysis = json.loads(Path(files["analysis"]).read_text())
    assert inspected["theory"] == analysis["theory"]

    # The counters, from their raw texts, by rank.
    looks = [analysis["runtime"][name]["raw_prometheus"] for name in ("metrics_baseline", "metrics_after")]
    for name, key in (("queries", "actual_input_tokens"), ("hits", "theoretical_hit_tokens")):
        before, after = (counters(look, name) for look in looks)
        counted = {engine: after[engine] - before[engine] for engine in after}
        assert counted == {str(rank): sum(row[key] for row in rows if row["dp_rank"] == rank) for rank in range(ranks)}
    # Each turn, as its answer said.
    (usage,) = Path(analysis["runtime"]["aisbench"]["exp_dir"]).rglob("*_usage.jsonl")
    seen = sorted(map(json.loads, usage.read_text().splitlines()), key=lambda each: each["sequence_index"])
    assert [(each["prompt_tokens"], each["cached_tokens"], each["completion_tokens"]) for each in seen] == [
        (row["actual_input_tokens"], row["theoretical_hit_tokens"], row["max_tokens"]) for row in rows
    ]
    # Turns in their order, and at most six conversations at once, one after another.
    ends = [each["finished"] for each in seen]
    for row, each in zip(rows, seen, strict=True):
        if row["continues"] is not None:
            assert row["think_ms"] > 0
            assert each["sent"] >= ends[row["continues"]] + row["think_ms"] / 1000
    assert analysis["findings"] == []
    assert f"{len(rows)} of {len(rows)}" in shown
    by_turn = analysis["performance"]["by_turn"]
    assert {turn: each["hit_tokens"] for turn, each in by_turn.items()} == {
        turn: each["hit_tokens"] for turn, each in analysis["theory"]["turns"].items()
    }

    reported = json.loads(command_line("report", "--manifest", files["manifest"], "--json", cwd=tmp_path).stdout)
    mode = f"conversations, {answers} answers" + (", round_robin routing" if "routing" in more else "")
    assert (reported["run"]["mode"], reported["run"]["requests"]) == (mode, len(rows))
    page = tmp_path / "report.html"
    command_line("report", "--manifest", files["manifest"], "--html", page, cwd=tmp_path)
    assert "conversations" in page.read_text()


def test_ranks_that_the_server_chooses_are_judged_by_their_range(
    deepseek_tokenizer_dir: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    configuration = ServerConfiguration(tokenizer=deepseek_tokenizer_dir, model="tiny", data_parallel_size=2)
    with running_server(configuration) as url:
        scenario = talk(tmp_path, deepseek_tokenizer_dir, url, ranks=2, stream=True, routing="free", **BRANCHES)
        files = json.loads(command_line("prepare", "--scenario", scenario, cwd=tmp_path).stdout.splitlines()[-1])
        shown = command_line("run", "--scenario", scenario, cwd=tmp_path).stdout
    analysis = json.loads(Path(files["analysis"]).read_text())
    hits, bounds = analysis["actual"]["global_hits"], analysis["theory"]["range"]
    assert bounds["least_hit_tokens"] <= hits <= bounds["most_hit_tokens"]
    assert min(rank["queries"] for rank in analysis["actual"]["by_dp"].values()) > 0
    (finding,) = analysis["findings"]
    assert (finding["code"], finding["evidence"]["counted_hits"]) == ("FREE_ROUTING", hits)
    assert finding["evidence"]["lost_to_sticky"] == analysis["theory"]["hit_tokens"] - hits
    assert (analysis["theory_actual_difference_pp"], analysis["warnings"]) == (0.0, [])
    assert f"{bounds['least_hit_tokens']} to {bounds['most_hit_tokens']} tokens" in shown
    reported = json.loads(command_line("report", "--manifest", files["manifest"], "--json", cwd=tmp_path).stdout)
    assert reported["run"]["mode"] == "conversations, generated answers, free routing"


def test_a_small_cache_hits_what_the_replay_in_the_order_of_sending_says(
    deepseek_tokenizer_dir: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    """Conversations go ahead of others that think, one request at a time."""
    configuration = ServerConfiguration(
        tokenizer=deepseek_tokenizer_dir, model="tiny", num_blocks=60, max_model_len=900, decode_tokens_per_second=None
    )
    with running_server(configuration) as url:
        scenario = talk(
            tmp_path,
            deepseek_tokenizer_dir,
            url,
            ranks=1,
            stream=True,
            think_time_ms={"mode": "uniform", "min": 1, "max": 900},
            **BRANCHES,
        )
        document = json.loads(scenario.read_text())
        document["aisbench"]["model"]["batch_size"] = 1
        scenario.write_text(json.dumps(document))
        files = json.loads(command_line("prepare", "--scenario", scenario, cwd=tmp_path).stdout.splitlines()[-1])
        command_line("run", "--scenario", scenario, cwd=tmp_path)
    analysis = json.loads(Path(files["analysis"]).read_text())
    (finding,) = analysis["findings"]
    assert finding["code"] == "CACHE_TOO_SMALL"
    hits = analysis["actual"]["global_hits"]
    assert finding["evidence"]["predicted_hits"] == hits < analysis["theory"]["hit_tokens"]


@pytest.mark.parametrize(
    "more", [{"routing": "sticky"}, {"routing": "round_robin", "system_prompts": {"count": 0}}], ids=["stay", "in turn"]
)
def test_two_load_generators_share_conversations(
    more: dict[str, Any], deepseek_tokenizer_dir: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    configuration = ServerConfiguration(tokenizer=deepseek_tokenizer_dir, model="tiny", data_parallel_size=2)
    with running_server(configuration) as url:
        scenario = talk(tmp_path, deepseek_tokenizer_dir, url, ranks=2, stream=True, **BRANCHES, **more)
        document = json.loads(scenario.read_text())
        document["aisbench"]["load"] = {"generators": 2}
        scenario.write_text(json.dumps(document))
        files = json.loads(command_line("prepare", "--scenario", scenario, cwd=tmp_path).stdout.splitlines()[-1])
        command_line("run", "--scenario", scenario, cwd=tmp_path)
    analysis = json.loads(Path(files["analysis"]).read_text())
    rows = [json.loads(line) for line in Path(files["full"]).read_text().splitlines()]
    assert analysis["requests"]["matched"] == len(rows)
    assert analysis["findings"] == []
    generators = analysis["runtime"]["aisbench"]["load"]["generators"]
    assert sum(sender["requests"] for each in generators for sender in each["senders"]) == len(rows)
    assert len(generators) == 2


def test_texts_with_a_script_hit_what_is_planned(
    deepseek_tokenizer_dir: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    configuration = ServerConfiguration(tokenizer=deepseek_tokenizer_dir, model="tiny", data_parallel_size=2)
    with running_server(configuration) as url:
        scenario = talk(
            tmp_path, deepseek_tokenizer_dir, url, ranks=2, stream=True, form="text", answers="scripted", count=6
        )
        files = json.loads(command_line("prepare", "--scenario", scenario, cwd=tmp_path).stdout.splitlines()[-1])
        command_line("run", "--scenario", scenario, cwd=tmp_path)
    reported = json.loads(command_line("report", "--manifest", files["manifest"], "--json", cwd=tmp_path).stdout)
    assert reported["run"]["mode"] == "conversations, scripted answers as text"
    rows = [json.loads(line) for line in Path(files["full"]).read_text().splitlines()]
    analysis = json.loads(Path(files["analysis"]).read_text())
    assert seen_by_the_sender(analysis) == [(row["actual_input_tokens"], row["theoretical_hit_tokens"]) for row in rows]
    assert (analysis["findings"], analysis["warnings"]) == ([], [])


def seen_by_the_sender(analysis: dict[str, Any]) -> list[tuple[int, int]]:
    (usage,) = Path(analysis["runtime"]["aisbench"]["exp_dir"]).rglob("*_usage.jsonl")
    seen = sorted(map(json.loads, usage.read_text().splitlines()), key=lambda each: each["sequence_index"])
    return [(each["prompt_tokens"], each["cached_tokens"]) for each in seen]


TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] let me think about this for a while before I say it{% endif %}"
)
"""What is written before an answer is not there any more once the answer has become a part of the history."""


def test_what_the_histories_of_a_chat_lose_is_named(
    deepseek_tokenizer_dir: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    from transformers import AutoTokenizer

    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(deepseek_tokenizer_dir, tokenizer)
    (tokenizer / "chat_template.jinja").write_text(TEMPLATE)
    raw = AutoTokenizer.from_pretrained(tokenizer)
    with running_server(ServerConfiguration(tokenizer=tokenizer, model="tiny")) as url:
        section: dict[str, Any] = {"form": "chat", "answers": "scripted", "count": 4}
        scenario = talk(tmp_path, tokenizer, url, ranks=1, stream=True, **section)
        document = json.loads(scenario.read_text())
        document["service"]["inference_url"] = f"{url}/v1/chat/completions"
        scenario.write_text(json.dumps(document))
        files = json.loads(command_line("prepare", "--scenario", scenario, cwd=tmp_path).stdout.splitlines()[-1])
        command_line("run", "--scenario", scenario, cwd=tmp_path)
    rows = [json.loads(line) for line in Path(files["full"]).read_text().splitlines()]
    analysis = json.loads(Path(files["analysis"]).read_text())

    # Every prompt as the template gives it, and how much of it was computed for the turn before.
    prompts: list[list[int]] = []
    histories: list[list[dict[str, str]]] = []
    lost: list[tuple[int, int, int]] = []
    for row, (tokens, hits) in zip(rows, seen_by_the_sender(analysis), strict=True):
        messages = [] if row["continues"] is None else list(histories[row["continues"]])
        if row["system_prompt"]:
            messages.append({"role": "system", "content": row["system_prompt"]})
        messages.append({"role": "user", "content": row["question"]})
        text = raw.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompts.append(raw.encode(text, add_special_tokens=False))
        histories.append([*messages, {"role": "assistant", "content": row["answer"]}])
        assert tokens == len(prompts[-1])
        if row["continues"] is not None:
            before = prompts[row["continues"]]
            same = next(place for place, pair in enumerate(zip(before, prompts[-1], strict=False)) if len({*pair}) > 1)
            assert hits == same // 16 * 16
            law = min(len(before), tokens - 1) // 16 * 16
            if law > hits:
                lost.append((row["sequence_index"], law - hits, same))
    assert lost, "the template must matter"
    (finding,) = analysis["findings"]
    assert (finding["code"], finding["severity"]) == ("HISTORY_REENCODED", "warning")
    shown = finding["evidence"]
    assert (shown["lost_turns"], shown["lost_tokens"]) == (len(lost), sum(tokens for _, tokens, _ in lost))
    assert shown["sequence_index"] == lost[0][0]
    assert shown["differs_from"] <= lost[0][2] < shown["differs_before"]
    actual = analysis["actual"]
    assert actual["global_queries"] == sum(map(len, prompts)) and actual["queries_difference"] == 0
    assert actual["hits_difference"] == -shown["lost_tokens"]


def test_an_answer_without_token_ids_is_named_and_its_conversation_ends(
    deepseek_tokenizer_dir: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunk = {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}], "usage": usage}
    without_ids = Answer(200, f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", "text/event-stream")

    def third(seen: Seen) -> Action:
        return without_ids if seen.formal and seen.number == 3 else "pass"

    configuration = ServerConfiguration(tokenizer=deepseek_tokenizer_dir, model="tiny")
    with running_server(configuration) as url, fault_proxy(url) as proxy:
        proxy.rule = third
        scenario = talk(
            tmp_path,
            deepseek_tokenizer_dir,
            proxy.url,
            ranks=1,
            stream=True,
            count=2,
            turns={"mode": "fixed", "value": 5},
        )
        document = json.loads(scenario.read_text())
        document["aisbench"]["model"]["batch_size"] = 1
        scenario.write_text(json.dumps(document))
        failed = command_line("run", "--scenario", scenario, cwd=tmp_path, expect=4)
    assert "the answer to request 2 has no token ids" in failed.stderr
    assert "not sent: the turn before it has no answer" in failed.stderr
    assert sum(seen.formal for seen in proxy.seen) == 8
