"""Metric texts to numbers per rank. The expected numbers were read from the texts with grep."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.doubles.metric_texts import snapshot

from ais_bench_prefix_cache.counters.ranks import MetricsSnapshot, read_engine_loads
from ais_bench_prefix_cache.counters.reader import CacheConfig, EngineLoad
from ais_bench_prefix_cache.foundation.errors import SnapshotError
from ais_bench_prefix_cache.foundation.names import NO_RANK

Prom = Callable[[str], str]
TOKENS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "tokens")


def counts(read: MetricsSnapshot) -> dict[int, tuple[str | None, int, int]]:
    return {rank: (c.label, c.counters.queries, c.counters.hits) for rank, c in read.by_rank.items()}


@pytest.mark.parametrize(
    ("file", "dp_size", "names", "expected"),
    [
        ("01", 1, TOKENS, {0: ("0", 0, 0)}),
        ("02", 1, TOKENS, {0: ("0", 12789, 4576)}),
        ("03", 1, TOKENS, {0: ("0", 4096, 0)}),
        ("04", 2, TOKENS, {0: ("0", 0, 0), 1: ("1", 0, 0)}),
        ("05", 2, TOKENS, {0: ("0", 4160, 448), 1: ("1", 4423, 672)}),
        ("07", 1, TOKENS, {0: ("0", 0, 0)}),
        ("08", 2, TOKENS, {0: ("0", 4032, 448), 1: ("1", 4551, 672)}),
        ("11", 1, TOKENS, {0: ("0", 13984, 8768)}),
        (
            "26",
            1,
            ("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total", "blocks"),
            {0: (None, 1000, 600)},
        ),
        (
            "27",
            2,
            ("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total", "blocks"),
            {0: ("0", 1000, 600), 1: ("1", 1500, 700)},
        ),
        ("28", 2, TOKENS, {0: ("0", 1000, 600), 1: ("1", 1500, 700)}),
        ("c01", 1, TOKENS, {0: ("0", 1000, 600)}),
        ("c02", 1, TOKENS, {0: ("0", 1000, 600)}),
        ("c03", 1, TOKENS, {0: ("0", 1000, 600)}),
        ("c05", 1, TOKENS, {0: ("0", 1000, 600)}),
        ("c09", 1, TOKENS, {0: ("0", 1000, 600)}),
        ("c10", 1, TOKENS, {0: (None, 1000, 600)}),
        ("c11", 1, ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "tokens"), {0: ("0", 40, 15)}),
        ("c18_after", 2, TOKENS, {0: ("0", 2000, 1200), 1: ("1", 1000, 600)}),
    ],
)
def test_counters_per_rank(
    file: str, dp_size: int, names: tuple[str, str, str], expected: dict[int, tuple[str | None, int, int]], prom: Prom
) -> None:
    read = snapshot(prom(file), dp_size=dp_size)
    assert (read.queries_metric, read.hits_metric, read.unit) == names
    assert counts(read) == expected


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("18_made_queries_alone", {0: ("0", 0, 0)}),
        ("18_made_queries_and_hits", {0: ("0", 50000, 41000)}),
        ("21", {0: ("0", 220000, 190000)}),
        ("24", {0: ("0", 72, 32)}),
    ],
)
def test_counters_of_texts_of_a_few_lines(
    file: str, expected: dict[int, tuple[str | None, int, int]], prom: Prom
) -> None:
    assert counts(snapshot(prom(file), dp_size=1)) == expected


def test_everything_beside_the_two_counters(prom: Prom) -> None:
    engine = snapshot(prom("02"), dp_size=1).by_rank[0]
    assert (engine.counters.prompt_tokens, engine.counters.prompt_tokens_cached) == (13301, 4576)
    assert (engine.counters.external_queries, engine.counters.external_hits) == (0, 0)
    assert (engine.counters.preemptions, engine.counters.requests, engine.counters.speculative_drafts) == (1, 115, None)
    assert (engine.running, engine.waiting, engine.asleep, engine.kv_cache_usage) == (0, 0, True, 0.0)
    assert sorted(engine.created.values()) == [1795977405.8826323, 1795977405.8826466]
    assert engine.config == CacheConfig(
        block_size=32, prefix_caching=True, kv_cache_size_tokens=524288, num_gpu_blocks=16384
    )
    assert snapshot(prom("02"), dp_size=1).process_starts == (1795977374.05,)
    assert snapshot(prom("01"), dp_size=1).by_rank[0].asleep is False


def test_caching_off_is_told(prom: Prom) -> None:
    config = snapshot(prom("07"), dp_size=1).by_rank[0].config
    assert config is not None and config.prefix_caching is False


def test_several_api_processes_show_no_start_time_and_no_usage_at_first(prom: Prom) -> None:
    read = snapshot(prom("04"), dp_size=2)
    assert read.process_starts == ()
    assert [(c.created, c.kv_cache_usage) for c in read.by_rank.values()] == [({}, None), ({}, None)]


def test_an_external_tier_stays_beside_the_local_one(prom: Prom) -> None:
    engine = snapshot(prom("24"), dp_size=1).by_rank[0]
    assert (
        engine.counters.queries,
        engine.counters.hits,
        engine.counters.external_queries,
        engine.counters.external_hits,
    ) == (72, 32, 40, 12)
    assert engine.kv_cache_usage == 0.25


def test_one_text_a_port_gives_one_snapshot(prom: Prom) -> None:
    both = [prom("09"), prom("10")]
    assert counts(snapshot(*both, dp_size=2)) == {0: ("0", 0, 0), 1: ("1", 0, 0)}
    # The global engine label tells the rank, whatever the order of the texts.
    assert counts(snapshot(*both[::-1], dp_size=2)) == {0: ("0", 0, 0), 1: ("1", 0, 0)}
    assert snapshot(*both, dp_size=2).process_starts == (1795978046.77, 1795978046.78)


def test_ports_that_all_call_their_engine_0_are_ranked_by_position(prom: Prom) -> None:
    read = snapshot(prom("02"), prom("11"), dp_size=2)
    assert counts(read) == {0: ("0", 12789, 4576), 1: ("0", 13984, 8768)}


def test_ports_without_labels_are_ranked_by_position(prom: Prom) -> None:
    assert counts(snapshot(prom("c10"), prom("26").replace("gpu_", ""), dp_size=2)) == {
        0: (None, 1000, 600),
        1: (None, 1000, 600),
    }


def test_two_ports_of_two_engines_each() -> None:
    def port(first: int) -> str:
        return "".join(
            f'vllm:prefix_cache_{name}_total{{engine="{engine}"}} {value + engine}\n'
            for name, value in (("queries", 100), ("hits", 10))
            for engine in (first, first + 1)
        )

    read = snapshot(port(2), port(0), dp_size=4)
    assert counts(read) == {rank: (str(rank), 100 + rank, 10 + rank) for rank in range(4)}
    assert [c.source for c in read.by_rank.values()] == [1, 1, 0, 0]


def test_an_explicit_map_names_the_ranks(prom: Prom) -> None:
    labels = {"engine_10": 0, "dp-2": 2, "0-1": 3, "a": 1}
    assert counts(snapshot(prom("c12"), dp_size=4, engine_label_map=labels)) == {
        0: ("engine_10", 1000, 1000),
        1: ("a", 1, 1),
        2: ("dp-2", 500, 500),
        3: ("0-1", 10, 10),
    }


def test_trailing_digits_name_the_ranks() -> None:
    text = "".join(
        f'vllm:prefix_cache_queries_total{{engine="dp-{n}"}} {n}\nvllm:prefix_cache_hits_total{{engine="dp-{n}"}} 0\n'
        for n in (1, 0, 2)
    )
    assert counts(snapshot(text, dp_size=3)) == {n: (f"dp-{n}", n, 0) for n in range(3)}


def test_series_of_several_processes_add_up() -> None:
    text = (
        'vllm:prefix_cache_queries_total{engine="0",pid="1"} 100\n'
        'vllm:prefix_cache_queries_total{engine="0",pid="2"} 7\n'
        'vllm:prefix_cache_hits_total{engine="0",pid="1"} 10\nvllm:prefix_cache_hits_total{engine="0",pid="2"} 0\n'
    )
    assert counts(snapshot(text, dp_size=1)) == {0: ("0", 107, 10)}


def _usage(texts: list[str], dp_size: int) -> dict[int, float | None]:
    return {rank: load.kv_cache_usage for rank, load in read_engine_loads(texts, dp_size=dp_size).items()}


def test_kv_cache_usage_of_several_processes_is_the_largest(prom: Prom) -> None:
    assert _usage([prom("12")], 1) == {0: 0.625}


def test_kv_cache_usage_needs_no_counters_and_no_complete_ranks(prom: Prom) -> None:
    assert _usage([prom("25")], 1) == {0: 0.25}
    assert _usage([prom("08")], 2) == {0: 0.0, 1: 0.0}
    assert _usage([prom("04")], 2) == {}
    assert _usage(['vllm:kv_cache_usage_perc{engine="1"} 0.5\n'], 2) == {1: 0.5}
    assert _usage([prom("06")], 2) == {}


SGLANG = """\
# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
sglang:prompt_tokens_total{engine_type="unified",model_name="m",tp_rank="0",is_streaming="true"} 900.0
sglang:prompt_tokens_total{engine_type="unified",model_name="m",tp_rank="0",is_streaming="false"} 100.0
sglang:cached_tokens_total{engine_type="unified",model_name="m",tp_rank="0",cache_source="device"} 600.0
sglang:cached_tokens_total{engine_type="unified",model_name="m",tp_rank="0",cache_source="host"} 50.0
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.31
sglang:cache_hit_rate{engine_type="unified",model_name="m",tp_rank="0"} 0.93
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 2.0
"""


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
def test_sglang_counts_prompt_and_cached_tokens(prefix: str) -> None:
    read = snapshot(SGLANG.replace("sglang:", prefix), dp_size=1)
    engine = read.by_rank[0]
    assert (read.family, read.unit, read.queries_metric) == (
        "sglang",
        "tokens",
        f"{prefix}prompt_tokens_total",
    )
    assert (engine.counters.queries, engine.counters.hits, engine.counters.external_hits) == (1000, 600, 50)
    assert (engine.kv_cache_usage, engine.running) == (0.31, 2)


def test_sglang_counts_a_request_of_unknown_sources_as_a_local_one() -> None:
    # metrics_collector.py of SGLang: a request without details is counted under "total", one with details is not.
    prompts = 'sglang:prompt_tokens_total{model_name="m"} 1000\n'
    total = 'sglang:cached_tokens_total{model_name="m",cache_source="total"} 300\n'
    split = (
        'sglang:cached_tokens_total{model_name="m",cache_source="device"} 400\n'
        'sglang:cached_tokens_total{model_name="m",cache_source="storage_mooncake"} 20\n'
    )
    engine = snapshot(prompts + total, dp_size=1).by_rank[0]
    assert (engine.counters.hits, engine.counters.external_hits) == (300, None)
    engine = snapshot(prompts + total + split, dp_size=1).by_rank[0]
    assert (engine.counters.hits, engine.counters.external_hits) == (700, 20)


def test_sglang_shows_the_cached_series_only_above_0(prom: Prom) -> None:
    read = snapshot(prom("15"), dp_size=1)
    engine = read.by_rank[0]
    assert (engine.counters.queries, engine.counters.hits, engine.hits_shown) == (120000, 0, False)
    assert read.hits_metric == "sglang:cached_tokens_total"
    assert read.model_names == ("/models/made/3B/",)


def test_sglang_counts_for_all_ranks_together_unless_labelled() -> None:
    assert list(snapshot(SGLANG, dp_size=4).by_rank) == [NO_RANK]
    text = 'sglang:prompt_tokens_total{dp_rank="1"} 5\nsglang:prompt_tokens_total{dp_rank="0"} 7\n'
    assert {r: c.counters.queries for r, c in snapshot(text, dp_size=2).by_rank.items()} == {0: 7, 1: 5}


def test_lmdeploy_counts_prompt_and_cached_tokens() -> None:
    text = 'lmdeploy:prompt_tokens_total{engine="0"} 10\nlmdeploy:cached_tokens_total{engine="0"} 4\n'
    read = snapshot(text, dp_size=1)
    assert (read.family, counts(read)) == ("lmdeploy", {0: ("0", 10, 4)})


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_", "vllm_"])
def test_other_spellings_of_vllms_prefix(prefix: str, prom: Prom) -> None:
    assert counts(snapshot(prom("08").replace("vllm:", prefix), dp_size=2)) == {
        0: ("0", 4032, 448),
        1: ("1", 4551, 672),
    }


def test_the_models_series_are_chosen_among_several() -> None:
    text = "".join(
        f'vllm:prefix_cache_queries_total{{engine="0",model_name="{m}"}} {q}\n'
        f'vllm:prefix_cache_hits_total{{engine="0",model_name="{m}"}} {h}\n'
        for m, q, h in (("a", 100, 50), ("b", 7, 3))
    )
    assert counts(snapshot(text, dp_size=1, model="b")) == {0: ("0", 7, 3)}
    with pytest.raises(SnapshotError) as refused:
        snapshot(text, dp_size=1, model="c", where=["after"])
    assert str(refused.value) == (
        "after: the counters of several models are shown (a, b), 'c' is not among them\n"
        "    set service.model to one of them, or use the metrics URL of the server itself"
    )


def test_the_unit_is_unknown_where_neither_help_nor_labels_tell(prom: Prom) -> None:
    bare = re.sub("(?m)^#.*\n", "", prom("27"))
    assert snapshot(bare, dp_size=2).unit == "unknown"
    tokens = prom("27").replace("blocks", "tokens")
    assert snapshot(tokens, dp_size=2).unit == "tokens"


ONE_ENGINE = " (allowed: one engine)"
TWO_RANKS = " (allowed: one engine for each of the ranks 0 to 1)"
GAUGE = (
    "only a momentary hit-rate gauge ({}*cache_hit_rate) is shown; no counters of queries and hits (allowed: vLLM V1 "
    "from 0.7.3 on, or SGLang with token counters)\n"
    "    a gauge cannot say what one run hit; use a server version with counters (vLLM: the V1 engine)"
)
NO_STATS = "    start vLLM without --disable-log-stats, SGLang with --enable-metrics; or check the metrics URL"
TWICE = "    two answers may have been written into one file; save one answer a file"
COUNTER_RULE = "a token counter is a whole number of at least 0"
PORTS = "    with one port for each rank give one text for each; else set service.dp_size or service.engine_label_map"


@pytest.mark.parametrize(
    ("file", "dp_size", "message"),
    [
        (
            "05",
            1,
            f"m: 2 engines are shown (0, 1), service.dp_size is 1{ONE_ENGINE}\n"
            "    set service.dp_size to 2, or use the metrics URL of the server under test alone",
        ),
        ("02", 2, f"m: rank 1 of 2 not found among the engine labels (0){TWO_RANKS}\n{PORTS}"),
        ("10", 2, f"m: rank 0 of 2 not found among the engine labels (1){TWO_RANKS}\n{PORTS}"),
        (
            "06",
            1,
            f"m: no metric of vLLM, SGLang or LMDeploy is shown (the Python process's own are)\n{NO_STATS}",
        ),
        ("25", 1, "m: " + GAUGE.format("vllm:")),
        (
            "c04",
            1,
            f"m line 1: vllm:prefix_cache_queries_total is nan; {COUNTER_RULE}\n"
            f"m line 2: vllm:prefix_cache_hits_total is inf; {COUNTER_RULE}",
        ),
        (
            "c07",
            1,
            "m line 3: vllm:prefix_cache_queries_total has the value 5 here and 1000 in line 1, with the same labels\n"
            f"{TWICE}\n"
            "m line 4: vllm:prefix_cache_hits_total has the value 3 here and 600 in line 2, with the same labels\n"
            f"{TWICE}",
        ),
        (
            "c10",
            2,
            f"m: the engine labels ((no label)) do not tell the data-parallel ranks{TWO_RANKS}\n"
            "    the metrics need an engine label, or one metrics text for each rank, in the order of the ranks",
        ),
        (
            "c12",
            4,
            "m: the engine labels (engine_10, dp-2, 0-1, a) do not tell the data-parallel ranks (allowed: one engine "
            "for each of the ranks 0 to 3)\n"
            '    say which is which in service.engine_label_map, for example {"LABEL": 0}',
        ),
        (
            "c16",
            1,
            "m: not a Prometheus text: it begins with "
            "'<html><head><title>502 Bad Gateway</title></head><body>nginx…'\n"
            "    check the metrics URL; an error page of a proxy looks like this",
        ),
        ("c17", 1, "m: the text is empty\n    save the whole answer of the server's /metrics"),
        ("c18_other", 2, f"m: rank 1 of 2 not found among the engine labels (0){TWO_RANKS}\n{PORTS}"),
        (
            "c20",
            1,
            "m: no vllm:prefix_cache_queries_total is shown, so there is nothing to count with\n"
            "    save the whole answer of /metrics; vLLM shows the counters from 0.7.3 (V1 engine) on",
        ),
    ],
)
def test_unusable_texts_say_what_is_needed(file: str, dp_size: int, message: str, prom: Prom) -> None:
    with pytest.raises(SnapshotError) as refused:
        snapshot(prom(file), dp_size=dp_size, where=["m"])
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            "12",
            "m: no vllm:prefix_cache_queries_total is shown, so there is nothing to count with\n"
            "    save the whole answer of /metrics; vLLM shows the counters from 0.7.3 (V1 engine) on",
        ),
        ("13", "m: " + GAUGE.format("ray_vllm:")),
        ("19", f"m: no metric of vLLM, SGLang or LMDeploy is shown\n{NO_STATS}"),
    ],
)
def test_unusable_texts_of_other_engines_say_what_is_needed(file: str, message: str, prom: Prom) -> None:
    with pytest.raises(SnapshotError) as refused:
        snapshot(prom(file), dp_size=1, where=["m"])
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'vllm:prefix_cache_queries_total{engine="0"} 5\n',
            "m: vllm:prefix_cache_queries_total is shown for engine 0, vllm:prefix_cache_hits_total is not\n"
            "    save the whole answer of the server's /metrics",
        ),
        (
            'vllm:prefix_cache_queries_total{engine="0"} 5.5\nvllm:prefix_cache_hits_total{engine="0"} -1\n',
            f"m line 1: vllm:prefix_cache_queries_total is 5.5; {COUNTER_RULE}\n"
            f"m line 2: vllm:prefix_cache_hits_total is -1; {COUNTER_RULE}",
        ),
    ],
)
def test_counters_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        snapshot(text, dp_size=1, where=["m"])
    assert str(refused.value) == message


def test_another_servers_metrics_are_refused_when_the_scenario_names_one(prom: Prom) -> None:
    with pytest.raises(SnapshotError) as refused:
        snapshot(prom("01"), dp_size=1, engine="sglang", where=["m"])
    assert str(refused.value) == (
        'm: these are metrics of vllm, not of sglang\n    set service.engine to "auto", or check the metrics URL'
    )


def test_ports_of_different_versions_are_refused(prom: Prom) -> None:
    with pytest.raises(SnapshotError) as refused:
        snapshot(prom("09"), prom("26"), dp_size=2, where=["a", "b"])
    assert str(refused.value) == (
        "a, b: the texts show different counters: vllm:gpu_prefix_cache_queries_total; "
        "vllm:prefix_cache_queries_total\n"
        "    all ports must run the same server version"
    )


def test_problems_of_all_texts_come_at_once(prom: Prom) -> None:
    with pytest.raises(SnapshotError) as refused:
        snapshot(prom("c16"), prom("c17"), dp_size=2, where=["a", "b"])
    assert [(p.code, p.where) for p in refused.value.problems] == [
        ("SNAPSHOT_NOT_METRICS", "a"),
        ("SNAPSHOT_EMPTY", "b"),
    ]


def test_64_ranks_are_read(prom: Prom) -> None:
    lines = []
    for line in prom("08").split("\n"):
        engines = range(1, 64) if 'engine="1"' in line else (1,)
        lines += [line.replace('engine="1"', f'engine="{engine}"') for engine in engines]
    text = "\n".join(lines)
    assert len(text) > 2_000_000
    read = snapshot(text, dp_size=64)
    assert {rank: c.counters.queries for rank, c in read.by_rank.items()} == {0: 4032} | dict.fromkeys(
        range(1, 64), 4551
    )


def test_queues_are_read_beside_the_usage() -> None:
    text = (
        'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:num_requests_running{engine="0"} 7\n'
        'vllm:num_requests_waiting{engine="0"} 3\nvllm:num_requests_running{engine="1"} 1\n'
    )
    assert read_engine_loads([text], dp_size=2) == {0: EngineLoad(0.5, 7.0, 3.0), 1: EngineLoad(None, 1.0, None)}
