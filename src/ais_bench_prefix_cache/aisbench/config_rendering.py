"""From a template to the configuration and the arguments that AISBench gets.

AISBench's configuration language cannot import ``json`` or ``os``, so a template runs as plain Python in a process of
its own and only literals reach AISBench.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.aisbench.environment import (
    CONFIG_VARIABLE,
    MANIFEST_VARIABLE,
    SCENARIO_VARIABLE,
    WORK_DIR_VARIABLE,
)
from ais_bench_prefix_cache.aisbench.job import AISBenchJob
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import AISBenchError, Problem

Refuse = Callable[..., None]
"""Takes the place in a template, what is wrong there and, if there is more to say, what is allowed."""

TEMPLATES = Path(__file__).parent / "templates"
CONTRACT_TEMPLATE = ("plugins", "prefix_cache", "config_examples", "prefix_cache_perf.py")
_ADAPTERS = "ais_bench_prefix_cache.aisbench.adapters"
_OUR_DATASET = f"{_ADAPTERS}.dataset.PrefixCacheDataset"
_OUR_INFERENCERS = (
    f"{_ADAPTERS}.inferencer.PrefixCacheInferencer",
    f"{_ADAPTERS}.conversation.ConversationInferencer",
)
_OUR_RUNNER = f"{_ADAPTERS}.runner.ForkingRunner"
PARTS_FILE = "parts.json"
SUPERVISOR_FILE = "supervisor"
"""In the private directory of one AISBench."""
_TEMPLATE_SECONDS = 300.0

_REFUSED_ARGUMENTS = {
    "--pressure": "it repeats and drops requests, so that the hit rate is not the planned one",
    "--pressure-time": "it belongs to --pressure, which repeats and drops requests",
    "--num-prompts": "it sends only a part of the data set; set requests.count and prepare again",
    "--reuse": "it sends nothing but reads old results",
    "-r": "it sends nothing but reads old results",
    "--dry-run": "it sends nothing",
    "--search": "it sends nothing",
    "-s": "it sends nothing",
    "--work-dir": "the field aisbench.work_dir sets it",
    "-w": "the field aisbench.work_dir sets it",
    "--models": "the template defines the model",
    "--datasets": "the template defines the data set",
    "--summarizer": "the template defines the summarizer",
    "--custom-dataset-path": "the template defines the data set",
    "--custom-dataset-meta-path": "the template defines the data set",
    "--custom-dataset-data-type": "the template defines the data set",
    "--custom-dataset-infer-method": "the template defines the data set",
}
_FIXED_ARGUMENTS = {"--mode": "perf", "-m": "perf", "--debug": True}
"""Given in any case; a Scenario may repeat them but not change them."""


@dataclass(frozen=True)
class RenderedConfig:
    """``text`` is the AISBench configuration, literals only; the rest is what one must know of it.

    ``waits`` says whether its inferencer waits until it is told to send.
    """

    text: str
    waits: bool
    model_abbr: str
    dataset_abbr: str
    batch_size: int
    stream: bool
    ignore_eos: bool


def check_extra_args(extra_args: Mapping[str, Any]) -> list[Problem]:
    """What in ``aisbench.extra_args`` would spoil the run; empty if nothing."""
    problems = []
    for name, value in extra_args.items():
        where = f"aisbench.extra_args[{name!r}]"
        if value is False:  # Means: leave it out.
            continue
        if name in _FIXED_ARGUMENTS:
            if value != _FIXED_ARGUMENTS[name]:
                problems.append(
                    Problem(
                        Code.AISBENCH_ARGUMENT_REFUSED,
                        where,
                        f"a run always has {name} {_FIXED_ARGUMENTS[name]}".removesuffix(" True"),
                        hint="Leave it out.",
                    )
                )
            continue
        # AISBench's parser also takes any unambiguous beginning of a long name.
        spelled_out = [full for full in _REFUSED_ARGUMENTS if full == name or (len(name) > 2 and full.startswith(name))]
        if spelled_out:
            full = name if name in spelled_out else spelled_out[0]
            problems.append(
                Problem(
                    Code.AISBENCH_ARGUMENT_REFUSED,
                    where,
                    f"{full} cannot be used in a run: {_REFUSED_ARGUMENTS[full]}",
                    hint="Leave it out.",
                )
            )
    return problems


def command_line_arguments(extra_args: Mapping[str, Any]) -> list[str]:
    """``extra_args`` as words; ``--num-warmups 0`` unless something else is asked for.

    A scalar becomes one value, a list several, true the bare name, false nothing.
    """
    words: list[str] = []
    for name, value in {"--num-warmups": 0, **extra_args}.items():
        if name in _FIXED_ARGUMENTS or value is False:
            continue
        words.append(name)
        if value is not True:
            words.extend(str(item) for item in (value if isinstance(value, (list, tuple)) else (value,)))
    return words


def own_template(named: Path | None) -> tuple[Path | None, str | None]:
    """The template that ``aisbench.config`` names, None for the built-in one; and what to tell about that.

    The contract's example names its plugin's own template, which the built-in one stands for where it does not exist.

    Raises:
        AISBenchError: there is no such file.
    """
    if named is None or named.is_file():
        return named, None
    if named.parts[-len(CONTRACT_TEMPLATE) :] == CONTRACT_TEMPLATE:
        return None, f"aisbench.config: {named} does not exist; the built-in template, which does the same, is used"
    raise AISBenchError.of(
        Code.AISBENCH_TEMPLATE_NOT_FOUND,
        str(named),
        "there is no such file",
        hint="Name an existing Python file in aisbench.config or --config, or leave both out.",
    )


def render_config(job: AISBenchJob, private_dir: Path, environment: Mapping[str, str]) -> RenderedConfig:
    """Run the job's template and check and complete what it defines.

    ``private_dir`` receives intermediate files. Raises :class:`AISBenchError` (``AISBENCH_TEMPLATE_…``).
    """
    variables = _run_template(job, private_dir, environment)
    return _complete(variables, job, private_dir)


def _run_template(job: AISBenchJob, private_dir: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    template = job.template_path
    output = private_dir / "template.json"
    config = private_dir / "config.json"
    config.write_text(json.dumps(job.config), encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ais_bench_prefix_cache.aisbench.templates.run_template", template, output],
            cwd=private_dir,
            env={
                **environment,
                SCENARIO_VARIABLE: str(job.scenario_path),
                MANIFEST_VARIABLE: str(job.manifest_path),
                WORK_DIR_VARIABLE: str(job.work_dir),
                CONFIG_VARIABLE: str(config),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TEMPLATE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AISBenchError.of(
            Code.AISBENCH_TEMPLATE_INVALID, str(template), f"did not end within {_TEMPLATE_SECONDS:.0f} seconds"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"ended with exit code {done.returncode}"])[-1]
        raise AISBenchError.of(
            Code.AISBENCH_TEMPLATE_INVALID,
            str(template),
            f"cannot be used as an AISBench template: {last}",
            hint="A template is run as plain Python (no read_base) and defines datasets, models and infer; "
            "config_examples/prefix_cache_perf.py is one that works.",
        )
    variables: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    output.unlink()
    return variables


def _complete(variables: dict[str, Any], job: AISBenchJob, private_dir: Path) -> RenderedConfig:
    template = job.template_path
    problems: list[Problem] = []

    def refuse(name: str, message: str, allowed: str | None = None) -> None:
        problems.append(Problem(Code.AISBENCH_TEMPLATE_INVALID, f"{template}: {name}", message, allowed))

    dataset = _the_only(variables, "datasets", refuse)
    model = _the_only(variables, "models", refuse)
    if model:
        _settle_model(model, job.batch_size, refuse)
    if job.is_divided:
        _check_division(variables, dataset, model, refuse)
    if problems:
        raise AISBenchError(problems)
    assert dataset is not None and model is not None
    inferencer = _inferencer(dataset)
    model["path"] = _tokenizer_directory(model, job.config["tokenizer"], private_dir)
    if dataset.get("type") == _OUR_DATASET:
        # Our inferencer reads a prompt when it sends it; any other one wants it in the data set.
        dataset.setdefault("with_prompts", inferencer not in _OUR_INFERENCERS)
    variables.setdefault("summarizer", {"attr": "performance"})
    if job.role == "sending":
        variables["summarizer"] = {"attr": "performance", "type": f"{_ADAPTERS}.runner.NoSummary"}
    elif job.role == "summing":
        variables["infer"]["runner"].update(
            type=f"{_ADAPTERS}.runner.SummingRunner",
            parts=str(private_dir / PARTS_FILE),
            supervisor=str(private_dir / SUPERVISOR_FILE),
        )
    text = "".join(f"{name} = {value!r}\n" for name, value in variables.items())
    if job.api_key and any(_tells(job.api_key, value) for value in _strings(variables)):
        raise AISBenchError.of(
            Code.AISBENCH_TEMPLATE_LEAKS_KEY,
            str(template),
            "puts the API key into the configuration, which AISBench writes into its results in plain text",
            hint="Leave it out: the model adapter reads the key from the environment.",
        )
    return RenderedConfig(
        text=text,
        waits=inferencer in _OUR_INFERENCERS,
        model_abbr=model["abbr"],
        dataset_abbr=dataset["abbr"],
        batch_size=model["batch_size"],
        stream=bool(model.get("stream", False)),
        ignore_eos=bool(model["generation_kwargs"].get("ignore_eos", False)),
    )


def _settle_model(model: dict[str, Any], batch_size: int | None, refuse: Refuse) -> None:
    """What a template's model must be and may leave out; ``batch_size`` replaces its own."""
    if model.get("attr") != "service":
        refuse("models[0].attr", f"is {model.get('attr')!r}", "'service', for which AISBench writes results")
    if not isinstance(model.setdefault("generation_kwargs", {}), dict):
        refuse("models[0].generation_kwargs", "is not a dict")
    elif model["generation_kwargs"].get("num_return_sequences", 1) != 1:
        refuse("models[0].generation_kwargs.num_return_sequences", "would send every request more than once", "1")
    if not isinstance(model.setdefault("batch_size", 1), int) or model["batch_size"] < 1:
        refuse("models[0].batch_size", f"is {model['batch_size']!r}", "a positive integer")
    elif batch_size is not None:
        model["batch_size"] = batch_size
    if not isinstance(model.setdefault("retry", 0), int) or model["retry"] < 0:
        refuse("models[0].retry", f"is {model['retry']!r}", "the number of retries, from 0 up")
    else:
        # AISBench counts attempts: it would send nothing at 0 and repeat nothing at 1.
        model["retry"] += 1


def _inferencer(dataset: Mapping[str, Any]) -> Any:
    return dataset.get("infer_cfg", {}).get("inferencer", {}).get("type")


def _check_division(
    variables: Mapping[str, Any], dataset: Mapping[str, Any] | None, model: Mapping[str, Any] | None, refuse: Refuse
) -> None:
    """Several senders share the work only as the built-in template lets them."""
    allowed = "with several senders only what the built-in template has"
    if dataset and (inferencer := _inferencer(dataset)) not in _OUR_INFERENCERS:
        refuse("datasets[0].infer_cfg.inferencer.type", f"is {inferencer!r}, which cannot share the work", allowed)
    if model and model.get("request_rate"):
        refuse("models[0].request_rate", "would hold for each of several senders", "aisbench.model.request_rate")
    runner = (variables.get("infer") or {}).get("runner", {}).get("type")
    if runner != _OUR_RUNNER:
        refuse("infer.runner.type", f"is {runner!r}, which starts only one sender", allowed)


def _the_only(variables: Mapping[str, Any], name: str, refuse: Refuse) -> dict[str, Any] | None:
    """The single entry of ``datasets`` or ``models``: with two, no one could say which hits belong to which."""
    entries = variables.get(name)
    if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
        refuse(name, "must be a list of exactly one dict")
        return None
    entry: dict[str, Any] = entries[0]
    abbr = entry.get("abbr")
    if not isinstance(abbr, str) or not abbr or "/" in abbr or "\0" in abbr or abbr.startswith("."):
        refuse(f"{name}[0].abbr", f"is {abbr!r}", "a file name: not empty, no '/', no leading '.'")
    return entry


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _tells(secret: str, text: str) -> bool:
    """A short key may be part of an innocent word."""
    return text in (secret, f"Bearer {secret}") or (len(secret) >= 8 and secret in text)


def _tokenizer_directory(model: Mapping[str, Any], pinned: Mapping[str, Any], private_dir: Path) -> str:
    """AISBench only takes a local directory; a tokenizer that has just a name is saved into one."""
    path = str(model.get("path") or "")
    if path and Path(path).exists():
        return path
    from transformers import AutoTokenizer

    directory = private_dir / "tokenizer"
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path,
            revision=pinned.get("revision") if pinned.get("path") == path else None,
            trust_remote_code=bool(model.get("trust_remote_code")),
        )
        tokenizer.save_pretrained(directory)
    except (OSError, ValueError, ImportError) as error:
        raise AISBenchError.of(
            Code.AISBENCH_TOKENIZER_NOT_FOUND,
            "models[0].path",
            f"AISBench needs a local tokenizer, and {path!r} cannot be loaded: {str(error).splitlines()[0]}",
            hint="Set tokenizer.path to the tokenizer's directory.",
        ) from None
    return str(directory)


def python_path_with_this_package(python_path: str | None) -> str:
    """A PYTHONPATH with which a child imports this very package, installed or not."""
    here = str(Path(__file__).resolve().parents[2])
    entries: Sequence[str] = [entry for entry in (python_path or "").split(os.pathsep) if entry]
    if here in entries or here in {str(Path(entry).resolve()) for entry in sys.path if "site-packages" in entry}:
        return os.pathsep.join(entries)
    return os.pathsep.join([here, *entries])
