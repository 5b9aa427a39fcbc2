"""Requests of the OpenAI-compatible API: what a body must be, and the errors that vLLM 0.32 answers otherwise."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from ais_bench_prefix_cache.kvcache.block_hash import ExtraKeys, MultimodalItem
from ais_bench_prefix_cache.server.configuration import ImitatedServer
from ais_bench_prefix_cache.server.images import ImageReader, PromptImage
from ais_bench_prefix_cache.server.tokenization import ServerTokenizer

AS_LONG_AS_POSSIBLE = 2**31
DEFAULT_MAX_TOKENS = 16
"""Of ``/v1/completions``; a chat answer may fill the model's length."""
MAX_CHOICES = 1024
"""Answers to one request: prompts times ``n``."""
SHOWN_CHARACTERS = 200
"""Of a value that an error repeats."""


class ApiError(Exception):
    """An answer that is an error: its status and its body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "BadRequestError",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.headers = headers
        self.status = status
        self.kind = kind
        self.param = param

    def body(self, engine: ImitatedServer = "vllm") -> dict[str, Any]:
        """As the imitated server words it."""
        facts = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return {"object": "error", **facts} if engine == "sglang" else {"error": facts}


@dataclass(frozen=True)
class ApiContext:
    """What a server knows when it reads a request, and whose rules it follows."""

    engine: ImitatedServer
    model: str
    max_model_len: int
    tokenizer: ServerTokenizer
    image_reader: ImageReader


@dataclass(frozen=True)
class GenerationCall:
    """A checked request for completions of one or more prompts."""

    prompts: Sequence[Sequence[int]]
    max_tokens: Sequence[int]
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool
    extra_keys: ExtraKeys | None
    images: tuple[PromptImage, ...] = ()
    routed_dp_rank: int | None = None
    """SGLang's way to ask for a rank in the body."""
    return_token_ids: bool = False
    """Of the answers, and beside them those of the prompts."""


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation in token ids, and its images with the places that they take."""

    token_ids: list[int]
    images: tuple[PromptImage, ...] = ()
    items: tuple[MultimodalItem, ...] = ()


def parse_body(content: bytes, content_type: str) -> dict[str, Any]:
    """The JSON object of a request."""
    if not content:
        raise _validation_error("missing", "body", "Field required", "None")
    if "json" not in content_type:
        raise ApiError(
            400,
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            kind="Bad Request",
        )
    try:
        body = json.loads(content)
        if b"\\ud" in content or b"\\uD" in content:
            # Escapes can spell half of a surrogate pair, which is no text and cannot be encoded again.
            json.dumps(body, ensure_ascii=False).encode()
    except RecursionError:
        raise _validation_error("json_invalid", "body.0", "JSON is nested too deeply", "<dict of 0 items>") from None
    except UnicodeEncodeError:
        raise _validation_error(
            "string_unicode",
            "body",
            "Input should be a valid string, unable to parse raw data as a unicode string",
            "<dict of 0 items>",
        ) from None
    except ValueError as error:
        # Python names the position in characters; bytes that are no UTF-8 have none.
        position = error.pos if isinstance(error, json.JSONDecodeError) else 0
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "There was an error parsing the body"
        raise _validation_error(
            "json_invalid", f"body.{position}", "JSON decode error", "<dict of 0 items>", {"error": reason}
        ) from None
    if not isinstance(body, dict):
        raise _validation_error(
            "model_attributes_type",
            "body",
            "Input should be a valid dictionary or object to extract fields from",
            _shown(body),
        )
    return body


def check_model(body: Mapping[str, Any], context: ApiContext) -> None:
    """A body may leave the model out, but must not name another one; on SGLang it may."""
    asked = body.get("model")
    if asked and asked != context.model and context.engine != "sglang":
        raise ApiError(
            404,
            f"The model `{_shown(asked)}` does not exist. Valid aliases: {context.model}.",
            kind="NotFoundError",
            param="model",
        )


def parse_completion(body: Mapping[str, Any], context: ApiContext) -> GenerationCall:
    """A body of ``/v1/completions``, which knows no images."""
    n = _integer(body, "n", 1)
    max_tokens = _integer(body, "max_tokens", DEFAULT_MAX_TOKENS)
    prompt = body.get("prompt")
    if prompt == "" and context.engine == "sglang":
        raise ApiError(400, "Prompt cannot be empty")
    if prompt is None or prompt == "":
        raise ApiError(
            400, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", param="prompt"
        )
    _check_stream_options(body, context)
    check_model(body, context)
    special = body.get("add_special_tokens", True) is not False
    listed = _prompt_list(prompt)
    _check_choices(len(listed), n)
    prompts = [_encode(item, context, add_special_tokens=special) if isinstance(item, str) else item for item in listed]
    call = _generation_call(body, prompts, n, max_tokens, context)
    return replace(call, return_token_ids=body.get("return_token_ids") is True)


def parse_chat(body: Mapping[str, Any], context: ApiContext) -> GenerationCall:
    """A body of ``/v1/chat/completions``; content is text or a list of text and image parts."""
    n = _integer(body, "n", 1)
    max_tokens = _integer(body, "max_completion_tokens", _integer(body, "max_tokens", AS_LONG_AS_POSSIBLE))
    _check_choices(1, n)
    _check_stream_options(body, context)
    prompt = _chat_prompt(body, context)
    return _generation_call(body, [prompt.token_ids], n, max_tokens, context, prompt.images, prompt.items)


def parse_tokenize(body: Mapping[str, Any], context: ApiContext) -> list[int]:
    """The ids that a body of ``/tokenize``, of either form, asks for."""
    if "messages" in body:
        return _chat_prompt(body, context).token_ids
    prompt = body.get("prompt")
    if prompt is None:
        raise _validation_error("missing", "body.prompt", "Field required", _shown(body))
    if not isinstance(prompt, str):
        raise _validation_error("string_type", "body.prompt", "Input should be a valid string", _shown(prompt))
    check_model(body, context)
    return _encode(prompt, context, add_special_tokens=body.get("add_special_tokens", True) is not False)


def parse_detokenize(body: Mapping[str, Any], context: ApiContext) -> list[int]:
    """The ids of a body of ``/detokenize``."""
    tokens = body.get("tokens")
    if tokens is None:
        raise _validation_error("missing", "body.tokens", "Field required", _shown(body))
    if not isinstance(tokens, list) or not all(_is_token_id(token) for token in tokens):
        raise _validation_error("list_type", "body.tokens", "Input should be a valid list of token ids", _shown(tokens))
    check_model(body, context)
    _check_vocabulary(tokens, context.tokenizer)
    return tokens


def parse_rank(header: str | None, ranks: int) -> int | None:
    """The rank that ``X-data-parallel-rank`` asks vLLM for; what is no number is ignored."""
    try:
        rank = int(header or "")
    except ValueError:
        return None
    if not 0 <= rank < ranks:
        raise ApiError(400, f"data_parallel_rank {rank} is out of range [0, {ranks}).")
    return rank


def parse_sglang_rank(header: str | None, body_rank: int | None, ranks: int) -> int | None:
    """The rank that the header or else ``routed_dp_rank`` in the body asks SGLang for."""
    rank = body_rank
    if header is not None:
        try:
            rank = int(header)
        except ValueError:
            message = f"Invalid X-Data-Parallel-Rank header: must be an integer, got '{_shown(header)}'"
            raise ApiError(400, message, kind="400") from None
    if rank is not None and not 0 <= rank < ranks:
        raise ApiError(400, f"routed_dp_rank={rank} out of range [0, {ranks})")
    return rank


def parse_boolean_query(value: str | None, name: str) -> bool:
    """A query parameter that is true or false, and false where it is absent."""
    text = (value or "false").lower()
    if text in ("true", "1", "yes", "on", "t", "y"):
        return True
    if text in ("false", "0", "no", "off", "f", "n"):
        return False
    raise _validation_error(
        "bool_parsing", f"query.{name}", "Input should be a valid boolean, unable to interpret input", text
    )


def _check_choices(prompts: int, n: int) -> None:
    if prompts * n > MAX_CHOICES:
        raise ApiError(
            400, f"{prompts} prompts with n = {_shown(n)} ask for more than {MAX_CHOICES} answers.", param="n"
        )


def _encode(text: str, context: ApiContext, *, add_special_tokens: bool) -> list[int]:
    """Token ids of ``text``, which is not even encoded where it is too long whatever its tokens are."""
    most = context.max_model_len
    if len(text) > context.tokenizer.longest_token * most:
        raise ApiError(
            400,
            f"This model's maximum context length is {most} tokens. However, your prompt has {len(text)} characters, "
            f"which are more than {most} tokens can hold. Please reduce the length of the input prompt.",
            param="input_text",
        )
    return context.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def _check_vocabulary(token_ids: Sequence[int], tokenizer: ServerTokenizer) -> None:
    for token_id in token_ids:
        if token_id >= tokenizer.vocabulary_size:
            raise ApiError(400, f"Token id {_shown(token_id)} is out of vocabulary")


def _chat_prompt(body: Mapping[str, Any], context: ApiContext) -> ChatPrompt:
    messages = body.get("messages")
    if messages is None:
        raise _validation_error("missing", "body.messages", "Field required", _shown(body))
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise _validation_error("list_type", "body.messages", "Input should be a valid list", _shown(messages))
    check_model(body, context)
    if not messages:
        raise ApiError(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
    images: list[PromptImage] = []
    # Where an image stands is a mark that no message can hold; afterwards the text is cut there.
    mark = f"\ue000{uuid.uuid4().hex}\ue001"
    conversation = []
    for message in messages:
        role = message.get("role", "user")
        if not isinstance(role, str):
            raise _validation_error("string_type", "body.messages.role", "Input should be a valid string", _shown(role))
        content = _content_text(message.get("content"), images, mark, context)
        conversation.append({"role": role, "content": content})
    try:
        text = context.tokenizer.render_chat(
            conversation, add_generation_prompt=body.get("add_generation_prompt", True) is not False
        )
    except Exception as error:
        # Templates refuse what they do not like, orders of roles for instance, and fail on what they did not expect.
        raise ApiError(400, f"The chat template fails: {_shown(str(error))}", param="messages") from None
    pieces = text.split(mark)
    if len(pieces) != len(images) + 1:
        raise ApiError(400, "The chat template leaves images out.", param="messages")
    special = body.get("add_special_tokens", False) is True
    token_ids = _encode(pieces[0], context, add_special_tokens=special)
    items = []
    for image, piece in zip(images, pieces[1:], strict=True):
        items.append(MultimodalItem(image.identifier, len(token_ids), image.num_tokens))
        token_ids += [context.tokenizer.image_token_id] * image.num_tokens
        token_ids += _encode(piece, context, add_special_tokens=False) if piece else []
    return ChatPrompt(token_ids, tuple(images), tuple(items))


def _content_text(content: Any, images: list[PromptImage], mark: str, context: ApiContext) -> str:
    """The text of a message with ``mark`` for each image, which is added to ``images``. Texts are lines."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    text, after_text = "", False
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            line = part.get("text", "")
            if not isinstance(line, str):
                raise _validation_error(
                    "string_type", "body.messages.content.text", "Input should be a valid string", _shown(line)
                )
            text += ("\n" if after_text else "") + line
        elif kind == "image_url":
            location = part.get("image_url")
            url = location.get("url") if isinstance(location, dict) else location
            try:
                images.append(context.image_reader(url if isinstance(url, str) else ""))
            except ValueError as error:
                raise ApiError(400, f"Failed to load image: {error}", param="messages") from None
            if sum(image.num_tokens for image in images) > context.max_model_len:
                raise ApiError(400, f"The images take more than {context.max_model_len} tokens.", param="messages")
            text += mark
        else:
            raise ApiError(400, "This embedded server understands text and image_url parts only.", param="messages")
        after_text = kind == "text"
    return text


def _generation_call(
    body: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    n: int,
    max_tokens: int,
    context: ApiContext,
    images: tuple[PromptImage, ...] = (),
    items: tuple[MultimodalItem, ...] = (),
) -> GenerationCall:
    if not prompts:
        raise ApiError(400, "You must pass at least one prompt")
    limits = []
    max_model_len = context.max_model_len
    sglang = context.engine == "sglang"
    for prompt in prompts:
        if sglang and len(prompt) >= max_model_len:
            raise ApiError(
                400,
                f"The input ({len(prompt)} tokens) is longer than the model's context length ({max_model_len} tokens).",
            )
        if len(prompt) > max_model_len:
            raise ApiError(
                400,
                f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
                f"{len(prompt)} input tokens, which exceeds this limit even without any output tokens. Please reduce "
                f"the length of the input prompt. (parameter=input_tokens, value={len(prompt)})",
                param="input_tokens",
            )
        if not prompt:
            raise ApiError(400, "The decoder prompt cannot be empty")
        _check_vocabulary(prompt, context.tokenizer)
        if sglang and max_tokens != AS_LONG_AS_POSSIBLE and len(prompt) + max_tokens > max_model_len:
            raise ApiError(
                400,
                f"Requested token count exceeds the model's maximum context length of {max_model_len} tokens. You "
                f"requested a total of {_shown(len(prompt) + max_tokens)} tokens: {len(prompt)} tokens from the input "
                f"messages and {_shown(max_tokens)} tokens for the completion. Please reduce the number of tokens in "
                "the input messages or the completion to fit within the limit.",
            )
        limit = min(max_tokens, max_model_len - len(prompt))
        if limit < 1:
            raise ApiError(
                400,
                f"max_tokens must be at least 1, got {_shown(limit)}. (parameter=max_tokens, value={_shown(limit)})",
                param="max_tokens",
            )
        limits.append(limit)
    if n < 1:
        raise ApiError(400, f"n must be at least 1, got {_shown(n)}.")
    if n > 1 and body.get("temperature") == 0 and not sglang:
        raise ApiError(400, f"n must be 1 when using greedy sampling, got {n}.")
    options = body.get("stream_options") or {}
    salt = body.get("cache_salt") if isinstance(body.get("cache_salt"), str) else None
    return GenerationCall(
        prompts=prompts,
        max_tokens=limits,
        n=n,
        stream=body.get("stream") is True,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        echo=body.get("echo") is True,
        extra_keys=ExtraKeys(cache_salt=salt, multimodal_items=items) if salt or items else None,
        images=images,
        routed_dp_rank=_integer(body, "routed_dp_rank", None),
    )


def _prompt_list(prompt: Any) -> list[str | list[int]]:
    """One prompt or many, each text or ids, as a list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list):
        if not prompt:
            return []
        if all(_is_token_id(item) for item in prompt):
            return [prompt]
        if all(isinstance(item, str) for item in prompt):
            return list(prompt)
        if all(isinstance(item, list) and all(_is_token_id(token_id) for token_id in item) for item in prompt):
            return list(prompt)
    raise _validation_error(
        "prompt_type", "body.prompt", "Input should be text, token ids, or a list of either", _shown(prompt)
    )


def _is_token_id(value: Any) -> bool:
    return type(value) is int and value >= 0


def _check_stream_options(body: Mapping[str, Any], context: ApiContext) -> None:
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise _validation_error(
            "model_attributes_type",
            "body.stream_options",
            "Input should be a valid dictionary or object to extract fields from",
            _shown(options),
        )
    if options is not None and body.get("stream") is not True and context.engine != "sglang":
        raise ApiError(
            400,
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            param="stream_options",
        )


@overload
def _integer(body: Mapping[str, Any], name: str, default: int) -> int: ...
@overload
def _integer(body: Mapping[str, Any], name: str, default: None) -> int | None: ...
def _integer(body: Mapping[str, Any], name: str, default: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is int:
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise _validation_error(
                "int_parsing",
                f"body.{name}",
                "Input should be a valid integer, unable to parse string as an integer",
                _shown(value),
            ) from None
    raise _validation_error("int_type", f"body.{name}", "Input should be a valid integer", _shown(value))


def _validation_error(
    kind: str, location: str, message: str, shown: str, context: Mapping[str, str] | None = None
) -> ApiError:
    details: dict[str, Any] = {"type": kind, "loc": location, "msg": message, "input": shown}
    if context:
        details["ctx"] = dict(context)
    return ApiError(400, f"1 validation error:\n  {details}", kind="Bad Request", param=location)


def _shown(value: Any) -> str:
    """A value as an error may show it: containers by their size only, long texts and numbers by their beginning."""
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
