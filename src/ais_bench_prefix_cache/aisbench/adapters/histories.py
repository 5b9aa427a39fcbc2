"""What conversations have said so far, kept until the last turn that continues it is sent.

A history is what its form sends: token ids, a text, or messages of a chat. Imports nothing of AISBench.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Histories:
    """Of token ids. ``continuations`` says how many turns continue each row; the others' histories are not kept."""

    continuations: Mapping[int, int]
    _kept: dict[int, Any] = field(default_factory=dict)
    _turns_to_come: dict[int, int] = field(default_factory=dict)

    def prompt(self, row: Mapping[str, Any]) -> Any:
        """A row's whole prompt; None where the turn before it has no answer."""
        continues = row["continues"]
        if continues is None:
            return self._with_message(None, row)
        if continues not in self._kept:
            return None
        before = self._kept[continues]
        self._turns_to_come[continues] -= 1
        if not self._turns_to_come[continues]:
            del self._kept[continues], self._turns_to_come[continues]
        return self._with_message(before, row)

    def answered(self, row: Mapping[str, Any], prompt: Any, answer: Any) -> None:
        """The row's prompt was answered with ``answer``: ids, or a text.

        A scripted row has another answer for the history; where both begin with one token, it begins with its spare,
        so that what the server has computed ends with the prompt.
        """
        turns = self.continuations.get(row["sequence_index"], 0)
        if not turns:
            return
        said = self._script(row, answer) if row["answer_token_ids"] else answer
        self._kept[row["sequence_index"]] = self._with_answer(prompt, said)
        self._turns_to_come[row["sequence_index"]] = turns

    def _with_message(self, before: Any, row: Mapping[str, Any]) -> Any:
        return [*(before or ()), *row["token_ids"]]

    def _with_answer(self, prompt: Any, answer: Any) -> Any:
        return [*prompt, *answer]

    def _script(self, row: Mapping[str, Any], answer: Sequence[int]) -> Any:
        script = row["answer_token_ids"]
        return [row["spare_token_id"], *script[1:]] if script[0] == answer[0] else script


class TextHistories(Histories):
    """Of texts, whose parts stand behind single spaces."""

    def _with_message(self, before: Any, row: Mapping[str, Any]) -> Any:
        return " ".join(filter(None, (before, row["system_prompt"], row["question"])))

    def _with_answer(self, prompt: Any, answer: Any) -> Any:
        return f"{prompt} {answer}"

    def _script(self, row: Mapping[str, Any], answer: Any) -> Any:
        """What begins with the same token begins with its word."""
        first, space, rest = row["answer"].partition(" ")
        return f"{row['spare']}{space}{rest}" if answer.lstrip().startswith(first) else row["answer"]


class ChatHistories(TextHistories):
    """Of messages."""

    def _with_message(self, before: Any, row: Mapping[str, Any]) -> Any:
        system = [{"role": "system", "content": row["system_prompt"]}] if row["system_prompt"] else []
        return [*(before or ()), *system, {"role": "user", "content": row["question"]}]

    def _with_answer(self, prompt: Any, answer: Any) -> Any:
        return [*prompt, {"role": "assistant", "content": answer}]


FORMS = {"token_ids": Histories, "text": TextHistories, "chat": ChatHistories}
"""By ``conversation.form``."""
