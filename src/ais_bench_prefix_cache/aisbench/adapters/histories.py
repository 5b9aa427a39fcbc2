"""The token ids that conversations have gathered, kept until the last turn that continues them is sent.

Imports nothing of AISBench.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Histories:
    """``continuations`` says how many turns continue each row; the others' histories are not kept."""

    continuations: Mapping[int, int]
    _kept: dict[int, list[int]] = field(default_factory=dict)
    _turns_to_come: dict[int, int] = field(default_factory=dict)

    def prompt(self, row: Mapping[str, Any]) -> list[int] | None:
        """The ids of a row's whole prompt; None where the turn before it has no answer."""
        before: Sequence[int] = ()
        continues = row["continues"]
        if continues is not None:
            if continues not in self._kept:
                return None
            before = self._kept[continues]
            self._turns_to_come[continues] -= 1
            if not self._turns_to_come[continues]:
                del self._kept[continues], self._turns_to_come[continues]
        return [*before, *row["token_ids"]]

    def answered(self, row: Mapping[str, Any], prompt: Sequence[int], answer: Sequence[int]) -> None:
        """The row's prompt was answered with these ids.

        A scripted row has another answer for the history; where both begin with one token, it begins with its spare,
        so that what the server has computed ends with the prompt.
        """
        turns = self.continuations.get(row["sequence_index"], 0)
        if not turns:
            return
        script = row["answer_token_ids"]
        if script and script[0] == answer[0]:
            script = [row["spare_token_id"], *script[1:]]
        self._kept[row["sequence_index"]] = [*prompt, *(script or answer)]
        self._turns_to_come[row["sequence_index"]] = turns
