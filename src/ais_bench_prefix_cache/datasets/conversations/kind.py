"""Conversations: rows, manifest sections and rules. Theory is a plan of numbers alone, whatever is answered.

A row is one turn and holds what that turn adds to its history, as token ids with their text beside them. Whoever sends
it puts the prompt together: what the turn before sent, its answer, and this. In a scripted conversation that answer is
the row's, not the server's; where both would begin with the same token, the row's spare token takes its place, so that
no cache can know more than planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ais_bench_prefix_cache.datasets.conversations.plan_replay import (
    TurnLinks,
    TurnTokens,
    replay_conversations,
    replayed_turns,
    turn_by_turn,
)
from ais_bench_prefix_cache.datasets.format.capacity import KeptHits, capacity_warnings
from ais_bench_prefix_cache.datasets.format.documents import is_count
from ais_bench_prefix_cache.datasets.format.kind import (
    Content,
    DataSetKind,
    DeepCheck,
    Inspection,
    JsonRow,
    Ledger,
    Preparation,
    Sources,
    Warnings,
)
from ais_bench_prefix_cache.datasets.format.manifest import SOURCE_KEYS
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.recorded import recorded_scenario
from ais_bench_prefix_cache.datasets.format.rows import ANSWER, Free, FreeText, Row, list_of, read_rows, request_id
from ais_bench_prefix_cache.datasets.format.targets import deviation_warnings
from ais_bench_prefix_cache.datasets.format.writing import FileRecord
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError, ScenarioError
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.foundation.names import NO_RANK, group_name, group_number, verdict
from ais_bench_prefix_cache.foundation.telling import ProgressBar, no_bar
from ais_bench_prefix_cache.foundation.token_share import TokenShare
from ais_bench_prefix_cache.kvcache.block_hash import MAX_TOKEN_ID
from ais_bench_prefix_cache.kvcache.replay import SequentialReplay
from ais_bench_prefix_cache.planning.conversations import ConversationPlan, PlannedTurn, plan_conversations
from ais_bench_prefix_cache.planning.summary import length_summary
from ais_bench_prefix_cache.scenario.model import Scenario

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.conversations.pieces import Piece, PieceOrder
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer


_TEXT_HINT = 'Use conversation.form "token_ids".'


def _is_token(value: object) -> bool:
    return is_count(value) and value <= MAX_TOKEN_ID


_TOKENS = list_of(_is_token, f"a list of token ids from 0 to {MAX_TOKEN_ID}")
_SPARE = Free(lambda value: value is None or _is_token(value), "a token id or null")


@dataclass(frozen=True)
class ConversationRow(Row):
    """A row of ``full.jsonl``: one turn. Lengths are tokens; ``turn`` counts from 0, ``branch`` is 0 but for branches.

    ``continues`` is the ``sequence_index`` of the turn whose prompt and answer come first, null for a first turn, and
    ``think_ms`` the pause after that answer; ``repeats`` is the turn whose prompt is sent once more, ``waits_for`` one
    whose first token must have come before, both null where there is none. ``dp_rank`` is null where it is not planned.
    ``token_ids`` are those of ``system_prompt`` (first turns only) and ``question``. ``shared_prefix_tokens`` is how
    many tokens of its prompt its rank knows. ``answer`` and ``answer_token_ids`` are what later turns have for this
    turn's answer, ``spare_token_id``, the word ``spare``, what stands in place of its first token where the server's
    begins alike; without a script ``"none"``, ``[]``, null and ``""``.
    """

    request_id: str
    sequence_index: int
    conversation: int
    turn: int
    branch: int
    group_id: str
    dp_rank: int | None
    continues: int | None
    repeats: int | None
    waits_for: int | None
    think_ms: int
    system_prompt_tokens: int
    message_tokens: int
    actual_input_tokens: int
    max_tokens: int
    shared_prefix_tokens: int
    theoretical_hit_tokens: int
    theoretical_hit_rate: float
    system_prompt: FreeText
    question: FreeText
    token_ids: Annotated[list[int], _TOKENS]
    answer: FreeText
    answer_token_ids: Annotated[list[int], _TOKENS]
    spare_token_id: Annotated[int | None, _SPARE]
    spare: FreeText


class ConversationLedger(Ledger):
    """Everything but texts and tokens follows from the plan."""

    def __init__(self, scenario: Scenario, plan: ConversationPlan) -> None:
        assert scenario.conversation is not None
        self._scenario, self._form = scenario, scenario.conversation.form
        self.plan = plan
        self.count = len(plan.turns)
        self._system_prompts: dict[int, tuple[str, list[int]]] = {}
        self._first_blocks: dict[tuple[int, ...], int] = {}
        self._partings: set[tuple[int, ...]] = set()

    def expected(self, index: int, row: JsonRow) -> ConversationRow:
        return planned_row(
            index,
            self.plan.turns[index],
            system_prompt=row["system_prompt"],
            question=row["question"],
            token_ids=row["token_ids"],
            answer=row["answer"] if self.plan.scripted else ANSWER,
            answer_token_ids=row["answer_token_ids"],
            spare_token_id=row["spare_token_id"],
            spare=row["spare"],
        )

    def add(self, index: int, row: JsonRow, where: str, findings: Findings) -> None:
        planned = self.plan.turns[index]
        for key, wanted in (
            ("token_ids", planned.new_tokens),
            ("answer_token_ids", planned.answer_tokens if self.plan.scripted else 0),
        ):
            if len(row[key]) != wanted:
                findings.add(Code.WRONG_VALUE, f"{where}: {key}", f"it has {len(row[key])} tokens", allowed=str(wanted))
        spare, answer = row["spare_token_id"], row["answer_token_ids"]
        if (spare is None) == self.plan.scripted or (answer and spare == answer[0]):
            allowed = "a token that the answer does not begin with" if self.plan.scripted else "null"
            findings.add(Code.WRONG_VALUE, f"{where}: spare_token_id", f"it says {spare}", allowed=allowed)
        if bool(row["spare"]) != self.plan.scripted:
            allowed = "the word of spare_token_id" if self.plan.scripted else "an empty text"
            findings.add(Code.WRONG_VALUE, f"{where}: spare", f"it says {shown(row['spare'])}", allowed=allowed)
        self._add_beginning(planned, row, where, findings)

    def _add_beginning(self, planned: PlannedTurn, row: JsonRow, where: str, findings: Findings) -> None:
        """Conversations have their group's system prompt in common, and part in the block in which it ends."""
        shared = planned.new_tokens - planned.message_tokens
        text, ids = row["system_prompt"], row["token_ids"]
        if bool(text) != bool(shared):
            findings.add(Code.WRONG_VALUE, f"{where}: system_prompt", f"it stands for {shared} tokens")
        if planned.turn:
            return
        if (text, ids[:shared]) != self._system_prompts.setdefault(planned.group, (text, ids[:shared])):
            message = f"its system prompt is not that of {group_name(planned.group)} before it"
            findings.add(Code.PREFIX_DIFFERS, where, message)
        size = self.plan.block_size
        whole = shared - shared % size
        first, parting = tuple(ids[:size]), (planned.group, *ids[whole : whole + size])
        owner = planned.group if whole else ~planned.conversation
        twice = len(first) == size and self._first_blocks.setdefault(first, owner) != owner
        if whole and len(parting) == 1 + size:
            twice = twice or parting in self._partings
            self._partings.add(parting)
        if twice:
            message = "its beginning has a block in common with a conversation that it shares no such block with"
            findings.add(Code.NOT_UNIQUE, f"{where}: token_ids", message)

    def sections(self, artifacts: Mapping[str, Any]) -> dict[str, Any]:
        plan = self.plan
        turns = plan.shares(lambda each: each.conversation)
        branches = {(each.conversation, each.branch) for each in plan.turns if each.branch}
        groups = plan.shares(lambda each: each.group)
        conversations = {
            group: len({each.conversation for each in plan.turns if each.group == group}) for group in groups
        }
        return {
            "requests": {
                "count": self.count,
                "total_input_tokens": plan.total.total,
                "input_length_summary": length_summary(_column(plan, lambda each: each.input_tokens)),
                "output_length_summary": length_summary(_column(plan, lambda each: each.answer_tokens)),
            },
            "prefix_cache": {"mode": "cold", "theoretical_hit_rate": plan.total.rate},
            "conversations": {
                "count": plan.conversations,
                "turn_summary": length_summary(np.asarray([requests for requests, _ in turns.values()])),
                "answers": "scripted" if plan.scripted else "generated",
                "form": self._form,
                "branches": len(branches),
            },
            "groups": {
                group_name(group): {
                    "canonical_prefix_tokens": tokens,
                    "conversations": conversations.get(group, 0),
                    "theoretical_hit_rate": groups[group][1].rate if group in groups else 0.0,
                }
                for group, tokens in enumerate(plan.system_prompt_tokens)
            },
            "dp": {"size": plan.dp_size, "route": plan.routing},
            "warmup": {"enabled": False, "plan": []},
        }

    def analysis(self, run_id: str, recorded: Warnings | None) -> dict[str, Any]:
        warnings = plan_warnings(self._scenario, self.plan)
        return {
            "schema_version": "1.0",
            "run_id": run_id,
            "status": "prepared",
            "theoretical_hit_rate": self.plan.total.rate,
            "validation": {"status": verdict(warnings), "warning_only": True, "affects_exit_code": False},
            "theory": theory_section(self.plan),
            "warnings": warnings,
        }


def plan_warnings(scenario: Scenario, plan: ConversationPlan) -> list[dict[str, Any]]:
    """That lengths for a target miss it, and that a server of known size forgets what the plan counts on.

    ``batch_size`` requests are under way at a time.
    """
    target, threshold = plan.target_hit_rate, scenario.validation.target_warning_pp
    warnings = [] if target is None else deviation_warnings(target, plan.total.rate, threshold)
    blocks = scenario.service.kv_cache_blocks
    # What SGLang's tree keeps of histories is not replayed.
    if blocks is None or scenario.service.engine == "sglang":
        return warnings
    turns = replayed_turns(
        (
            TurnLinks(each.branch, each.continues, each.repeats, each.think_ms),
            TurnTokens(
                group_name(each.group),
                each.sticky_rank if each.dp_rank == NO_RANK else each.dp_rank,
                plan.system_prompt_tokens[each.group],
                each.input_tokens,
                each.answer_tokens,
            ),
        )
        for each in plan.turns
    )
    replay = replay_conversations(
        turns,
        turn_by_turn(turns, scenario.aisbench.model.batch_size),
        scripted=plan.scripted,
        block_size=plan.block_size,
        ranks=plan.dp_size,
        num_blocks=None,
    )
    if replay is None:
        return warnings
    kept = KeptHits.by_curve(replay.capacity_curve(), blocks, plan.total.shared)
    return [*warnings, *capacity_warnings(kept, plan.total.shared)]


def planned_row(
    index: int,
    planned: PlannedTurn,
    *,
    system_prompt: str,
    question: str,
    token_ids: list[int],
    answer: str,
    answer_token_ids: list[int],
    spare_token_id: int | None,
    spare: str,
) -> ConversationRow:
    """The row of one turn with its texts and tokens."""
    return ConversationRow(
        request_id=request_id(index),
        sequence_index=index,
        conversation=planned.conversation,
        turn=planned.turn,
        branch=planned.branch,
        group_id=group_name(planned.group),
        dp_rank=None if planned.dp_rank == NO_RANK else planned.dp_rank,
        continues=planned.continues,
        repeats=planned.repeats,
        waits_for=planned.waits_for,
        think_ms=planned.think_ms,
        system_prompt_tokens=planned.new_tokens - planned.message_tokens,
        message_tokens=planned.message_tokens,
        actual_input_tokens=planned.input_tokens,
        max_tokens=planned.answer_tokens,
        shared_prefix_tokens=planned.known_tokens,
        theoretical_hit_tokens=planned.hit_tokens,
        theoretical_hit_rate=planned.hit_tokens / planned.input_tokens,
        system_prompt=system_prompt,
        question=question,
        token_ids=token_ids,
        answer=answer,
        answer_token_ids=answer_token_ids,
        spare_token_id=spare_token_id,
        spare=spare,
    )


def theory_section(plan: ConversationPlan) -> dict[str, Any]:
    """``analysis.theory``: of all requests, and of those of each system prompt, rank and turn (from 0).

    Where ranks are not planned, it is that of conversations that stay on one, with the ``range`` of all routings.
    """

    def shares(key: Callable[[PlannedTurn], int], name: Callable[[int], str] = str) -> dict[str, Any]:
        found = plan.shares(key).items()
        return {name(value): {"requests": requests, **share.section()} for value, (requests, share) in found}

    by_rank = {str(rank): {"requests": 0, **TokenShare().section()} for rank in range(plan.dp_size)}
    section = {
        "requests": len(plan.turns),
        **plan.total.section(),
        "groups": shares(lambda each: each.group, group_name),
        "dp": {} if plan.range else by_rank | shares(lambda each: each.dp_rank),
        "turns": shares(lambda each: each.turn),
    }
    if plan.range is not None:
        section["range"] = {"least_hit_tokens": plan.range.least, "most_hit_tokens": plan.range.most}
    return section


def _column(plan: ConversationPlan, value: Callable[[PlannedTurn], int]) -> Any:
    return np.fromiter(map(value, plan.turns), dtype=np.int64, count=len(plan.turns))


class ConversationDeepCheck(DeepCheck):
    """Every piece's tokens, and the hits of every prompt in a replay that knows nothing of the plan.

    Prompts that are sent as texts are encoded as a whole, as the server does.
    What a server would answer is invented: in a scripted conversation an answer that is the script's but for its first
    token, else tokens that no vocabulary has.
    """

    def __init__(self, paths: RunPaths, manifest: Mapping[str, Any], findings: Findings) -> None:
        self._full = paths.full
        self._findings = findings
        self._is_text = manifest["conversations"]["form"] == "text"
        self.special_tokens = self._is_text
        self._texts: dict[int, str] = {}
        self._replay = SequentialReplay(block_size=manifest["tokenizer"]["block_size"], ranks=manifest["dp"]["size"])
        self._ranks = manifest["dp"]["size"]
        self._system_prompt: Sequence[int] = ()
        self._histories: dict[int, list[int]] = {}
        self._conversations: Counter[str] = Counter()
        self._stays_on = 0
        self._prompts = 0

    def texts(self) -> Iterator[tuple[str, Callable[[Sequence[int]], None]]]:
        for row in read_rows(self._full):
            if self._is_text:
                yield self._whole_text(row), partial(self._judge_whole, row)
                continue
            if row["system_prompt"]:
                yield row["system_prompt"], self._begin
            yield row["question"], partial(self._judge, row)
            if row["answer_token_ids"]:
                yield row["answer"], partial(self._compare, row, "answer_token_ids", "encoding its text")

    def _begin(self, token_ids: Sequence[int]) -> None:
        self._system_prompt = token_ids

    def _whole_text(self, row: JsonRow) -> str:
        if row["continues"] is None:
            self._texts.clear()
        text = " ".join(filter(None, (self._texts.get(row["continues"]), row["system_prompt"], row["question"])))
        self._texts[row["sequence_index"]] = f"{text} {row['answer']}"
        return text

    def _judge_whole(self, row: JsonRow, token_ids: Sequence[int]) -> None:
        before = [] if row["continues"] is None else self._histories.get(row["continues"], [])
        same = list(token_ids[: len(before)]) == before
        self._compare(row, "token_ids", "encoding its prompt", list(token_ids[len(before) :]) if same else [])
        self._replay_turn(row)

    def _judge(self, row: JsonRow, token_ids: Sequence[int]) -> None:
        self._compare(row, "token_ids", "encoding its texts", [*self._system_prompt, *token_ids])
        self._system_prompt = ()
        self._replay_turn(row)

    def _replay_turn(self, row: JsonRow) -> None:
        if row["continues"] is None:
            self._histories.clear()
            # Where no rank is planned, theory is that of conversations that go to the ranks in turn and stay there.
            group = row["group_id"]
            self._stays_on = (self._conversations[group] + group_number(group)) % self._ranks
            self._conversations[group] += 1
        prompt = [*self._histories.get(row["continues"], ()), *row["token_ids"]]
        self._compare(row, "actual_input_tokens", "putting the prompt together", len(prompt))
        script = row["answer_token_ids"]
        answer = [row["spare_token_id"], *script[1:]] if script else [MAX_TOKEN_ID] * row["max_tokens"]
        rank = self._stays_on if row["dp_rank"] is None else row["dp_rank"]
        hits = self._replay.run(rank, prompt, output=answer)
        self._compare(row, "theoretical_hit_tokens", "replaying the prompts", hits)
        self._histories[row["sequence_index"]] = prompt + (script or answer)
        self._prompts += 1

    def report(self) -> dict[str, Any]:
        share = TokenShare(sum(self._replay.queries), sum(self._replay.hits))
        return {"prompts": self._prompts, "tokens": share.total, "hit_tokens": share.shared, "hit_rate": share.rate}

    def _compare(self, row: JsonRow, key: str, how: str, found: Any) -> None:
        if row[key] != found:
            where = f"{self._full.name} line {row['sequence_index'] + 1}: {key}"
            differs = "something else" if isinstance(found, list) else found
            claimed = "other tokens" if isinstance(found, list) else row[key]
            self._findings.add(Code.DEEP_CHECK, where, f"the file says {claimed}, but {how} gives {differs}")


class ConversationKind(DataSetKind):
    """See the module's docstring."""

    name = "conversation"
    manifest_keys = (
        *SOURCE_KEYS,
        "requests",
        "prefix_cache",
        "conversations",
        "groups",
        "dp",
        "warmup",
        "artifacts",
        "content_sha256",
    )
    row_type = ConversationRow
    scenario_rules = "conversations"
    aisbench_template = "conversation_perf.py"
    takes_template = False

    def row_files(self, paths: RunPaths, manifest: Mapping[str, Any]) -> dict[str, Path]:
        return {"full": paths.full}

    def inspect(self, scenario: Scenario, bar: ProgressBar = no_bar) -> Inspection:
        plan = plan_conversations(scenario)
        sections = ConversationLedger(scenario, plan).sections({})
        summary = {
            "run_id": scenario.run.run_id,
            "mode": self.name,
            "theoretical_hit_rate": plan.total.rate,
            **{key: sections[key] for key in ("requests", "conversations", "groups")},
            "theory": theory_section(plan),
            "sends_requests": False,
            "planning_only": True,
            "content_validation_deferred_to_prepare": True,
        }
        turns, rate = len(plan.turns), plan.total.rate
        note = (
            f"{turns} turns of {plan.conversations} conversations, {plan.total.total} input tokens, "
            f"theoretical hit rate {rate:.6f}"
        )
        return Inspection(summary, plan_warnings(scenario, plan), note, turns, rate)

    def prepare(self, preparation: Preparation) -> Content:
        plan = plan_conversations(preparation.scenario)
        return _content(preparation.scenario, plan, preparation.load(), check_each=preparation.check_whole)

    def ledger(
        self, paths: RunPaths, manifest: Mapping[str, Any], records: Mapping[str, FileRecord], findings: Findings
    ) -> ConversationLedger | None:
        scenario = recorded_scenario(paths, manifest, self.scenario_rules, findings)
        if scenario is None or scenario.conversation is None:
            return None
        if "full" in records and records["full"].rows < scenario.conversation.count:
            # Planning takes what the configuration asks for: more than the files hold is not worth it.
            message = f"it has {records['full'].rows} rows"
            findings.add(
                Code.ROW_COUNT, paths.full.name, message, allowed=f"at least {scenario.conversation.count} first turns"
            )
            return None
        try:
            return ConversationLedger(scenario, plan_conversations(scenario))
        except ScenarioError as error:
            findings.extend(list(error.problems))
            return None

    def rebuild(self, paths: RunPaths, manifest: Mapping[str, Any], sources: Sources, trace: Path | None) -> Content:
        scenario = recorded_scenario(paths, manifest, self.scenario_rules, Findings())
        assert scenario is not None, "the data set has been verified"
        return _content(scenario, plan_conversations(scenario), sources)

    def deep_check(
        self, paths: RunPaths, manifest: Mapping[str, Any], tokenizer: PromptTokenizer, findings: Findings
    ) -> ConversationDeepCheck:
        return ConversationDeepCheck(paths, manifest, findings)


KIND = ConversationKind()


def _content(scenario: Scenario, plan: ConversationPlan, sources: Sources, *, check_each: bool = False) -> Content:
    from ais_bench_prefix_cache.datasets.conversations.pieces import PieceBuilder
    from ais_bench_prefix_cache.exact_text.corpus import select_rows

    seed = scenario.run.random_seed
    selected = select_rows(
        sources.corpus,
        scenario.corpus.selection,
        random_seed=seed,
        labels=("conversations", "corpus"),
        where="scenario: corpus.selection",
    )
    assert scenario.conversation is not None
    before: Sequence[int] = ()
    is_text = scenario.conversation.form == "text"
    if is_text:
        before = _special_tokens_before(sources.tokenizer, plan)
    orders = list(_orders(plan, is_text=is_text, before=len(before)))
    builder = PieceBuilder(
        sources.tokenizer,
        sources.corpus,
        list(dict.fromkeys(selected.rows)),
        longest=max(order.tokens for order in orders),
        codes=sum(order.code is not None for order in orders),
        block_size=scenario.block_size,
        random_seed=seed,
        check_each=check_each,
    )
    count = len(plan.turns)
    note = f"{count} turns of {plan.conversations} conversations"
    rows = _rows(plan, builder.build(iter(orders)), before)
    return Content(rows, count, ConversationLedger(scenario, plan), (note,))


def _special_tokens_before(tokenizer: PromptTokenizer, plan: ConversationPlan) -> Sequence[int]:
    """What the server puts before every text; it belongs to the planned lengths.

    Raises:
        GenerationError: it puts something after every text, too, or words do not provably stand alone.
    """
    if not tokenizer.join_proof.proven:
        reason = tokenizer.join_proof.reason
        message = f"words are not encoded one by one, so that histories of texts are not exact ({reason})"
        raise GenerationError.of(Code.PROMPTS_NOT_EXACT, "scenario: tokenizer.path", message, hint=_TEXT_HINT)
    before, shortest = tokenizer.prefix_ids, min(plan.system_prompt_tokens)
    first = min(each.new_tokens for each in plan.turns if not each.turn)
    if tokenizer.suffix_ids:
        message = "the tokenizer puts a special token after every text, which is no longer there when a history goes on"
        raise GenerationError.of(Code.TOKENIZER_SPECIAL_TOKENS, "scenario: tokenizer.path", message, hint=_TEXT_HINT)
    if before and (len(before) >= (shortest or first) or (not shortest and len(before) >= plan.block_size)):
        message = f"the server puts {len(before)} special token(s) before every text, and there is no room for them"
        hint = "Use system prompts or longer first messages, or a larger tokenizer.block_size."
        raise GenerationError.of(Code.TOKENIZER_SPECIAL_TOKENS, "scenario: conversation", message, hint=hint)
    return before


def _orders(plan: ConversationPlan, *, is_text: bool, before: int) -> Iterator[PieceOrder]:
    """All pieces: the system prompts, then the message and, with a script, the answer of each turn.

    ``before`` special tokens stand before the first piece of a prompt that ``is_text``.
    """
    from ais_bench_prefix_cache.datasets.conversations.pieces import PieceOrder

    groups = [tokens for tokens in plan.system_prompt_tokens if tokens]
    for group, tokens in enumerate(groups):
        yield PieceOrder("system prompt", group, tokens - before, code=group, position=before)
    for index, each in enumerate(plan.turns):
        code = None if each.turn else len(groups) + each.conversation
        position = each.input_tokens - each.message_tokens
        begins = not each.turn and each.new_tokens == each.message_tokens
        start = before if begins else 0
        follows = is_text and not begins
        if each.repeats is None:
            sibling = _sibling(plan, each)
            yield PieceOrder("message", index, each.message_tokens - start, code, position + start, sibling, follows)
        if plan.scripted:
            yield PieceOrder("answer", index, each.answer_tokens, follows=is_text)


def _sibling(plan: ConversationPlan, turn: PlannedTurn) -> int | None:
    """Which of several continuations of one history a turn is; None where it may be the only one."""
    if turn.continues is None:
        return None
    return turn.branch if turn.continues in plan.forks else None


def _rows(plan: ConversationPlan, pieces: Iterator[Piece], before: Sequence[int]) -> Iterator[ConversationRow]:
    system_prompts = [next(pieces) if tokens else None for tokens in plan.system_prompt_tokens]
    sent: dict[int, Piece] = {}
    for index, planned in enumerate(plan.turns):
        system = None if planned.turn else system_prompts[planned.group]
        message = next(pieces) if planned.repeats is None else sent[planned.repeats]
        if planned.continues in plan.forks:
            sent = {index if planned.repeats is None else planned.repeats: message}
        answer = next(pieces) if plan.scripted else None
        yield planned_row(
            index,
            planned,
            system_prompt="" if system is None else system.text,
            question=message.text,
            token_ids=[
                *(() if planned.turn else before),
                *(() if system is None else system.token_ids),
                *message.token_ids,
            ],
            answer=ANSWER if answer is None else answer.text,
            answer_token_ids=[] if answer is None else list(answer.token_ids),
            spare_token_id=None if answer is None else answer.spare_token_id,
            spare="" if answer is None else answer.spare,
        )
