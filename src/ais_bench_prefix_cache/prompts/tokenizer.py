"""The tokenizer of the model under test, exactly as ``/v1/completions`` uses it.

vLLM encodes the text of a completion request with the tokenizer that ``AutoTokenizer`` loads and
``add_special_tokens=True``. :class:`PromptTokenizer` does the same; its batch path goes straight to the Rust backend
where that is known to give the same ids.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.errors import GenerationError

if TYPE_CHECKING:
    from ais_bench_prefix_cache.prompts.join_proof import JoinProof
    from ais_bench_prefix_cache.scenario.model import TokenizerConfig

PROBE_TEXTS = (
    "a",
    "Natalia sold 48 clips, didn't she?  She’ll pay €3.50 (each).",
    "def f(x):\n\treturn x**2 # naïve ﬁ\r\n",
    "天地玄黄,宇宙洪荒。 日月盈昃 👩‍👩‍👧‍👦 🇨🇳 e\u0301",
)
"""Texts on which the batch path must agree with the tokenizer's own ``encode`` before it is used."""


class PromptTokenizer:
    """A loaded tokenizer.

    ``prefix_ids`` and ``suffix_ids`` are the special tokens that encoding adds before and after every text (BOS, EOS).
    ``backend`` is the Rust tokenizer, or None where ids come from Python code that the backend cannot stand for.
    """

    def __init__(self, tokenizer: Any, *, path: str, revision: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._path = path
        self._revision = revision
        self.backend: Any | None = _trusted_backend(tokenizer)
        self.prefix_ids, self.suffix_ids = self._added_special_ids()

    @cached_property
    def join_proof(self) -> JoinProof:
        """Whether words joined by single spaces provably encode independently."""
        from ais_bench_prefix_cache.prompts.join_proof import prove_joins

        return prove_joins(self.backend)

    @property
    def class_name(self) -> str:
        return type(self._tokenizer).__name__

    def encode(self, text: str) -> list[int]:
        """The ids of the whole text with the special tokens that the endpoint adds."""
        return list(self._tokenizer.encode(text, add_special_tokens=True, truncation=False, padding=False))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """:meth:`encode` of each text; on the Rust backend all cores work side by side."""
        if self.backend is None:
            return [self.encode(text) for text in texts]
        return [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts), add_special_tokens=True)]

    def encode_plain_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Like :meth:`encode_batch`, without the special tokens."""
        if self.backend is None:
            return [
                list(self._tokenizer.encode(text, add_special_tokens=False, truncation=False, padding=False))
                for text in texts
            ]
        return [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def normalize(self, text: str) -> str:
        """The text as the model of the tokenizer sees it, where the backend has a normalizer."""
        if self.backend is None or self.backend.normalizer is None:
            return text
        return str(self.backend.normalizer.normalize_str(text))

    def normalizer_adds_spaces(self) -> bool:
        """Whether the normalizer puts spaces around characters inside a word (BERT does, around Chinese ones)."""
        if self.backend is None or self.backend.normalizer is None:
            return False
        return "BertNormalizer" in repr(self.backend.normalizer)

    def added_token_texts(self) -> list[str]:
        """The literal texts of all added tokens, special or not: their occurrence in a prompt would be one token."""
        return sorted({str(token) for token in self._tokenizer.added_tokens_decoder.values()})

    def vocabulary(self) -> dict[str, int]:
        """Token string → id, without added tokens where the backend can tell them apart.

        A tokenizer in Python may name its tokens by bytes (``tiktoken`` does): those that are UTF-8 are given as text.
        """
        if self.backend is not None:
            return dict(self.backend.get_vocab(with_added_tokens=False))
        texts = ((_token_text(token), int(number)) for token, number in self._tokenizer.get_vocab().items())
        return {text: number for text, number in texts if text is not None}

    def identity(self) -> dict[str, Any]:
        """The manifest's ``tokenizer`` entry without ``block_size``.

        ``fingerprint_sha256`` digests everything that decides ids: the serialized backend (or vocabulary, merges, code
        and settings of a Python tokenizer), the special tokens and the class. It depends on neither path nor machine.
        """
        special_token_ids = sorted({int(token_id) for token_id in self._tokenizer.all_special_ids})
        class_name = type(self._tokenizer).__name__
        content = {
            "class": class_name.removesuffix("Fast"),
            "special_token_ids": special_token_ids,
            "prefix_ids": self.prefix_ids,
            "suffix_ids": self.suffix_ids,
            "split_special_tokens": bool(getattr(self._tokenizer, "split_special_tokens", False)),
            "content_sha256": self._content_sha256(),
        }
        return {
            "path": self._path,
            "revision": self._revision,
            "class": class_name,
            "vocab_size": len(self._tokenizer),
            "special_token_ids": special_token_ids,
            "fingerprint_sha256": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        }

    def _content_sha256(self) -> str:
        digest = hashlib.sha256()
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None:
            digest.update(backend.to_str().encode())
        if self.backend is None:
            digest.update(json.dumps(_python_tokenizer_content(self._tokenizer), sort_keys=True).encode())
            digest.update(json.dumps([self.encode(text) for text in PROBE_TEXTS]).encode())
        return digest.hexdigest()

    def _added_special_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What encoding puts before and after the plain ids; the same for every probe text."""
        found: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        for whole, plain in zip(self.encode_batch(PROBE_TEXTS), self.encode_plain_batch(PROBE_TEXTS), strict=True):
            starts = [i for i in range(len(whole) - len(plain) + 1) if whole[i : i + len(plain)] == plain]
            if len(starts) != 1:
                # Plain ids such as one repeated token fit in several places, or in none.
                found.add(((-1,), (len(whole) - len(plain),))) if not starts else None
                continue
            found.add((tuple(whole[: starts[0]]), tuple(whole[starts[0] + len(plain) :])))
        if len(found) == 1:
            ((prefix, suffix),) = found
            if prefix != (-1,):
                return prefix, suffix
        raise GenerationError.of(
            "TOKENIZER_SPECIAL_TOKENS",
            "scenario: tokenizer.path",
            f"the tokenizer {self._path!r} does not add the same special tokens before and after every text, so no "
            "prompt length can be guaranteed",
        )


def load_tokenizer(config: TokenizerConfig) -> PromptTokenizer:
    """Load a tokenizer with ``AutoTokenizer``, quietly, and from disk alone where ``path`` is a directory.

    Raises :class:`GenerationError`: missing or unusable path, no network, remote code that was not allowed, a missing
    package, a tokenizer whose ids are random.
    """
    local = Path(config.path).is_dir()
    if not local:
        _refuse_missing_path(config.path)
    with _quiet(), _torch_hidden(unless=config.trust_remote_code):
        try:
            from transformers import AutoTokenizer
        except ImportError as error:  # pragma: no cover - transformers is a base dependency
            raise _load_error(config, "TOKENIZER_PACKAGE_MISSING", "transformers cannot be imported", error) from error
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                config.path,
                revision=config.revision or "main",
                trust_remote_code=config.trust_remote_code,
                local_files_only=local,
            )
        except Exception as error:  # AutoTokenizer lets through whatever its many loaders raise.
            raise _explain_load_failure(config, error, local) from error
    if tokenizer is None or not callable(getattr(tokenizer, "encode", None)):
        raise _load_error(config, "TOKENIZER_NOT_FOUND", "holds no tokenizer that AutoTokenizer can load", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and getattr(backend.model, "dropout", None):
        raise _load_error(
            config, "TOKENIZER_RANDOM", "uses BPE dropout, so the same text is encoded differently each time", None
        )
    with _quiet():
        try:
            return PromptTokenizer(tokenizer, path=config.path, revision=config.revision)
        except GenerationError:
            raise
        except Exception as error:  # A custom tokenizer's own code may fail in any way.
            raise _load_error(config, "TOKENIZER_NOT_USABLE", "cannot encode text", error) from error


def _trusted_backend(tokenizer: Any) -> Any | None:
    """The Rust backend, if encoding through it is the same as encoding through the tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not getattr(tokenizer, "is_fast", False):
        return None
    for method in ("encode", "__call__", "_call_one", "_encode_plus", "_batch_encode_plus"):
        function = getattr(type(tokenizer), method, None)
        if function is not None and not function.__module__.startswith("transformers."):
            return None
    # The endpoint neither truncates nor pads, whatever tokenizer.json says.
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    for text in PROBE_TEXTS:
        if backend.encode(text, add_special_tokens=True).ids != list(tokenizer.encode(text, add_special_tokens=True)):
            return None
    return backend


def _token_text(token: str | bytes) -> str | None:
    """A token of a Python tokenizer's vocabulary as text; None for bytes that are no whole characters."""
    if isinstance(token, bytes):
        try:
            return token.decode("utf-8")
        except UnicodeDecodeError:
            return None
    return str(token)


def _python_tokenizer_content(tokenizer: Any) -> dict[str, Any]:
    """What decides the ids of a tokenizer written in Python, as far as it can be seen from outside."""
    kind = type(tokenizer)
    content: dict[str, Any] = {"vocabulary": sorted((str(k), int(v)) for k, v in tokenizer.get_vocab().items())}
    with contextlib.suppress(OSError, TypeError):
        if not kind.__module__.startswith("transformers."):
            content["code"] = inspect.getsource(kind)
    ranks = getattr(tokenizer, "bpe_ranks", None)
    if isinstance(ranks, dict):
        content["merges"] = sorted((str(pair), int(rank)) for pair, rank in ranks.items())
    for name in ("do_lower_case", "do_basic_tokenize", "add_bos_token", "add_eos_token", "legacy", "add_prefix_space"):
        value = getattr(tokenizer, name, None)
        if isinstance(value, (bool, int, str)):
            content[name] = value
    sentencepiece: Any = getattr(tokenizer, "sp_model", None)
    if hasattr(sentencepiece, "serialized_model_proto"):
        content["sentencepiece"] = hashlib.sha256(sentencepiece.serialized_model_proto()).hexdigest()
    return content


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' advice, progress bars and prints off stdout, which carries one JSON document."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _torch_hidden(*, unless: bool) -> Iterator[None]:
    """Let transformers believe that PyTorch is not installed: importing it takes seconds, and tokenizers need it not.

    ``unless`` there is code from a model's repository to run, which may want it. A process that has imported either of
    the two has decided already.
    """
    if unless or "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    hidden: dict[str, Any] = {"torch": None}  # what makes `import torch` fail and `find_spec` find nothing
    sys.modules.update(hidden)
    try:
        yield
    finally:
        if sys.modules.get("torch", "") is None:
            del sys.modules["torch"]


def _load_error(
    config: TokenizerConfig, code: str, what: str, error: BaseException | None, *, hint: str | None = None
) -> GenerationError:
    detail = ""
    if error is not None:
        first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        detail = f" ({first_line[:300]})"
    problem = GenerationError.of(code, "scenario: tokenizer.path", f"{config.path!r} {what}{detail}", hint=hint)
    assert isinstance(problem, GenerationError)
    return problem


def _refuse_missing_path(path: str) -> None:
    """A path that names no directory is a model name on the hub, unless it looks like a path."""
    where = "scenario: tokenizer.path"
    if Path(path).is_file():
        raise GenerationError.of(
            "TOKENIZER_NOT_A_DIRECTORY",
            where,
            f"{path!r} is a file",
            allowed="the directory that holds tokenizer.json or tokenizer_config.json, or a model name",
        )
    if path.startswith(("/", ".", "~")) or "\\" in path or path.count("/") > 1:
        raise GenerationError.of(
            "TOKENIZER_NOT_FOUND",
            where,
            f"the directory {path!r} does not exist",
            allowed="a directory with the tokenizer of the served model, or a model name",
        )


def _explain_load_failure(config: TokenizerConfig, error: Exception, local: bool) -> GenerationError:
    text = f"{type(error).__name__}: {error}"
    lowered = text.lower()
    if "trust_remote_code" in lowered:
        return _load_error(
            config,
            "TOKENIZER_NEEDS_REMOTE_CODE",
            "needs Python code from its repository, which was not allowed",
            None,
            hint="If you trust that code, set tokenizer.trust_remote_code to true.",
        )
    if isinstance(error, ImportError):
        return _load_error(config, "TOKENIZER_PACKAGE_MISSING", "needs a Python package that is missing", error)
    if local:
        names = {entry.name for entry in Path(config.path).iterdir()}
        if not names & {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt"}:
            return _load_error(
                config,
                "TOKENIZER_NOT_FOUND",
                "holds no tokenizer files",
                None,
                hint="Name the directory that has tokenizer.json or tokenizer_config.json in it.",
            )
        return _load_error(config, "TOKENIZER_DAMAGED", "cannot be loaded as a tokenizer", error)
    if any(word in lowered for word in ("connect", "offline", "resolve", "timed out", "timeout", "proxy", "ssl")):
        return _load_error(
            config,
            "TOKENIZER_NO_NETWORK",
            "is no directory here, and the model hub cannot be reached",
            None,
            hint="Give the path of a directory with the tokenizer's files.",
        )
    return _load_error(
        config,
        "TOKENIZER_NOT_FOUND",
        "is neither a directory here nor a model that the hub serves",
        error,
        hint="Give the path of a directory with the tokenizer's files.",
    )
