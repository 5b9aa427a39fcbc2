"""The Scenario after loading: every default filled in, every path absolute, every cross-field rule checked.

Lengths are tokens, paths are absolute, rates are fractions of 1. Instances are frozen; build them with
:func:`ais_bench_prefix_cache.scenario.loading.load_scenario`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union

ScenarioRules = Literal["prefixes", "images", "conversations"]
"""Which sections of a Scenario count: those of blocks and shared prefixes, of images, or of conversations."""
CacheMode = Literal["cold", "warmup"]
ConversationForm = Literal["token_ids", "text", "chat"]
ConversationRouting = Literal["sticky", "round_robin", "free"]
OrderStrategy = Literal["sequential", "within_group_shuffle", "interleave", "global_shuffle", "input_len_asc"]


@dataclass(frozen=True)
class FixedLength:
    value: int


@dataclass(frozen=True)
class ExplicitLengths:
    values: tuple[int, ...]


@dataclass(frozen=True)
class LengthRange:
    min: int
    max: int
    count: int


@dataclass(frozen=True)
class RangeLengths:
    ranges: tuple[LengthRange, ...]


@dataclass(frozen=True)
class UniformLength:
    min: int
    max: int


@dataclass(frozen=True)
class TruncatedNormalLength:
    """``mean`` and ``std`` are already filled in: the middle of the interval and a sixth of its width (at least 1)."""

    min: int
    max: int
    mean: float
    std: float


@dataclass(frozen=True)
class CsvLengths:
    """Lengths of a CSV file, read while the Scenario was loaded."""

    path: Path
    values: tuple[int, ...]


LengthSpec = Union[FixedLength, ExplicitLengths, RangeLengths, UniformLength, TruncatedNormalLength, CsvLengths]

LENGTH_RULES: Mapping[str, type[LengthSpec]] = {
    "fixed": FixedLength,
    "explicit": ExplicitLengths,
    "range": RangeLengths,
    "uniform": UniformLength,
    "truncated_normal": TruncatedNormalLength,
}
"""By their mode the rules whose fields are all in the Scenario; ``csv`` reads a file."""


@dataclass(frozen=True)
class RunConfig:
    run_id: str
    random_seed: int
    output_dir: Path
    overwrite: bool


@dataclass(frozen=True)
class TokenizerConfig:
    """``path`` is an absolute directory where one exists, otherwise the model name as the user wrote it.

    ``add_special_tokens``: around every prompt those that this transformers adds (``auto``), those that the tokenizer's
    own configuration asks for (True), or none (False).
    """

    path: str
    block_size: int
    revision: str | None
    trust_remote_code: bool
    add_special_tokens: bool | Literal["auto"] = "auto"


@dataclass(frozen=True)
class CorpusSelection:
    """``mixed`` takes ``indices`` first, then ``question_sha256``; ``random`` uses neither."""

    mode: Literal["random", "indices", "question_sha256", "mixed"]
    indices: tuple[int, ...] = ()
    question_sha256: tuple[str, ...] = ()


@dataclass(frozen=True)
class CorpusConfig:
    path: Path
    field: str
    selection: CorpusSelection


@dataclass(frozen=True)
class RequestsConfig:
    count: int
    input_length: LengthSpec
    output_length: LengthSpec


@dataclass(frozen=True)
class GroupAssignment:
    mode: Literal["uniform", "zipf", "weights"]
    exponent: float = 1.0
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class GroupOverride:
    input_length: LengthSpec | None = None
    output_length: LengthSpec | None = None
    corpus_selection: CorpusSelection | None = None


@dataclass(frozen=True)
class GroupsConfig:
    """``overrides`` is keyed by the group's number (``group-3`` is 3)."""

    count: int
    assignment: GroupAssignment
    overrides: Mapping[int, GroupOverride] = field(default_factory=dict)


@dataclass(frozen=True)
class PrefixCacheConfig:
    """``minimum_non_shared_length`` is filled in: at least ``seed_blocks * block_size`` tokens."""

    mode: CacheMode
    target_hit_rate: float
    seed_blocks: int
    minimum_non_shared_length: int
    groups: GroupsConfig
    order: OrderStrategy = field(metadata={"key": "order.strategy"})


@dataclass(frozen=True)
class Route:
    """An inference URL by its position, and the rank behind it that a header asks for; None where it has only one."""

    position: int
    rank_behind: int | None


@dataclass(frozen=True)
class ServiceConfig:
    """URLs are tuples: one entry for one entry point, or one per data-parallel rank (ours).

    ``engine_label_map`` maps the server's engine label to our ``dp_rank``. ``api_key`` is a secret: it is
    kept out of ``repr`` and never written anywhere. Formal requests go to ``router_url`` where there is one.
    """

    inference_urls: tuple[str, ...] = field(metadata={"key": "inference_url"})
    metrics_urls: tuple[str, ...] = field(metadata={"key": "metrics_url"})
    reset_urls: tuple[str, ...] = field(metadata={"key": "reset_url"})
    model: str
    dp_size: int
    assume_empty_cache: bool
    engine_label_map: Mapping[str, int]
    timeout_seconds: float
    poll_interval_seconds: float
    api_key: str = field(default="", repr=False)
    engine: Literal["auto", "vllm", "sglang"] = "auto"
    hybrid_warmup: bool = False
    kv_cache_blocks: int | None = None
    router_url: str | None = None

    @property
    def ranks_per_url(self) -> int:
        """How many data-parallel ranks each inference URL reaches."""
        return self.dp_size // len(self.inference_urls)

    def route(self, dp_rank: int | None) -> Route:
        """How to reach a rank; without a rank, the first URL."""
        if dp_rank is None:
            return Route(0, None)
        position, rank = divmod(dp_rank, self.ranks_per_url)
        return Route(position, rank if self.ranks_per_url > 1 else None)


@dataclass(frozen=True)
class ValidationConfig:
    """Warnings in percentage points; ``slo`` has bounds in milliseconds: ``ttft_ms``, ``tpot_ms``, ``e2el_ms``."""

    target_warning_pp: float
    actual_warning_pp: float
    slo: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AisbenchDatasetConfig:
    abbr: str | None
    input_columns: tuple[str, ...]
    output_column: str
    prompt_template: str
    pred_role: str


@dataclass(frozen=True)
class AisbenchModelConfig:
    """``request_rate`` is requests a second; None sends as fast as ``batch_size`` allows."""

    abbr: str | None
    attr: str
    stream: bool
    max_out_len: int
    retry: int
    batch_size: int
    generation_kwargs: Mapping[str, Any]
    request_rate: float | None = None
    arrivals: Literal["poisson", "even"] = "poisson"


@dataclass(frozen=True)
class LoadConfig:
    """Who sends: ``generators`` AISBenches with ``senders`` processes each.

    ``address`` is the Ray cluster's. ``command`` starts a load generator instead of this Python; ``{n}`` in it is the
    generator's number, from 1 on.
    """

    senders: int | Literal["auto"] = 1
    generators: int = 1
    engine: Literal["local", "ray"] = "local"
    address: str = "auto"
    command: tuple[str, ...] = ()
    split: Literal["lane", "rank"] = "lane"


@dataclass(frozen=True)
class AisbenchConfig:
    """``config`` is None for the built-in template."""

    config: Path | None
    work_dir: Path
    extra_args: Mapping[str, Any]
    dataset: AisbenchDatasetConfig
    model: AisbenchModelConfig
    load: LoadConfig = LoadConfig()


@dataclass(frozen=True)
class MultimodalConfig:
    mmmu_parquet_dir: Path | None
    scenarios: tuple[Literal["single_1080p", "multi_720p_5"], ...]


@dataclass(frozen=True)
class SystemPromptsConfig:
    count: int
    assignment: GroupAssignment
    length: LengthSpec


@dataclass(frozen=True)
class BranchesConfig:
    """How often the history after so many turns is continued besides, and for how many turns.

    ``message`` "same": the next request is sent so many times more, and only the first goes on.
    """

    after_turn: int
    count: int
    turns: LengthSpec
    message: Literal["own", "same"]


@dataclass(frozen=True)
class ToolResultsConfig:
    """After each message of the user so many results of tools follow, each in a turn of its own."""

    per_message: int
    length: LengthSpec
    time_ms: LengthSpec | None = None


@dataclass(frozen=True)
class ConversationConfig:
    """``turns`` (turns) and ``think_time_ms`` (milliseconds) are drawn as lengths are; all other lengths are tokens.

    With a ``target_hit_rate`` the lengths of system prompts and messages are proportions.
    """

    count: int
    turns: LengthSpec
    system_prompts: SystemPromptsConfig
    first_message_length: LengthSpec
    message_length: LengthSpec
    answer_length: LengthSpec
    answers: Literal["generated", "scripted"]
    form: ConversationForm
    routing: ConversationRouting
    think_time_ms: LengthSpec | None = None
    branches: BranchesConfig | None = None
    tool_results: ToolResultsConfig | None = None
    target_hit_rate: float | None = None


@dataclass(frozen=True)
class Scenario:
    """A loaded Scenario.

    ``path`` is the file it came from, ``sha256`` the digest of that file's bytes, ``settings`` ("requests.count=200")
    what replaced fields of it. ``effective`` is the
    JSON-ready configuration with every default filled in and every path resolved; in it
    ``service.api_key`` is replaced by ``service.api_key_configured``.
    """

    path: Path
    sha256: str
    schema_version: str
    run: RunConfig
    tokenizer: TokenizerConfig
    corpus: CorpusConfig
    requests: RequestsConfig
    output_key: Literal["max_tokens", "output_tokens"] | None = field(metadata={"key": "output.output_key"})
    prefix_cache: PrefixCacheConfig
    service: ServiceConfig
    validation: ValidationConfig
    aisbench: AisbenchConfig
    multimodal: MultimodalConfig | None = None
    conversation: ConversationConfig | None = None
    effective: Mapping[str, Any] = field(default_factory=dict, repr=False)
    settings: tuple[str, ...] = ()

    @property
    def block_size(self) -> int:
        """Tokens in a cache block."""
        return self.tokenizer.block_size

    @property
    def seed_tokens(self) -> int:
        """Tokens of each request's unique seed."""
        return self.prefix_cache.seed_blocks * self.tokenizer.block_size

    @property
    def benchmark_mode(self) -> Literal["text", "mm", "conversation"]:
        """What ``prepare`` makes of it where no option says: what the Scenario has a section for, else text."""
        if self.conversation is not None:
            return "conversation"
        return "mm" if self.multimodal is not None and self.multimodal.mmmu_parquet_dir is not None else "text"
