"""Which series of one text belong together, and what an engine's numbers are then."""

from __future__ import annotations

import pytest
from tests.doubles.metric_texts import snapshot

from ais_bench_prefix_cache.counters.exposition import parse_exposition
from ais_bench_prefix_cache.counters.names import is_read
from ais_bench_prefix_cache.counters.reader import EngineCounters, ReadText, Series, read_text
from ais_bench_prefix_cache.foundation.errors import SnapshotError


def read(text: str, ranks: int = 1) -> ReadText:
    return read_text(parse_exposition(text, is_read, "m"), "m", ranks=ranks)


def vllm(*series: tuple[str, int, int]) -> str:
    """Queries and hits of each label list."""
    return "".join(
        f"vllm:prefix_cache_queries_total{{{labels}}} {queries}\nvllm:prefix_cache_hits_total{{{labels}}} {hits}\n"
        for labels, queries, hits in series
    )


def counted(text: ReadText) -> dict[str | None, tuple[int, int]]:
    return {engine.label: (engine.counters.queries, engine.counters.hits) for engine in text.engines}


def test_counters_are_subtracted_field_by_field_and_what_appears_began_at_0() -> None:
    early = EngineCounters(100, 10, prompt_tokens=120)
    late = EngineCounters(164, 58, prompt_tokens=190, preemptions=3)
    assert late - early == EngineCounters(64, 48, prompt_tokens=70, preemptions=3)
    assert (late - early).hit_rate == 0.75
    assert (late - late).hit_rate is None


def test_processes_of_one_engine_add_up() -> None:
    assert counted(read(vllm(('engine="0",pid="1"', 100, 10), ('engine="0",pid="2"', 7, 0)))) == {"0": (107, 10)}


def test_every_series_is_kept_with_its_whole_label_set() -> None:
    (engine,) = read(vllm(('engine="0",pid="1"', 100, 10), ('engine="0",pid="2"', 7, 0))).engines
    assert {str(series): value for series, value in engine.series.items() if "queries" in series.name} == {
        'vllm:prefix_cache_queries_total{engine="0",pid="1"}': 100,
        'vllm:prefix_cache_queries_total{engine="0",pid="2"}': 7,
    }


@pytest.mark.parametrize("label", ["WorkerId", "worker_addr", "pod", "instance", "deployment", "anything"])
def test_other_labels_that_differ_within_one_engine_label_tell_engines_apart(label: str) -> None:
    text = read(vllm((f'engine="0",{label}="a"', 100, 10), (f'engine="0",{label}="b"', 7, 0)))
    assert counted(text) == {f"0@{label}=a": (100, 10), f"0@{label}=b": (7, 0)}
    with pytest.raises(SnapshotError) as refused:
        snapshot(vllm((f'engine="0",{label}="a"', 100, 10), (f'engine="0",{label}="b"', 7, 0)), where=["m"])
    assert str(refused.value) == (
        f"m: 2 engines are shown (0@{label}=a, 0@{label}=b), service.dp_size is 1 (allowed: one engine)\n"
        "    set service.dp_size to 2, or use the metrics URL of the server under test alone"
    )


def test_labels_that_differ_from_engine_to_engine_change_nothing() -> None:
    assert counted(read(vllm(('engine="0",host="a"', 100, 10), ('engine="1",host="b"', 7, 0)))) == {
        "0": (100, 10),
        "1": (7, 0),
    }


def test_workers_told_apart_can_be_mapped_to_ranks() -> None:
    text = vllm(('engine="0",pod="a1"', 100, 10), ('engine="0",pod="b0"', 7, 0))
    with pytest.raises(SnapshotError, match="do not tell the data-parallel ranks"):
        snapshot(text, dp_size=2)
    mapped = snapshot(text, dp_size=2, engine_label_map={"0@pod=a1": 1, "0@pod=b0": 0})
    assert {rank: engine.counters.queries for rank, engine in mapped.by_rank.items()} == {0: 7, 1: 100}


@pytest.mark.parametrize(
    ("label", "prefill", "decode"),
    [
        ("role", "prefill", "decode"),
        ("engine_type", "prefill", "decode"),
        ("dynamo_component", "prefill", "backend"),
        ("kv_role", "kv_producer", "kv_consumer"),
    ],
)
def test_of_two_roles_the_prefill_side_counts_the_prompts(label: str, prefill: str, decode: str) -> None:
    text = read(vllm((f'engine="0",{label}="{decode}"', 1000, 0), (f'engine="0",{label}="{prefill}"', 1000, 608)))
    assert counted(text) == {"0": (1000, 608)}
    assert text.notes == (
        f"the counters of the role {prefill} are read, which is where prompts are counted; also shown: {decode}",
    )


def test_the_hits_of_the_decode_side_are_never_added() -> None:
    text = read(
        'sglang:prompt_tokens_total{engine_type="prefill",worker_addr="a"} 2023\n'
        'sglang:prompt_tokens_total{engine_type="decode",worker_addr="b"} 2023\n'
        'sglang:cached_tokens_total{cache_source="device",engine_type="prefill",worker_addr="a"} 1984\n'
        'sglang:cached_tokens_total{cache_source="device",engine_type="decode",worker_addr="b"} 3968\n'
    )
    assert counted(text) == {None: (2023, 1984)}


def test_roles_that_do_not_tell_who_counts_are_refused() -> None:
    with pytest.raises(SnapshotError) as refused:
        read(vllm(('role="prefill"', 1, 0), ('role="unified"', 1, 0)))
    assert str(refused.value) == (
        "m: the label role tells the roles prefill, unified, and not which of them counts the prompts (allowed: one "
        "prefill side, and decode sides beside it)\n    give the metrics URL of the prefill side alone"
    )
    with pytest.raises(SnapshotError, match="only the decode side is shown"):
        read(vllm(('role="decode"', 1, 0)))


@pytest.mark.parametrize("prefix", ["kserve_vllm:", "ray_vllm_", "vllm.", "a.b_vllm:"])
def test_the_prefix_of_the_names_is_reported(prefix: str) -> None:
    text = read(vllm(('engine="0"', 1000, 600)).replace("vllm:", prefix))
    assert (counted(text), text.prefix) == ({"0": (1000, 600)}, prefix)
    assert text.notes == (f"the metric names begin with {prefix}",)
    assert text.queries_metric == f"{prefix}prefix_cache_queries_total"


def test_quoted_names_are_read() -> None:
    text = read('{"vllm:prefix_cache_queries_total",engine="0"} 9\n{"vllm:prefix_cache_hits_total",engine="0"} 4\n')
    assert counted(text) == {"0": (9, 4)}


def test_what_is_shown_of_labels_steers_no_terminal() -> None:
    steering = "a\x1b[31m\u202eb"
    text = read(vllm((f'engine="{steering}",pod="{steering}"', 1, 0), (f'engine="{steering}",pod="x"', 1, 0)))
    assert [engine.label for engine in text.engines] == ["ab@pod=ab", "ab@pod=x"]
    assert all(str(series).isprintable() for engine in text.engines for series in engine.series)
    for roles in ((f'role="{steering}"', 'role="prefill"'), (f'model_name="{steering}"', 'model_name="x"')):
        with pytest.raises(SnapshotError) as refused:
            read(vllm(*((labels, 1, 0) for labels in roles)))
        assert refused.value.problems[0].message.isprintable()


def test_created_times_are_kept_series_by_series() -> None:
    text = vllm(('engine="0",pid="1"', 5, 1), ('engine="0",pid="2"', 5, 1)) + (
        'vllm:prefix_cache_queries_created{engine="0",pid="1"} 15\n'
        'vllm:prefix_cache_queries_created{engine="0",pid="2"} 20\n'
    )
    (engine,) = read(text).engines
    name = "vllm:prefix_cache_queries_created"
    assert engine.created == {
        Series(name, (("engine", "0"), ("pid", "1"))): 15.0,
        Series(name, (("engine", "0"), ("pid", "2"))): 20.0,
    }


def test_the_first_shard_of_an_engine_counts_for_all() -> None:
    text = "".join(f'sglang:prompt_tokens_total{{tp_rank="{rank}"}} 1000\n' for rank in range(4))
    assert counted(read(text)) == {None: (1000, 0)}


def test_with_dp_attention_each_rank_has_shards_of_its_own() -> None:
    """Two ranks of two shards, of which every one writes: the first of each rank counts for it."""
    text = "".join(
        f'sglang:prefill_effective_tokens_total{{dp_rank="{shard // 2}",tp_rank="{shard}",mode="input"}} {tokens}\n'
        for shard, tokens in enumerate((100, 100, 7, 7))
    )
    assert counted(read(text, ranks=2)) == {"0": (100, 0), "1": (7, 0)}


def test_sglang_s_priorities_are_of_one_engine() -> None:
    """``--enable-priority-scheduling`` counts by priority; the empty one is where a series begins."""
    text = "".join(f'sglang:prompt_tokens_total{{priority="{p}"}} {n}\n' for p, n in (("", 0), ("1", 40), ("2", 2)))
    assert counted(read(text)) == {None: (42, 0)}


@pytest.mark.parametrize("label", ["worker_type", "llm_d_ai_role", "pod"])
def test_labels_of_any_name_tell_the_sides_where_all_their_values_name_one(label: str) -> None:
    both = vllm((f'{label}="x-prefill-0"', 100, 60), (f'{label}="x-decode-0"', 100, 0), (f'{label}="x-decode-1"', 9, 0))
    text = read(both)
    assert counted(text) == {None: (100, 60)}
    assert text.roles == ("x-prefill-0", "x-decode-0", "x-decode-1")
    # Two prefill workers are two engines; a third value beside them tells no side.
    two = read(both + vllm((f'{label}="x-prefill-1"', 5, 1)))
    assert counted(two) == {f"{label}=x-prefill-0": (100, 60), f"{label}=x-prefill-1": (5, 1)}
    assert two.roles[0] == "x-prefill-0 and x-prefill-1"
    assert len(read(both + vllm((f'{label}="x"', 5, 1))).engines) == 4


def test_counters_under_a_second_prefix_are_named_and_not_read() -> None:
    text = read(vllm(('a="b"', 100, 60)) + vllm(('a="b"', 7, 3)).replace("vllm:", "ray_vllm_"))
    assert counted(text) == {None: (100, 60)}
    assert text.notes == ("the counters whose names begin with vllm: are read, not those that begin with ray_vllm_",)


FRESH = 'sglang:num_running_reqs{dp_rank="0",model_name="m"} 0\nsglang:num_running_reqs{dp_rank="1",model_name="m"} 0\n'
COUNTED = FRESH + "".join(
    f'sglang:prefill_effective_tokens_total{{dp_rank="{rank}",mode="{mode}",model_name="m"}} {tokens}\n'
    for rank, mode, tokens in (
        (0, "input", 997),
        (0, "device_hit", 816),
        (1, "input", 288),
        (1, "device_hit", 240),
        (1, "host_hit", 7),
    )
)


def test_a_fresh_sglang_server_counted_0() -> None:
    text = read(FRESH, ranks=2)
    assert (text.fresh, counted(text)) == (True, {"0": (0, 0), "1": (0, 0)})
    alone = read('sglang:num_running_reqs{model_name="m"} 0\n')
    assert (alone.fresh, counted(alone)) == (True, {None: (0, 0)})


def test_sglang_s_ranks_behind_one_entry_point_are_counted_by_its_schedulers() -> None:
    """The numbers of a real SGLang 0.5.23 with --dp-size 2, and some from a host tier."""
    totals = 'sglang:prompt_tokens_total{model_name="m"} 2340\nsglang:cached_tokens_total{model_name="m"} 1056\n'
    text = read(COUNTED + totals, ranks=2)
    assert counted(text) == {"0": (1813, 816), "1": (535, 240)}
    assert [engine.counters.external_hits for engine in text.engines] == [None, 7]
    assert (text.server_hits, text.queries_metric) == (1056, "sglang:prefill_effective_tokens_total")
    assert counted(read(COUNTED + totals, ranks=1)) == {None: (2340, 1056)}


def test_sglang_before_these_counters_shows_only_the_whole_server() -> None:
    text = read(FRESH + 'sglang:prompt_tokens_total{model_name="m"} 2340\n', ranks=2)
    assert counted(text) == {None: (2340, 0)}


def test_sglang_tells_its_pages_and_its_capacity() -> None:
    text = read('sglang:page_size{model_name="m"} 16\nsglang:max_total_num_tokens{model_name="m"} 65536\n' + FRESH)
    config = text.engines[0].config
    assert config is not None and (config.block_size, config.kv_cache_size_tokens) == (16, 65536)
