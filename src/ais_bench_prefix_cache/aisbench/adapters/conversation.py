"""AISBench's inferencer and model for conversations: prompts and answers are token ids, history grows turn by turn."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ais_bench_prefix_cache.aisbench.adapters.histories import Histories
from ais_bench_prefix_cache.aisbench.adapters.inferencer import PrefixCacheInferencer
from ais_bench_prefix_cache.aisbench.adapters.model import PrefixCacheCompletionsAPI
from ais_bench_prefix_cache.aisbench.adapters.observation import CURRENT_REQUEST, AnswerError, RequestObservation


class ConversationInferencer(PrefixCacheInferencer):
    """Puts each turn's prompt together from what the turns before it sent and got."""

    def __init__(self, model_cfg: Any, **settings: Any) -> None:
        super().__init__(model_cfg, **settings)
        self._histories = Histories(Counter(self._requests["continues"].tolist()))
        self._rows_under_way: dict[int, dict[str, Any]] = {}

    def _prompt(self, row: dict[str, Any]) -> Any:
        self._rows_under_way[row["sequence_index"]] = row
        return self._histories.prompt(row)

    def _answered(self, observation: RequestObservation) -> None:
        row = self._rows_under_way.pop(observation.sequence_index)
        if observation.success:
            self._histories.answered(row, observation.prompt, observation.token_ids)


class ConversationAPI(PrefixCacheCompletionsAPI):
    """``/v1/completions`` with token ids for a prompt and in the answer, which has exactly ``max_tokens``."""

    async def generate(self, input_data: str, max_out_len: int, output: Any, session: Any = None, **args: Any) -> Any:
        observation = CURRENT_REQUEST.get()
        if observation is not None and observation.prompt is None:
            output.success = False
            output.error_info = "not sent: the turn before it has no answer"
            observation.end(success=False, error=output.error_info)
            return output
        return await super().generate(input_data, max_out_len, output, session=session, **args)

    def on_the_wire(self, body: dict[str, Any], prompt: Any) -> dict[str, Any]:
        return {**body, "prompt": prompt, "ignore_eos": True, "return_token_ids": True}

    async def parse_stream_response(self, api_response: dict[str, Any], output: Any) -> None:
        await super().parse_stream_response(api_response, output)
        self._take_token_ids(api_response)

    async def parse_text_response(self, api_response: dict[str, Any], output: Any) -> None:
        await super().parse_text_response(api_response, output)
        self._take_token_ids(api_response)

    def _take_token_ids(self, response: dict[str, Any]) -> None:
        if self._observation is None:
            return
        for choice in response.get("choices") or ():
            token_ids = choice.get("token_ids")
            if token_ids is None:
                continue
            if not isinstance(token_ids, list) or not all(type(token) is int for token in token_ids):
                raise AnswerError("token_ids is not a list of numbers")
            self._observation.token_ids += token_ids

    def _check_usage(self) -> None:
        super()._check_usage()
        if self._observation is not None:
            self._observation.check_token_ids()
