"""The rules that a JSON Schema cannot state: fields that must fit each other, and texts with a meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import quoted
from ais_bench_prefix_cache.foundation.strict_json import FieldPath
from ais_bench_prefix_cache.scenario.findings import FieldFindings, value_at

LONGEST_RUN_ID_BYTES = 180
API_KEY_PHRASE = "visible ASCII characters without spaces"
URL_FIELDS = ("inference_url", "metrics_url", "reset_url", "router_url")


class CheckedFields:
    """A document with defaults, seen through its problems: a field that has one, or lacks, is None."""

    def __init__(self, document: Mapping[str, Any], findings: FieldFindings) -> None:
        self.document = document
        self.findings = findings

    def get(self, *path: str | int) -> Any:
        """The value at ``path`` where it, what is in it and what it is in are sound."""
        if not self.findings.sound(path):
            return None
        try:
            return value_at(self.document, path)
        except (LookupError, TypeError):
            return None

    def keys(self, *path: str | int) -> list[str]:
        """The keys of the object at ``path``, sound or not."""
        try:
            value = value_at(self.document, path)
        except (LookupError, TypeError):
            return []
        return list(value) if isinstance(value, dict) else []


def check_names(fields: CheckedFields) -> None:
    """``run_id`` and the two ``abbr`` become parts of file names."""
    for path in (("run", "run_id"), ("aisbench", "dataset", "abbr"), ("aisbench", "model", "abbr")):
        name = fields.get(*path)
        if name is not None and len(name.encode("utf-8")) > LONGEST_RUN_ID_BYTES:
            fields.findings.report(
                path,
                Code.WRONG_SIZE,
                f"the name has {len(name.encode('utf-8'))} bytes in UTF-8",
                allowed=f"at most {LONGEST_RUN_ID_BYTES} bytes, so that file names made from it stay legal",
            )


def check_minimum_non_shared_length(fields: CheckedFields) -> int | None:
    """Tokens of each request that are never shared: as configured, or the seed's; None where that is unknown."""
    block_size = fields.get("tokenizer", "block_size")
    seed_blocks = fields.get("prefix_cache", "seed_blocks")
    path: FieldPath = ("prefix_cache", "minimum_non_shared_length")
    configured = fields.get(*path)
    if "minimum_non_shared_length" in fields.keys("prefix_cache") and configured is None:
        return None
    if block_size is None or seed_blocks is None:
        return None
    seed_tokens: int = seed_blocks * block_size
    if configured is None:
        return seed_tokens
    if configured < seed_tokens:
        fields.findings.report(
            path,
            Code.OUT_OF_RANGE,
            f"{configured} is less than the seed's {seed_tokens} tokens "
            f"(seed_blocks {seed_blocks} × block_size {block_size})",
            allowed=f"{seed_tokens} or more",
        )
        return None
    return int(configured)


def check_group_weights(fields: CheckedFields, groups: FieldPath = ("prefix_cache", "groups")) -> None:
    """One weight per group, not all 0."""
    count = fields.get(*groups, "count")
    path: FieldPath = (*groups, "assignment", "weights")
    # The whole rule must be sound: with an unknown mode the schema says nothing about the weights.
    weights = (fields.get(*groups, "assignment") or {}).get("weights")
    if weights is not None:
        if count is not None and len(weights) != count:
            fields.findings.report(
                path, Code.COUNT_MISMATCH, f"{_number(len(weights), 'weight')} for {_number(count, 'group')}"
            )
        if not any(weights):
            fields.findings.report(path, Code.OUT_OF_RANGE, "all weights are 0", allowed="at least one above 0")


def check_override_groups(fields: CheckedFields) -> None:
    """Overrides only for groups that exist."""
    groups: FieldPath = ("prefix_cache", "groups")
    count = fields.get(*groups, "count")
    for key in fields.keys(*groups, "overrides"):
        group = override_group(key)
        if count is not None and group is not None and group >= count:
            ids = '"group-0"' if count == 1 else f'"group-0" to "group-{count - 1}"'
            fields.findings.report(
                (*groups, "overrides", key),
                Code.UNKNOWN_GROUP,
                f"there is no such group: prefix_cache.groups.count is {count}",
                allowed=ids,
            )


def override_group(key: str) -> int | None:
    """The number of a group id; None for a text that is not one."""
    match = re.fullmatch(r"group-(0|[1-9][0-9]{0,4})", key)
    return int(match[1]) if match else None


def check_service(fields: CheckedFields) -> None:
    """URLs, lists of URLs, engine labels, and a key that an HTTP header can carry."""
    dp_size = fields.get("service", "dp_size")
    for field in URL_FIELDS:
        value = fields.get("service", field)
        if isinstance(value, str) and not (field == "reset_url" and value == ""):
            _check_url(("service", field), value, fields.findings)
        elif isinstance(value, list):
            for n, url in enumerate(value):
                _check_url(("service", field, n), url, fields.findings)
            if dp_size is not None and dp_size % len(value):
                fields.findings.report(
                    ("service", field),
                    Code.COUNT_MISMATCH,
                    f"{len(value)} URLs for {_number(dp_size, 'rank')}",
                    allowed="one URL for all ranks, one per rank, or one for every so many: a number that divides "
                    f"service.dp_size, {dp_size}",
                )
            for n, url in enumerate(value):
                if url in value[:n] and field != "reset_url":
                    fields.findings.report(
                        ("service", field, n),
                        Code.DUPLICATE_KEY,
                        "the URL stands in the list already",
                        hint="one URL that reaches several ranks is written once: X-data-parallel-rank chooses among "
                        "the service.dp_size / URLs ranks behind each",
                    )
    _check_engine_labels(fields, dp_size)
    api_key = fields.get("service", "api_key")
    if api_key and not usable_api_key(api_key):
        fields.findings.report(
            ("service", "api_key"), Code.WRONG_TEXT, "the key cannot be sent in an HTTP header", allowed=API_KEY_PHRASE
        )


def check_multimodal(fields: CheckedFields) -> None:
    """What image data sets need: fixed lengths, a chat endpoint, a directory of Parquet files."""
    for kind in ("input_length", "output_length"):
        mode = fields.get("requests", kind, "mode")
        if mode is not None and mode != "fixed":
            fields.findings.report(
                ("requests", kind, "mode"),
                Code.NOT_ALLOWED,
                f"requests with images have a fixed length, not {quoted(mode)}",
                allowed='"fixed"',
            )
    _check_inference_path(fields, "/v1/chat/completions", "images are sent to chat completions")
    directory: FieldPath = ("multimodal", "mmmu_parquet_dir")
    if fields.findings.sound(directory) and fields.get(*directory) is None:
        fields.findings.report(
            directory, Code.MISSING_KEY, "--mode mm needs it", allowed="the directory of the MMMU Parquet files"
        )


def check_conversation(fields: CheckedFields) -> None:
    """What conversations need: their section, and the endpoint of their form."""
    if fields.findings.sound(("conversation",)) and fields.get("conversation") is None:
        allowed = "a section; {} for its defaults"
        fields.findings.report(("conversation",), Code.MISSING_KEY, "--mode conversation needs it", allowed=allowed)
    urls = fields.get("service", "inference_url")
    free = fields.get("conversation", "routing") == "free"
    if free and isinstance(urls, list) and len(urls) > 1 and fields.get("service", "router_url") is None:
        fields.findings.report(
            ("conversation", "routing"),
            Code.NOT_ALLOWED,
            f"with {len(urls)} URLs in service.inference_url and no service.router_url it would be this program that "
            "chooses",
            allowed="sticky or round_robin; or free with one inference_url or a router_url",
        )
    form = fields.get("conversation", "form")
    if form == "text" and fields.get("conversation", "answers") == "generated":
        fields.findings.report(
            ("conversation", "answers"),
            Code.NOT_ALLOWED,
            "text that was generated is encoded otherwise when it comes back, so that no hits are known",
            allowed='"scripted"; or form "token_ids", or "chat", which measures the loss',
        )
    if form == "chat":
        if fields.get("conversation", "routing") == "round_robin":
            message = "what a message's history loses is told by the turn before it, which another rank has"
            allowed = '"sticky" or "free" with form "chat"'
            fields.findings.report(("conversation", "routing"), Code.NOT_ALLOWED, message, allowed=allowed)
        _check_inference_path(fields, "/v1/chat/completions", 'form "chat" is sent to chat completions')
    else:
        check_completions_url(fields)


def check_completions_url(fields: CheckedFields) -> None:
    """Text is sent to completions: with a chat template around them, prompts would not have their planned tokens."""
    _check_inference_path(fields, "/completions", "text is sent to completions", but_not="/chat/completions")


def _check_inference_path(fields: CheckedFields, end: str, reason: str, *, but_not: str | None = None) -> None:
    for field in ("inference_url", "router_url"):
        urls = fields.get("service", field)
        for place, url in [((), urls)] if isinstance(urls, str) else [((n,), url) for n, url in enumerate(urls or ())]:
            at = ("service", field, *place)
            path = urlsplit(url).path.rstrip("/") if fields.findings.sound(at) else end
            if not path.endswith(end) or (but_not and path.endswith(but_not)):
                full = end if end.startswith("/v1") else f"/v1{end}"
                hint = f"Add {full.removeprefix(path)} to it." if path in ("", "/v1") else None
                fields.findings.report(at, Code.WRONG_URL, reason, allowed=f'a URL that ends with "{full}"', hint=hint)


def usable_api_key(api_key: str) -> bool:
    """Whether an HTTP header can carry the key."""
    return all("!" <= character <= "~" for character in api_key)


def _check_engine_labels(fields: CheckedFields, dp_size: int | None) -> None:
    ranks: dict[int, str] = {}
    for label in fields.keys("service", "engine_label_map"):
        path: FieldPath = ("service", "engine_label_map", label)
        rank = fields.get(*path)
        if rank is None:
            continue
        if dp_size is not None and rank >= dp_size:
            fields.findings.report(
                path,
                Code.OUT_OF_RANGE,
                f"there is no rank {rank}: service.dp_size is {dp_size}",
                allowed=f"an integer from 0 up to {dp_size - 1}",
            )
        elif rank in ranks:
            fields.findings.report(path, Code.DUPLICATE_KEY, f"rank {rank} already has the label {quoted(ranks[rank])}")
        else:
            ranks[rank] = label


_URL_EXAMPLES: Mapping[Any, str] = {
    "inference_url": "http://127.0.0.1:8000/v1/completions",
    "router_url": "http://127.0.0.1:8000/v1/completions",
    "metrics_url": "http://127.0.0.1:8000/metrics",
    "reset_url": "http://127.0.0.1:8000/reset_prefix_cache",
}


def _check_url(path: FieldPath, url: str, findings: FieldFindings) -> None:
    # The URL is not shown: it may hold a password.
    allowed = f'http:// or https:// and a host, as in "{_URL_EXAMPLES[path[1]]}"'
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        findings.report(path, Code.WRONG_URL, f"this is not a URL: {error}", allowed=allowed)
        return
    if not url.isascii() or any(character.isspace() for character in url):
        findings.report(path, Code.WRONG_URL, "the URL holds a space or a character beyond ASCII", allowed=allowed)
    elif parts.scheme not in ("http", "https"):
        findings.report(path, Code.WRONG_URL, "the URL does not begin with http:// or https://", allowed=allowed)
    elif not host:
        findings.report(path, Code.WRONG_URL, "the URL names no host", allowed=allowed)
    elif "@" in parts.netloc:
        findings.report(
            path,
            Code.WRONG_URL,
            "the URL holds a user name or password, and URLs are written into the artifacts",
            hint="use service.api_key",
        )


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
