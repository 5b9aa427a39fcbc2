"""The server's own tokenizer: prompts to ids, and ids to the text that it pretends to generate."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.kvcache.block_hash import token_bytes
from ais_bench_prefix_cache.server.configuration import ServerError

OUTPUT_VOCABULARY_SIZE = 512
IMAGE_TOKENS = ("<|image_pad|>", "<|image|>", "<image>", "[IMG]")
"""What vision-language models call the token that stands for a part of an image; id 0 where there is none of them."""


class ServerTokenizer:
    """A ``transformers`` tokenizer from a local directory, used as vLLM uses it."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ServerError.of(Code.TOKENIZER_NOT_FOUND, str(path), "is not a directory with tokenizer files")
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        except Exception as error:
            raise ServerError.of(
                Code.TOKENIZER_NOT_LOADED, str(path), f"transformers cannot load it: {error}"
            ) from error
        self.vocabulary_size = len(self._tokenizer)
        self._output_pieces = self._find_output_pieces()
        vocabulary = self._tokenizer.get_vocab()
        self.longest_token = max(map(len, vocabulary), default=1)
        """Characters of the longest entry: no text has fewer tokens than its length divided by this."""
        self.image_token_id: int = next((vocabulary[name] for name in IMAGE_TOKENS if name in vocabulary), 0)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of ``text``; BOS and the like only with ``add_special_tokens``."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False))

    def render_chat(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool) -> str:
        """The text of a conversation, by the tokenizer's own chat template.

        A tokenizer without one gets the plainest: ``role: content`` lines, and ``assistant:`` where an answer is due.
        """
        if self._tokenizer.chat_template:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
                )
            )
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return text + ("assistant:" if add_generation_prompt else "")

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``."""
        return str(self._tokenizer.decode(list(token_ids)))

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """The vocabulary entries of ``token_ids``."""
        return list(self._tokenizer.convert_ids_to_tokens(list(token_ids)))

    def output_token(self, prompt_digest: int, position: int) -> int:
        """The ``position``-th token that is generated after a prompt: always the same one."""
        mixed = (prompt_digest + position * 2654435761) % 2**32
        return self._output_pieces[mixed % len(self._output_pieces)][0]

    def output_text(self, token_id: int) -> str:
        """The text of a token from :meth:`output_token`; texts of several are simply joined."""
        return self._output_text[token_id]

    def _find_output_pieces(self) -> list[tuple[int, str]]:
        """Plain words of the vocabulary whose text does not depend on what stands before them."""
        special = set(self._tokenizer.all_special_ids)
        pieces: list[tuple[int, str]] = []
        anchor = self.encode("a", add_special_tokens=False)
        anchor_text = self.decode(anchor)
        for token_id in range(self.vocabulary_size):
            if token_id in special:
                continue
            text = self.decode([*anchor, token_id])
            word = text[len(anchor_text) :]
            is_word = word[:1] == " " and word[1:].isascii() and word[1:].isalpha()
            if is_word and text.startswith(anchor_text):
                pieces.append((token_id, word))
                if len(pieces) == OUTPUT_VOCABULARY_SIZE:
                    break
        if not pieces:
            raise ServerError.of(
                Code.TOKENIZER_WITHOUT_WORDS, "tokenizer", "its vocabulary holds no plain word to answer"
            )
        self._output_text = dict(pieces)
        return pieces


def prompt_digest(token_ids: Sequence[int], choice: int) -> int:
    """A 32-bit number for a prompt and the choice's number, from which the answer follows."""
    return zlib.crc32(token_bytes([*token_ids, choice]))
