"""The tokenizer of the model under test, exactly as ``/v1/completions`` uses it.

vLLM encodes the text of a completion request with the tokenizer that ``AutoTokenizer`` loads and
``add_special_tokens=True``. :class:`PromptTokenizer` does the same; its batch path goes straight to the Rust backend
where that is known to give the same ids.

Which special tokens that adds is told by the post-processor of ``tokenizer.json`` and, up to transformers 4, by
``add_bos_token`` and ``add_eos_token`` of ``tokenizer_config.json``; transformers 5 ignores these, and SGLang obeys
them all the same. So a Scenario may say what its server does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.exact_text.join_proof import JoinProof, prove_joins
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.foundation.foreign_files import HEAD_BYTES, HTML_PAGE, LFS_POINTER, foreign_file

if TYPE_CHECKING:
    from ais_bench_prefix_cache.scenario.model import TokenizerConfig

PROBE_TEXTS = (
    "a",
    "Natalia sold 48 clips, didn't she?  She’ll pay €3.50 (each).",
    "def f(x):\n\treturn x**2 # naïve ﬁ\r\n",
    "天地玄黄,宇宙洪荒。 日月盈昃 👩‍👩‍👧‍👦 🇨🇳 e\u0301",
)
"""Texts on which the batch path must agree with the tokenizer's own ``encode`` before it is used."""

FINGERPRINT_TEXTS = (
    *PROBE_TEXTS,
    "tabs\t\tand\n\n\nlines\r\nend",
    "0 7 42 007 1234 12345678 3.14 1,000 x86 ½ ² ３４５ ٣٤٥ Ⅷ",
    "don't I'LL we’ve HELLO camelCaseWord snake_case UPPERlower ǅ ß İ ſ ﬁ Å K",
    "!!! ... -- == != ?! ()[]{}<>/* */ // \\ \"quoted\" `tick` ``x'' #@$%^&* +=~|",
    "日本語カタカナひらがな 한국어 ภาษาไทย العَرَبِيَّة עברית हिन्दी Ελληνικά Русский ｶﾞ",
    "e\u0301 \u00e9 \u1100\u1161\u11a8 각 a\u00a0b\u3000c\u200bd\u200de\u2060f\ufeffg\u00adh ´ …",
    "👍🏽 🏳️‍🌈 1️⃣ \U0010fffd \ue000 \u0378 \x00\x07\x1b\x7f\x85\u2028",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa hahahahahahahahahaha the the the ▁x▁ Ġy <0x0A>",
)
"""Texts whose ids, with the vocabulary, stand for all that a tokenizer does to prompts: digits, case, Unicode forms,
contractions, punctuation, many scripts, unknown characters. Spaces at the start, two together and what follows an added
token are left out: no prompt has them, and releases of transformers treat them differently."""

_VOCABULARY_FILE = re.compile(r"^(tokenizer\.json|vocab\..*|.*\.(model|tiktoken|py))$")
"""What a tokenizer's words, or the code that knows them, lie in."""


class PromptTokenizer:
    """A loaded tokenizer.

    ``prefix_ids`` and ``suffix_ids`` are the special tokens that encoding adds before and after every text (BOS, EOS).
    ``backend`` is the Rust tokenizer, or None where ids come from Python code that the backend cannot stand for.
    ``ignored_settings`` are keys of ``tokenizer_config.json`` that ask for special tokens which encoding does not add.
    """

    def __init__(
        self, tokenizer: Any, *, path: str, revision: str | None = None, ignored_settings: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._path = path
        self._revision = revision
        self.ignored_settings = tuple(ignored_settings)
        self.backend: Any | None = _trusted_backend(tokenizer)
        self.prefix_ids, self.suffix_ids = self._added_special_ids()

    def __getstate__(self) -> dict[str, Any]:
        """For another process: what the Rust backend gives, without the tokenizer that it stands for."""
        assert self.backend is not None, "a tokenizer in Python stays where it is"
        state = {name: value for name, value in vars(self).items() if name != "_tokenizer"}
        return state | {"join_proof": self.join_proof, "splits_special_tokens": self.backend.encode_special_tokens}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Its backend forgets on the way how it treats special tokens in a text."""
        splits = state.pop("splits_special_tokens")
        vars(self).update(state)
        assert self.backend is not None
        self.backend.encode_special_tokens = splits

    @cached_property
    def join_proof(self) -> JoinProof:
        """Whether words joined by single spaces provably encode independently."""
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

        ``fingerprint_sha256`` digests what decides ids, and nothing else: the model's vocabulary and merges (or
        vocabulary, merges, code and settings of a Python tokenizer), and the ids of :data:`FINGERPRINT_TEXTS` and of
        every added token after a letter. Releases of transformers name and define the same tokenizer in different
        ways; its fingerprint stays the same, as it does wherever its files lie.
        """
        return {
            "path": self._path,
            "revision": self._revision,
            "class": self.class_name,
            "vocab_size": len(self._tokenizer),
            "special_token_ids": sorted({int(token_id) for token_id in self._tokenizer.all_special_ids}),
            "fingerprint_sha256": self._fingerprint_sha256,
        }

    @cached_property
    def _fingerprint_sha256(self) -> str:
        digest = hashlib.sha256()
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None:
            digest.update(_model_content(backend.model))
        if self.backend is None:
            digest.update(json.dumps(_python_tokenizer_content(self._tokenizer), sort_keys=True).encode())
        texts = [*FINGERPRINT_TEXTS, *(f"x{token}" for token in self.added_token_texts())]
        digest.update(json.dumps(self._ids_or_none(texts)).encode())
        return digest.hexdigest()

    def _ids_or_none(self, texts: Sequence[str]) -> list[list[int] | None]:
        """The ids of each text; None where a tokenizer in Python refuses it."""
        if self.backend is not None:
            return list(self.encode_batch(texts))
        found: list[list[int] | None] = []
        for text in texts:
            try:
                found.append(self.encode(text))
            except Exception:  # Its own code may refuse a text in any way.
                found.append(None)
        return found

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
            Code.TOKENIZER_SPECIAL_TOKENS,
            "scenario: tokenizer.path",
            f"the tokenizer {self._path!r} does not add the same special tokens before and after every text, so no "
            "prompt length can be guaranteed",
        )


def load_tokenizer(config: TokenizerConfig) -> PromptTokenizer:
    """Load a tokenizer with ``AutoTokenizer``, from disk alone where ``path`` is a directory.

    Nothing else in the process changes, beyond what importing transformers does.

    Raises:
        GenerationError: missing or unusable path, no network, remote code that was not allowed, a missing package, a
            tokenizer whose ids are random.
    """
    from transformers import AutoTokenizer  # takes a second, and PyTorch with it several: only who tokenises waits

    local = Path(config.path).is_dir()
    if not local:
        _refuse_missing_path(config.path)
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
        raise _load_error(config, Code.TOKENIZER_NOT_FOUND, "holds no tokenizer that AutoTokenizer can load", None)
    _refuse_half(config, tokenizer, local)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and getattr(backend.model, "dropout", None):
        raise _load_error(
            config, Code.TOKENIZER_RANDOM, "uses BPE dropout, so the same text is encoded differently each time", None
        )
    try:
        ignored = _settle_special_tokens(tokenizer, config)
        return PromptTokenizer(tokenizer, path=config.path, revision=config.revision, ignored_settings=ignored)
    except GenerationError:
        raise
    except Exception as error:  # A custom tokenizer's own code may fail in any way.
        raise _load_error(config, Code.TOKENIZER_NOT_USABLE, "cannot encode text", error) from error


def _settle_special_tokens(tokenizer: Any, config: TokenizerConfig) -> list[str]:
    """Let ``tokenizer`` add what ``add_special_tokens`` says; the settings that are not followed all the same.

    Raises:
        GenerationError: it is written in Python, or has no BOS token to add.
    """
    plain, whole = (tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
    settings = _settings(config)
    wanted = {
        key: token_id
        for key, token_id in (("add_bos_token", tokenizer.bos_token_id), ("add_eos_token", tokenizer.eos_token_id))
        if settings.get(key) is True and token_id is not None
    }
    if config.add_special_tokens == "auto":
        return [key for key, token_id in wanted.items() if token_id not in (whole[:1] if "bos" in key else whole[-1:])]
    if config.add_special_tokens:
        if settings.get("add_bos_token") is not False:
            wanted["add_bos_token"] = tokenizer.bos_token_id
        if None in wanted.values():
            raise _load_error(
                config,
                Code.TOKENIZER_SPECIAL_TOKENS,
                "has no BOS token to add",
                None,
                hint="Leave tokenizer.add_special_tokens out, or set it to false.",
            )
    else:
        wanted = {}
    before, after = ([wanted[key]] if key in wanted else [] for key in ("add_bos_token", "add_eos_token"))
    if list(whole) == [*before, *plain, *after]:
        return []
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise _load_error(
            config,
            Code.TOKENIZER_SPECIAL_TOKENS,
            "is written in Python, which cannot be told what special tokens to add",
            None,
            hint="Leave tokenizer.add_special_tokens out.",
        )
    from tokenizers.processors import TemplateProcessing  # comes with transformers

    backend.post_processor = TemplateProcessing(
        single=[*("BOS" for _ in before), "$A", *("EOS" for _ in after)],
        special_tokens=[
            {"id": name, "ids": ids, "tokens": [tokenizer.convert_ids_to_tokens(ids[0])]}
            for name, ids in (("BOS", before), ("EOS", after))
            if ids
        ],
    )
    return []


def _settings(config: TokenizerConfig) -> dict[str, Any]:
    """``tokenizer_config.json``, of a directory or of the hub's files that loading left here; empty without one."""
    name = "tokenizer_config.json"
    if Path(config.path).is_dir():
        file: Any = Path(config.path) / name
    else:
        from huggingface_hub import try_to_load_from_cache  # comes with transformers

        file = try_to_load_from_cache(config.path, name, revision=config.revision)
    try:
        settings = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, TypeError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


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


def _model_content(model: Any) -> bytes:
    """What decides the ids that a model of the Rust backend gives: its kind, vocabulary and merges."""
    state = bytes(model.__getstate__())
    kind = type(model).__name__
    if kind == "Unigram":
        # The last digit of a score depends on how it was read.
        vocabulary = [[piece, f"{score:.9g}"] for piece, score in json.loads(state)["vocab"]]
        state = b'"vocab":' + json.dumps(vocabulary).encode()
    # What stands before the vocabulary, such as the name of the unknown token, is seen in the ids of texts.
    return f"{kind} {getattr(model, 'ignore_merges', None)}\n".encode() + state[state.index(b'"vocab":') :]


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


def _refuse_half(config: TokenizerConfig, tokenizer: Any, local: bool) -> None:
    """Of a tokenizer_config.json alone transformers makes a tokenizer that knows special tokens and nothing else."""
    try:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        # Only the backend can count without making the list.
        tokens = len(tokenizer.get_vocab()) if backend is None else backend.get_vocab_size(with_added_tokens=True)
        empty = tokens <= len(tokenizer.get_added_vocab()) + 1
    except (AttributeError, NotImplementedError):
        return  # A tokenizer by its own code, which need not have a list.
    if empty:
        raise _half(config, [path.name for path in Path(config.path).iterdir()] if local else [])


def _half(config: TokenizerConfig, files: Iterable[str]) -> GenerationError:
    """The error for a tokenizer of which there are only ``files``."""
    named = ", ".join(sorted(files)[:5])
    return _load_error(
        config,
        Code.TOKENIZER_DAMAGED,
        "holds half a tokenizer: its vocabulary is missing" + (f"; it has {named}" if named else ""),
        None,
        hint="Add the tokenizer.json of the model, or its vocab.json and merges.txt, or tokenizer.model.",
    )


def _damaged_file(files: Sequence[Path]) -> tuple[str, str] | None:
    """Which of a tokenizer's files is another file than it says, or half of one, as a predicate; and what to do."""
    for file in files:
        if not file.is_file() or file.suffix not in (".json", ".model", ".txt", ".tiktoken"):
            continue
        with file.open("rb") as stream:
            foreign = foreign_file(stream.read(HEAD_BYTES))
            # A SentencePiece model may begin with any bytes.
            if foreign is not None and (file.suffix != ".model" or foreign in (LFS_POINTER, HTML_PAGE)):
                return f"holds {foreign.what}, in place of the file {file.name}", foreign.hint
            if file.suffix == ".json":
                stream.seek(0)
                try:
                    json.loads(stream.read())
                except ValueError as error:
                    return f"holds a damaged {file.name}: it is not JSON: {error}", "Fetch the file again."
    return None


def _load_error(
    config: TokenizerConfig, code: Code, what: str, error: BaseException | None, *, hint: str | None = None
) -> GenerationError:
    detail = ""
    if error is not None:
        first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        detail = f" ({first_line[:300]})"
    return GenerationError.of(code, "scenario: tokenizer.path", f"{config.path!r} {what}{detail}", hint=hint)


def _refuse_missing_path(path: str) -> None:
    """A path that names no directory is a model name on the hub, unless it looks like a path."""
    where = "scenario: tokenizer.path"
    if Path(path).is_file():
        raise GenerationError.of(
            Code.TOKENIZER_NOT_A_DIRECTORY,
            where,
            f"{path!r} is a file",
            allowed="the directory that holds tokenizer.json or tokenizer_config.json, or a model name",
        )
    if path.startswith(("/", ".", "~")) or "\\" in path or path.count("/") > 1:
        raise GenerationError.of(
            Code.TOKENIZER_NOT_FOUND,
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
            Code.TOKENIZER_NEEDS_REMOTE_CODE,
            "needs Python code from its repository, which was not allowed",
            None,
            hint="If you trust that code, set tokenizer.trust_remote_code to true.",
        )
    if isinstance(error, ImportError):
        return _load_error(config, Code.TOKENIZER_PACKAGE_MISSING, "needs a Python package that is missing", error)
    if local:
        files = sorted(Path(config.path).iterdir())
        damaged = _damaged_file(files)
        if damaged is not None:
            return _load_error(config, Code.TOKENIZER_DAMAGED, damaged[0], None, hint=damaged[1])
        names = {file.name for file in files}
        model = next((file for file in files if file.suffix == ".model"), None)
        if model is not None and "tokenizer.json" not in names and importlib.util.find_spec("sentencepiece") is None:
            return _load_error(
                config,
                Code.TOKENIZER_PACKAGE_MISSING,
                f"has no tokenizer.json, and to read its {model.name} the package sentencepiece is missing",
                None,
                hint="Install it (`pip install sentencepiece`), or add the tokenizer.json of the model.",
            )
        if not names & {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt"}:
            return _load_error(
                config,
                Code.TOKENIZER_NOT_FOUND,
                "holds no tokenizer files",
                None,
                hint="Name the directory that has tokenizer.json or tokenizer_config.json in it.",
            )
        if not any(_VOCABULARY_FILE.search(name) for name in names):
            return _half(config, names)
        return _load_error(config, Code.TOKENIZER_DAMAGED, "cannot be loaded as a tokenizer", error)
    if any(word in lowered for word in ("connect", "offline", "resolve", "timed out", "timeout", "proxy", "ssl")):
        return _load_error(
            config,
            Code.TOKENIZER_NO_NETWORK,
            "is no directory here, and the model hub cannot be reached",
            None,
            hint="Give the path of a directory with the tokenizer's files.",
        )
    return _load_error(
        config,
        Code.TOKENIZER_NOT_FOUND,
        "is neither a directory here nor a model that the hub serves",
        error,
        hint="Give the path of a directory with the tokenizer's files.",
    )
