"""Everything that can be known before a request is sent that counts.

All failed checks come at once, each with what to change. What the server does not tell is a note, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ais_bench_prefix_cache.counters.names import ServerFamily
from ais_bench_prefix_cache.counters.reader import CacheConfig
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError, Problem, ServiceError
from ais_bench_prefix_cache.service.client import ServedModel, ServiceClient
from ais_bench_prefix_cache.service.readings import EngineId

PROBE_IMAGE_URL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAAAAACPAi4CAAAANElEQVR42u3MMREAIAwEMArFv2"
    "Lu6oDl10RAaq9MnzS4adACgUAgEAgEAoFAIBAIfuqFwQB9LgLy4CuODgAAAABJRU5ErkJggg=="
)
"""A grey gradient of 64×64 pixels: enough for the patches of every model known, and a moment's work."""


@dataclass(frozen=True)
class SamplePrompt:
    """One prompt of a group, and how many tokens ``prepare`` counted in it."""

    group_id: str
    prompt: str
    input_tokens: int


@dataclass(frozen=True)
class Workload:
    """What the data set asks of a server. ``longest_request_tokens`` is the largest input + output of one request."""

    mode: str
    block_size: int
    longest_request_tokens: int
    canonical_prefix_tokens: Mapping[str, int]
    samples: tuple[SamplePrompt, ...]


@dataclass
class Preflight:
    """What was found out. ``facts`` is JSON-ready (``runtime.precheck``)."""

    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def check_inference(client: ServiceClient, workload: Workload, encode: Callable[[str], Sequence[int]]) -> Preflight:
    """Every entry point answers, serves the model, takes the longest request and tokenizes as ``encode`` does.

    ``encode`` is called only where a server offers ``/tokenize``. Raises ServiceError with all problems.
    """
    result = Preflight()
    problems: list[Problem] = []
    for position, base_url in enumerate(client.base_urls):
        try:
            models = client.models(position)
        except PrefixCacheError as error:
            problems.extend(error.problems)
            continue
        if models is None:
            result.notes.append(
                f"{base_url}/v1/models is not offered, as behind some gateways: whether the model is served and the "
                "longest request fits is not checked"
            )
        else:
            problems.extend(_model_problems(client, base_url, models, workload, result))
        # A model that is not there cannot be asked for its tokens.
        if models is None or any(model.name == client.config.model for model in models):
            problems.extend(_tokenizer_problems(client, position, workload, encode, result))
        version = client.version(position)
        if version is not None:
            result.facts.setdefault("versions", {})[base_url] = version
    problems.extend(_request_field_problems(client))
    if problems:
        raise ServiceError(problems)
    return result


def check_images(client: ServiceClient, images: int) -> Preflight:
    """Every entry point takes a chat request with so many (small) images. Raises ServiceError with all problems."""
    content: list[dict[str, Any]] = [
        *[{"type": "image_url", "image_url": {"url": PROBE_IMAGE_URL}}] * images,
        {"type": "text", "text": "What is this?"},
    ]
    result = Preflight()
    problems: list[Problem] = []
    for position, base_url in enumerate(client.base_urls):
        try:
            completion = client.chat(content, position)
        except ServiceError as error:
            problems.extend(_image_problem(client.chat_url(position), images, problem) for problem in error.problems)
        else:
            result.facts.setdefault("image_probe_prompt_tokens", {})[base_url] = completion.prompt_tokens
    if problems:
        raise ServiceError(problems)
    return result


def _image_problem(where: str, images: int, problem: Problem) -> Problem:
    """A refusal says that images are the reason; a server that cannot be reached at all is something else."""
    if problem.code not in (Code.HTTP_STATUS, Code.SERVER_ERROR, Code.NOT_FOUND):
        return problem
    what = "one small image" if images == 1 else f"{images} small images"
    return Problem(
        Code.IMAGES_NOT_TAKEN,
        where,
        f"the server does not take a request with {what}: it {problem.message}",
        hint="Serve a vision-language model (service.model) that allows so many images in a request (vLLM: "
        "--limit-mm-per-prompt), on chat completions.",
    )


def check_engines(
    client: ServiceClient, workload: Workload, engines: Mapping[EngineId, CacheConfig], family: ServerFamily = "vllm"
) -> Preflight:
    """The engines behind ``/metrics`` (at least one): their number, block size, whether they cache, and their capacity.

    Raises ServiceError with all problems.
    """
    config = client.config
    where = ", ".join(config.metrics_urls)
    result = Preflight()
    problems: list[Problem] = []
    shown = ", ".join(str(engine) for engine in sorted(engines))
    result.facts["engines"] = {
        str(engine): {
            "block_size": facts.block_size,
            "prefix_caching": facts.prefix_caching,
            "capacity_tokens": facts.kv_cache_size_tokens,
        }
        for engine, facts in sorted(engines.items())
    }
    if len(engines) != config.dp_size:
        # Some servers publish an engine only after its first request: too few is for the probes to judge.
        text = f"shows {len(engines)} engines ({shown}), service.dp_size is {config.dp_size}"
        if len(engines) > config.dp_size:
            problems.append(
                Problem(
                    Code.ENGINE_COUNT,
                    where,
                    text,
                    hint=f"Set service.dp_size to {len(engines)} and prepare again, or name only this server's "
                    "metrics URLs.",
                )
            )
        else:
            result.notes.append(f"{where} {text}; the probes will tell whether the others exist")
    for engine, facts in sorted(engines.items()):
        problems.extend(_engine_problems(where, engine, facts, workload, family))
        if facts.block_size not in (None, workload.block_size):
            # A label is a word; the probes measure.
            result.notes.append(
                f"{engine} says that it caches in blocks of {facts.block_size} tokens, tokenizer.block_size is "
                f"{workload.block_size}; the probes will tell which of them holds"
            )
    for name, known in (
        ("block size", [facts.block_size for facts in engines.values()]),
        ("cache capacity", [facts.kv_cache_size_tokens for facts in engines.values()]),
    ):
        if all(value is None for value in known):
            result.notes.append(f"the server does not tell its {name}: not checked before the probes")
    if problems:
        raise ServiceError(problems)
    return result


def _model_problems(
    client: ServiceClient, base_url: str, models: Iterable[ServedModel], workload: Workload, result: Preflight
) -> list[Problem]:
    where = f"{base_url}/v1/models"
    by_name = {model.name: model for model in models}
    served = by_name.get(client.config.model)
    if served is None:
        names = client.quote(", ".join(sorted(by_name))) or "none"
        return [
            Problem(
                Code.MODEL_NOT_SERVED,
                where,
                f"the model {client.config.model!r} is not served",
                allowed=names,
                hint="Set service.model to one of them.",
            )
        ]
    result.facts.setdefault("max_model_len", {})[base_url] = served.max_model_len
    if served.max_model_len is None:
        result.notes.append(f"{where} does not tell max_model_len: whether the longest request fits is not checked")
    elif workload.longest_request_tokens > served.max_model_len:
        return [_too_long(where, workload, "max_model_len", served.max_model_len, "--max-model-len")]
    return []


def _too_long(where: str, workload: Workload, name: str, longest: int, option: str) -> Problem:
    return Problem(
        Code.MODEL_LENGTH,
        where,
        f"the longest request needs {workload.longest_request_tokens} tokens (input and output), {name} is {longest}",
        hint=f"Shorten requests.input_length or output_length and prepare again, or raise {option}.",
    )


def _tokenizer_problems(
    client: ServiceClient,
    position: int,
    workload: Workload,
    encode: Callable[[str], Sequence[int]],
    result: Preflight,
) -> list[Problem]:
    where = f"{client.base_urls[position]}/tokenize"
    problems = []
    for sample in workload.samples:
        try:
            theirs = client.tokenize(sample.prompt, position)
        except PrefixCacheError as error:
            return list(error.problems)
        if theirs is None:
            result.notes.append(f"{where} is not offered: the server's tokenizer is compared by token counts only")
            return []
        problem = tokenizer_difference(where, sample.group_id, tuple(encode(sample.prompt)), theirs)
        if problem is not None:
            problems.append(problem)
    result.facts.setdefault("tokenized_alike", {})[client.base_urls[position]] = len(workload.samples) - len(problems)
    # One wrong tokenizer differs for every group: the first says it all.
    return problems[:1]


def tokenizer_difference(where: str, group_id: str, ours: tuple[int, ...], theirs: tuple[int, ...]) -> Problem | None:
    """How two encodings of one prompt differ; None where they are equal."""
    if ours == theirs:
        return None
    if theirs[1:] == ours or ours[1:] == theirs:
        who, token, setting = ("our tokenizer", ours[0], "false")
        if len(theirs) > len(ours):
            who, token, setting = ("the server", theirs[0], "true")
        return Problem(
            Code.TOKENIZER_BOS,
            where,
            f"{who} puts the special token {token} before the prompt of {group_id}, the other side does not "
            f"({len(theirs)} tokens there, {len(ours)} here)",
            hint=f"Set tokenizer.add_special_tokens to {setting} and prepare again; or, where the server has other "
            "tokenizer files, use those as tokenizer.path.",
        )
    position = next(
        (index for index, (our, their) in enumerate(zip(ours, theirs, strict=False)) if our != their),
        min(len(ours), len(theirs)),
    )
    our = str(ours[position]) if position < len(ours) else "the end"
    their = str(theirs[position]) if position < len(theirs) else "the end"
    return Problem(
        Code.TOKENIZER_DIFFERS,
        where,
        f"the server encodes the prompt of {group_id} otherwise from token {position} on: {their} there, {our} here "
        f"({len(theirs)} tokens there, {len(ours)} here)",
        hint="Use the server's own tokenizer files as tokenizer.path and prepare again.",
    )


def _request_field_problems(client: ServiceClient) -> list[Problem]:
    problems = []
    for name, reason in (
        ("prompt_logprobs", "vLLM bypasses the prefix cache for it and counts nothing"),
        ("echo", "with logprobs vLLM bypasses the prefix cache for it and counts nothing"),
    ):
        if client.generation_kwargs.get(name):
            problems.append(
                Problem(
                    Code.REQUEST_FIELD,
                    f"aisbench.model.generation_kwargs.{name}",
                    f"makes the theory impossible: {reason}",
                    hint="Leave it out.",
                )
            )
    for name in ("n", "best_of"):
        value = client.generation_kwargs.get(name)
        if isinstance(value, int) and value > 1:
            problems.append(
                Problem(
                    Code.REQUEST_FIELD,
                    f"aisbench.model.generation_kwargs.{name}",
                    f"is {value}: the server counts every prompt {value} times",
                    allowed="1",
                )
            )
    return problems


_MORE_MEMORY = {
    "vllm": "--gpu-memory-utilization, --num-gpu-blocks-override",
    "sglang": "--mem-fraction-static, --max-total-tokens",
}


def _engine_problems(
    where: str, engine: EngineId, facts: CacheConfig, workload: Workload, family: ServerFamily
) -> list[Problem]:
    problems = []
    if facts.prefix_caching is False:
        problems.append(
            Problem(
                Code.PREFIX_CACHING_OFF,
                where,
                f"{engine} says that prefix caching is off",
                hint="Start the server with --enable-prefix-caching.",
            )
        )
    if facts.context_tokens is not None and workload.longest_request_tokens > facts.context_tokens:
        problems.append(_too_long(where, workload, "context_len", facts.context_tokens, "--context-length"))
    if facts.kv_cache_size_tokens is not None:
        needed = workload.longest_request_tokens
        what = "the longest request"
        if workload.mode == "warmup":
            needed += sum(workload.canonical_prefix_tokens.values())
            what = f"the canonical prefixes of {len(workload.canonical_prefix_tokens)} groups and the longest request"
        if family == "sglang" and (facts.block_size or 1) > 1:
            # A prompt makes room for its own tokens and a page more.
            needed += facts.block_size or 0
            what += " and a page more"
        if needed > facts.kv_cache_size_tokens:
            more = f" ({_MORE_MEMORY[family]})" if family in _MORE_MEMORY else ""
            problems.append(
                Problem(
                    Code.CACHE_TOO_SMALL,
                    where,
                    f"{engine} holds {facts.kv_cache_size_tokens} tokens, but {needed} are needed for {what}",
                    hint=f"Give the server more KV memory{more}, or use "
                    "fewer groups or shorter inputs and prepare again.",
                )
            )
    return problems
