"""Two single-engine vLLMs as two ranks: both call their engine "0", so the port decides which rank one is."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
def test_two_servers_are_two_ranks_but_not_one(
    server: Any,
    serving: Callable[..., Any],
    scenario_for: Callable[..., Path],
    prepare: Callable[[Path], dict[str, Any]],
    judge: Callable[[Path], Any],
    command_line: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    options = ("--api-key", server.api_key)
    with serving(server.tokenizer, options=options, beside_the_shared=True) as second:
        urls = [each.real.url for each in (server, second)]
        service = {
            "inference_url": [f"{url}/v1/completions" for url in urls],
            "metrics_url": [f"{url}/metrics" for url in urls],
            "reset_url": [f"{url}/reset_prefix_cache" for url in urls],
            "dp_size": 2,
        }
        prefix_cache = {"mode": "cold", "groups": {"count": 3}}
        judged = judge(
            scenario_for(server, service=service, prefix_cache=prefix_cache, aisbench={"model": {"batch_size": 8}})
        )
        texts = [each.real.metrics() for each in (server, second)]
    assert judged.counted == judged.planned
    assert judged.requests_seen == judged.requests_planned
    assert judged.analysis["findings"] == []

    # A text of one process before, of another one after: what a restart between the snapshots looks like.
    scenario = scenario_for(server, prefix_cache=prefix_cache)
    manifest = prepare(scenario)["manifest"]
    for name, text in zip(("before.prom", "after.prom"), texts, strict=True):
        (tmp_path / name).write_text(text)
    finished = command_line(
        *("analyze", "--manifest", manifest, "--baseline", "before.prom", "--after", "after.prom"),
        cwd=tmp_path,
        expect=2,
    )
    assert "finding [SERVER_RESTARTED]" in finished.stderr
