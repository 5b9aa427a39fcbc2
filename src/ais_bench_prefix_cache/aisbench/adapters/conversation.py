"""AISBench's inferencer and models for conversations, whose history grows turn by turn: as ids, texts or messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ais_bench_prefix_cache.aisbench.adapters.histories import FORMS
from ais_bench_prefix_cache.aisbench.adapters.inferencer import PrefixCacheInferencer
from ais_bench_prefix_cache.aisbench.adapters.model import ChatAPI, ObservedModel, PrefixCacheCompletionsAPI
from ais_bench_prefix_cache.aisbench.adapters.observation import CURRENT_REQUEST, AnswerError, RequestObservation


class ConversationInferencer(PrefixCacheInferencer):
    """Puts each turn's prompt together from what the turns before it sent and got."""

    def __init__(self, model_cfg: Any, *, form: str = "token_ids", **settings: Any) -> None:
        super().__init__(model_cfg, **settings)
        self._histories = FORMS[form](Counter(self._requests["continues"].tolist()))
        self._rows_under_way: dict[int, dict[str, Any]] = {}

    def _prompt(self, row: dict[str, Any]) -> Any:
        self._rows_under_way[row["sequence_index"]] = row
        return self._histories.prompt(row)

    def _answered(self, observation: RequestObservation) -> None:
        row = self._rows_under_way.pop(observation.sequence_index)
        if observation.success:
            self._histories.answered(row, observation.prompt, observation.token_ids or observation.text)


class _TurnModel(ObservedModel):
    """Sends a turn unless the one before it has no answer; an answer has exactly ``max_tokens``."""

    async def generate(self, input_data: str, max_out_len: int, output: Any, session: Any = None, **args: Any) -> Any:
        observation = CURRENT_REQUEST.get()
        if observation is not None and observation.prompt is None:
            output.success = False
            output.error_info = "not sent: the turn before it has no answer"
            observation.end(success=False, error=output.error_info)
            return output
        return await super().generate(input_data, max_out_len, output, session=session, **args)

    async def stream_infer(self, request_body: dict[str, Any], output: Any) -> None:
        await super().stream_infer(request_body, output)
        self._keep_text(output)

    async def text_infer(self, request_body: dict[str, Any], output: Any) -> None:
        await super().text_infer(request_body, output)
        self._keep_text(output)

    def _keep_text(self, output: Any) -> None:
        if self._observation is not None:
            self._observation.text = output.content

    def _check_usage(self) -> None:
        super()._check_usage()
        if self._observation is not None:
            self._check_answer(self._observation)

    def _check_answer(self, observation: RequestObservation) -> None:
        observation.check_length()


class TextTurnAPI(_TurnModel, PrefixCacheCompletionsAPI):
    """``/v1/completions`` with texts."""

    def on_the_wire(self, body: dict[str, Any], prompt: Any) -> dict[str, Any]:
        return {**body, "prompt": prompt, "ignore_eos": True}


class ChatTurnAPI(_TurnModel, ChatAPI):
    """``/v1/chat/completions``. What the server thinks before it answers is no part of the history."""

    def on_the_wire(self, body: dict[str, Any], prompt: Any) -> dict[str, Any]:
        return {**body, "messages": prompt, "ignore_eos": True}


class ConversationAPI(_TurnModel, PrefixCacheCompletionsAPI):
    """``/v1/completions`` with token ids for a prompt and in the answer."""

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

    def _check_answer(self, observation: RequestObservation) -> None:
        observation.check_token_ids()
