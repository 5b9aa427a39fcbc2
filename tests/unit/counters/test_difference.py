"""Two snapshots to a difference, or to the reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.doubles.metric_texts import engine, snapshot, vllm_text

from ais_bench_prefix_cache.counters.difference import CounterDelta, difference
from ais_bench_prefix_cache.foundation.errors import SnapshotError

Prom = Callable[[str], str]


def between(baseline: str, after: str, dp_size: int = 1) -> CounterDelta:
    return difference(snapshot(baseline, dp_size=dp_size), snapshot(after, dp_size=dp_size))


def refusal(baseline: str, after: str, dp_size: int = 1) -> str:
    with pytest.raises(SnapshotError) as refused:
        between(baseline, after, dp_size)
    return str(refused.value)


def test_two_engines_between_two_real_snapshots(prom: Prom) -> None:
    # 04 is all zeros; 05 shows 4160 / 448 and 4423 / 672 (grep).
    delta = between(prom("04"), prom("05"), 2)
    assert {rank: (d.queries, d.hits) for rank, d in delta.by_rank.items()} == {
        0: (4160, 448),
        1: (4423, 672),
    }
    assert (delta.queries, delta.hits, delta.hit_rate) == (8583, 1120, 1120 / 8583)
    assert (
        delta.total(lambda counted: counted.prompt_tokens),
        delta.total(lambda counted: counted.prompt_tokens_cached),
    ) == (8583, 1120)
    assert (
        delta.total(lambda counted: counted.preemptions),
        delta.total(lambda counted: counted.speculative_drafts),
    ) == (0, None)
    assert (delta.unit, delta.block_size, delta.queries_source) == ("tokens", 32, "queries_counter")


def test_hits_that_appear_in_between_began_at_0(prom: Prom) -> None:
    delta = between(prom("18_made_queries_alone"), prom("18_made_queries_and_hits"))
    assert (delta.queries, delta.hits) == (50000, 41000)


def test_a_rank_without_queries_has_no_rate() -> None:
    delta = between(vllm_text(engine(0, 0), engine(5, 1)), vllm_text(engine(100, 64), engine(5, 1)), 2)
    assert (delta.by_rank[0].hit_rate, delta.by_rank[1].hit_rate, delta.hit_rate) == (0.64, None, 0.64)


def test_an_optional_counter_that_appears_in_between_began_at_0() -> None:
    delta = between(vllm_text(engine(0, 0)), vllm_text(engine(100, 64, num_preemptions=3)))
    assert delta.total(lambda counted: counted.preemptions) == 3


def test_ports_in_another_order_are_the_same_engines(prom: Prom) -> None:
    early, late = prom("09"), prom("10")
    moved = late.replace(
        'prefix_cache_queries_total{engine="1",model_name="tiny"} 0.0',
        'prefix_cache_queries_total{engine="1",model_name="tiny"} 96.0',
    )
    assert moved != late
    delta = difference(snapshot(early, late, dp_size=2), snapshot(moved, early, dp_size=2))
    assert {rank: d.queries for rank, d in delta.by_rank.items()} == {0: 0, 1: 96}


def test_blocks_become_tokens_with_the_servers_block_size(prom: Prom) -> None:
    config = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="True"} 1.0\n'
    early = prom("26") + config
    late = re.sub(r" 1000\.0", " 1300.0", re.sub(r" 600\.0", " 700.0", early))
    delta = between(early, late)
    # Blocks leave out each prompt's incomplete last block: 300 and 100 blocks of 16.
    assert (delta.queries, delta.hits, delta.unit, delta.queries_source) == (4800, 1600, "blocks", "blocks")
    prompt_tokens = 'vllm:prompt_tokens_total{model_name="m"} %d\n'
    delta = between(early + prompt_tokens % 50, late + prompt_tokens % 5000)
    assert (delta.queries, delta.hits, delta.queries_source) == (4950, 1600, "prompt_tokens_counter")


def test_blocks_without_a_block_size_are_refused(prom: Prom) -> None:
    late = re.sub(r" 1000\.0", " 1300.0", prom("26"))
    assert refusal(prom("26"), late) == (
        "vllm:gpu_prefix_cache_queries_total: this server counts cache blocks, not tokens (vLLM 0.7.3 to 0.8.5 do), "
        "and does not show its block size\n"
        "    the text must hold vllm:cache_config_info with block_size; or use vLLM 0.9.2 or later"
    )


def test_the_prompt_tokens_tell_blocks_from_tokens_where_nothing_else_does(prom: Prom) -> None:
    early = re.sub("(?m)^#.*\n", "", prom("27"))
    late = early.replace("} 1000.0", "} 1160.0").replace("} 600.0", "} 664.0")
    assert late != early
    assert refusal(early, late, 2) == (
        "vllm:gpu_prefix_cache_queries_total: vLLM 0.7.3 to 0.8.5 counts blocks under this name, 0.9.0 and 0.9.1 "
        "tokens; the text does not tell which\n"
        "    keep the # HELP lines or vllm:prompt_tokens_total in the saved text"
    )
    prompt_tokens = 'vllm:prompt_tokens_total{{engine="0"}} {}\nvllm:prompt_tokens_total{{engine="1"}} 0\n'
    tokens = between(early + prompt_tokens.format(0), late + prompt_tokens.format(160), 2)
    assert (tokens.queries, tokens.hits, tokens.unit) == (160, 64, "tokens")
    info = 'vllm:cache_config_info{block_size="16"} 1\n'
    blocks = between(early + info + prompt_tokens.format(0), late + info + prompt_tokens.format(2600), 2)
    assert (blocks.queries, blocks.hits, blocks.unit) == (2600, 1024, "blocks")


def test_sglang_between_two_texts() -> None:
    early = 'sglang:prompt_tokens_total{model_name="m"} 100\n'
    late = (
        'sglang:prompt_tokens_total{model_name="m"} 300\n'
        'sglang:cached_tokens_total{model_name="m",cache_source="device"} 120\n'
        'sglang:cached_tokens_total{model_name="m",cache_source="storage"} 8\n'
    )
    delta = between(early, late)
    assert (delta.queries, delta.hits, delta.total(lambda counted: counted.external_hits)) == (200, 120, 8)


def test_falling_counters_are_refused(prom: Prom) -> None:
    hint = "\n    the server was restarted in between, or the two files are swapped"
    assert refusal(prom("c13_reset_between_baseline"), prom("c13_reset_between_after")) == (
        f'rank 0: vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} fell from 1000 to 10{hint}\n'
        f'rank 0: vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} fell from 600 to 4{hint}'
    )


RESTART = "\n    both snapshots must come from one life of the server: run again without a restart in between"


def test_a_restart_behind_larger_values_is_refused(prom: Prom) -> None:
    baseline, after = prom("c14_restart_masked_baseline"), prom("c14_restart_masked_after")
    assert refusal(baseline, after) == (
        "process_start_time_seconds: the snapshots are of different processes: it was restarted in between, or "
        "another server answered (it was 1700000000.000, it is "
        f"1700000990.000){RESTART}"
    )
    no_start = re.sub("(?m)^process.*\n", "", baseline), re.sub("(?m)^process.*\n", "", after)
    assert refusal(*no_start) == (
        'rank 0: vllm:prefix_cache_queries_created{engine="0",model_name="m"} changed: what it counts was created anew '
        "between the snapshots, at 1700000000.000, then at "
        f"1700000990.000{RESTART}"
    )


def test_no_queries_are_no_data(prom: Prom) -> None:
    text = (
        "vllm:prefix_cache_queries_total: no queries between the snapshots (it is {} in both); that is no data, not a "
        "hit rate of 0\n    {}"
    )
    assert refusal(prom("02"), prom("02")) == text.format(
        12789,
        "no request was counted between the snapshots: save the second one after the requests, from the same server",
    )
    assert refusal(prom("07"), prom("07")) == text.format(
        0, "prefix caching is off (cache_config_info says so): start the server with --enable-prefix-caching"
    )


def test_more_hits_than_queries_are_refused() -> None:
    assert refusal(vllm_text(engine(100, 0)), vllm_text(engine(164, 80))) == (
        "rank 0: 80 hits were counted for 64 queries\n"
        "    save both snapshots while no request is under way, each in one answer"
    )


def test_another_server_is_refused(prom: Prom) -> None:
    same = "\n    both snapshots must come from the same server process"
    assert refusal(prom("26"), prom("c10")) == (
        "baseline and after: the baseline shows vllm:gpu_prefix_cache_queries_total, the other "
        f"vllm:prefix_cache_queries_total{same}"
    )
    assert refusal(vllm_text(engine(0, 0)), vllm_text(engine(9, 0)).replace('"m"', '"n"')) == (
        f"baseline and after: the baseline is of model m, the other of n{same}"
    )


def test_other_engines_are_refused() -> None:
    assert refusal(vllm_text(engine(0, 0), labels=("0",)), vllm_text(engine(9, 0), labels=("1",))) == (
        "baseline and after: the baseline shows the engines 0, the other 1\n"
        "    give the texts of several ports in the same order both times"
    )


FRESH = 'sglang:num_running_reqs{dp_rank="0"} 0\nsglang:num_running_reqs{dp_rank="1"} 0\n'


def test_a_fresh_sglang_server_began_at_0() -> None:
    after = FRESH + "sglang:prompt_tokens_total 2340\nsglang:cached_tokens_total 1056\n"
    whole = between(FRESH, after, 2)
    assert (whole.whole_server, whole.queries, whole.hits) == (True, 2340, 1056)
    ranks = after + "".join(
        f'sglang:prefill_effective_tokens_total{{dp_rank="{rank}",mode="{mode}"}} {tokens}\n'
        for rank, mode, tokens in ((0, "input", 997), (0, "device_hit", 816), (1, "input", 288), (1, "device_hit", 240))
    )
    delta = between(FRESH, ranks, 2)
    assert {rank: (rise.queries, rise.hits) for rank, rise in delta.by_rank.items()} == {0: (1813, 816), 1: (528, 240)}
    assert delta.server_hits == 1056
    assert "this server shows its counters once a request has finished" in refusal(FRESH, FRESH, 2)


def worker(queries: int, hits: int, **labels: str) -> str:
    shown = ",".join(f'{key}="{value}"' for key, value in {"engine": "0", **labels}.items())
    return f"vllm:prefix_cache_queries_total{{{shown}}} {queries}\nvllm:prefix_cache_hits_total{{{shown}}} {hits}\n"


@pytest.mark.parametrize(
    ("baseline", "after", "code"),
    [
        # In each the sums rise by 1,000 and 608.
        (worker(0, 0, pid="1") + worker(700, 100, pid="2"), worker(1700, 708, pid="1") + worker(0, 0, pid="2"), "FELL"),
        (worker(0, 0, pid="1") + worker(700, 100, pid="2"), worker(1700, 708, pid="1"), "SERIES_CHANGED"),
        (worker(5000, 3000, WorkerId="a"), worker(6000, 3608, WorkerId="b"), "SERIES_CHANGED"),
        (worker(0, 0, pid="1"), worker(0, 0, pid="1") + worker(1000, 608, pid="2"), "SERIES_CHANGED"),
    ],
)
def test_a_worker_s_restart_does_not_hide_in_the_sums(baseline: str, after: str, code: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        between(baseline, after)
    assert {problem.code for problem in refused.value.problems} == {
        "SNAPSHOT_COUNTER_FELL" if code == "FELL" else "SNAPSHOT_SERIES_CHANGED"
    }
    assert all('engine="0"' in problem.message for problem in refused.value.problems)


def test_a_source_that_occurs_first_between_the_looks_is_no_new_worker() -> None:
    early = 'sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 100\n'
    late = early + (
        'sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 900\n'
        'sglang:cached_tokens_total{cache_source="device",model_name="m"} 64\n'
    )
    delta = between(early, late)
    assert (delta.queries, delta.hits) == (900, 64)
