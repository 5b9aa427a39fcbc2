"""The parser of metric texts, held against prometheus_client's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ais_bench_prefix_cache.counters.exposition import Sample, decode_exposition, parse_exposition
from ais_bench_prefix_cache.foundation.errors import SnapshotError

Prom = Callable[[str], str]
TEXTS = ("01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "25", "26", "27", "28")
COUNTERS = {"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"}
CORNER_CASES = ("c01", "c02", "c03", "c04", "c05", "c10", "c11", "c12", "c14_restart_masked_after", "c18_after", "c20")


def every(name: str) -> bool:
    """Wants every name."""
    return True


def series(samples: dict[str, tuple[Sample, ...]]) -> set[tuple[str, frozenset[tuple[str, str]], str]]:
    return {(s.name, frozenset(s.labels.items()), repr(s.value)) for found in samples.values() for s in found}


@pytest.mark.parametrize(
    "file",
    [*TEXTS, *CORNER_CASES],
)
def test_reads_the_same_samples_as_prometheus_client(file: str, prom: Prom) -> None:
    text = prom(file)
    expected = {
        (sample.name, frozenset(sample.labels.items()), repr(float(sample.value)))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert series(dict(parse_exposition(text, every, "t").samples)) == expected


def test_a_byte_order_mark_is_read_over(prom: Prom) -> None:
    text = prom("c06")
    assert text.startswith("\ufeff") and not text.endswith("\n")
    found = parse_exposition(text + "\n", COUNTERS.__contains__, "t").samples
    assert [found[name][0].value for name in found] == [1000.0, 600.0]


@pytest.mark.parametrize("shown", ["600", "600.0", "6", "60", ""])
def test_a_last_line_that_counts_and_has_no_end_may_be_cut_in_its_number(shown: str, prom: Prom) -> None:
    text = prom("c06").partition("600.0")[0] + shown
    with pytest.raises(SnapshotError) as refused:
        parse_exposition(text, COUNTERS.__contains__, "t")
    assert [(problem.code, problem.where) for problem in refused.value.problems] == [("SNAPSHOT_TRUNCATED", "t line 2")]


@pytest.mark.parametrize("end", ["# EOF", "# HELP x y", "other_metric 5", "  "])
def test_a_last_line_that_does_not_count_may_lack_its_end(end: str, prom: Prom) -> None:
    assert len(parse_exposition(prom("c05") + end, COUNTERS.__contains__, "t").samples) == 2


@pytest.mark.parametrize(
    "written",
    [
        'vllm:a{x="1"} 5',
        '{"vllm:a",x="1"} 5',
        '  { "vllm:a" , x = "1" } 5 1700000000',
        'vllm:a{"x"="1"} 5.0 # {t="1"} 2',
    ],
)
def test_quoted_names_labels_time_stamps_and_exemplars_are_read(written: str) -> None:
    (found,) = parse_exposition(written + "\n", every, "t").samples["vllm:a"]
    assert (found.labels, found.value) == ({"x": "1"}, 5.0)


def test_dotted_names_are_read_with_and_without_quotes() -> None:
    samples = parse_exposition('vllm.a{x="1"} 5\n{"vllm.b",x="1"} 6\n', every, "t").samples
    assert {name: found[0].value for name, found in samples.items()} == {"vllm.a": 5.0, "vllm.b": 6.0}


def test_a_text_larger_than_any_server_s_is_refused() -> None:
    with pytest.raises(SnapshotError, match="the text has 67108865 bytes"):
        decode_exposition(b"#" * (64 * 1024 * 1024 + 1), "t")


def test_spaces_trailing_comma_and_exponents_are_read(prom: Prom) -> None:
    found = parse_exposition(prom("c09"), COUNTERS.__contains__, "t").samples
    (queries,), (hits,) = found["vllm:prefix_cache_queries_total"], found["vllm:prefix_cache_hits_total"]
    assert (queries.value, hits.value) == (1000.0, 600.0)
    assert queries.labels == hits.labels == {"engine": "0", "model_name": "m"}


def test_only_whole_names_are_wanted() -> None:
    text = (
        'vllm:gpu_prefix_cache_hits_total{engine="0"} 1\n'
        'vllm:external_prefix_cache_hits_total{engine="0"} 2\n'
        'vllm:prefix_cache_hits_created{engine="0"} 3\n'
        'vllm:prefix_cache_hits_total_more{engine="0"} 4\n'
        'vllm:prefix_cache_hits_total{engine="0"} 5\n'
    )
    found = parse_exposition(text, {"vllm:prefix_cache_hits_total"}.__contains__, "t").samples
    assert [s.value for samples in found.values() for s in samples] == [5.0]


def test_not_a_number_and_infinity_are_values(prom: Prom) -> None:
    found = parse_exposition(prom("c04"), every, "t").samples
    assert math.isnan(found["vllm:prefix_cache_queries_total"][0].value)
    assert found["vllm:prefix_cache_hits_total"][0].value == math.inf
    assert found["vllm:kv_cache_usage_perc"][0].value == -math.inf


def test_one_series_twice_with_one_value_is_one_sample() -> None:
    assert len(parse_exposition('a{x="1"} 5\na{x="1"} 5\n', {"a"}.__contains__, "t").samples["a"]) == 1


def test_help_sentences_of_wanted_names_are_kept(prom: Prom) -> None:
    helps = parse_exposition(prom("27"), {"vllm:gpu_prefix_cache_hits_total"}.__contains__, "t").helps
    assert helps == {"vllm:gpu_prefix_cache_hits_total": "GPU prefix cache hits, in terms of number of cached blocks."}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t: the text is empty\n    save the whole answer of the server's /metrics"),
        (" \r\n\t\n", "t: the text is empty\n    save the whole answer of the server's /metrics"),
        (
            "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>\n",
            "t: not a Prometheus text: it begins with "
            "'<html><head><title>502 Bad Gateway</title></head><body>nginx…'\n"
            "    check the metrics URL; an error page of a proxy looks like this",
        ),
        (
            '{"detail":"Not Found"}',
            't: not a Prometheus text: it begins with \'{"detail":"Not Found"}\'\n'
            "    check the metrics URL; an error page of a proxy looks like this",
        ),
        ('a{x="1"} 5\na{x="1 6\na{x="2"} 7\n', "t line 2: not a sample line: 'a{x=\"1 6'"),
        (
            'a{x="1"} 5\nb{x="1',
            "t line 2: the text is cut off in the middle of a line: 'b{x=\"1'\n"
            "    save the whole answer of the server's /metrics",
        ),
        (
            'a{x="1"} 5\na{x="1"} 6\n',
            "t line 2: a has the value 6 here and 5 in line 1, with the same labels\n"
            "    two answers may have been written into one file; save one answer a file",
        ),
        ('a{x="1"} 1_0\n', "t line 1: not a sample line: 'a{x=\"1\"} 1_0'"),
        ('a{x="1",x="2"} 1\n', 't line 1: not a sample line: \'a{x="1",x="2"} 1\''),
    ],
)
def test_what_is_not_a_metric_text_is_refused_with_a_sentence(text: str, message: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        parse_exposition(text, {"a"}.__contains__, "t")
    assert str(refused.value) == message


def test_all_bad_lines_come_at_once() -> None:
    with pytest.raises(SnapshotError) as refused:
        parse_exposition("a{ 1\na 2\na} 3\n", {"a"}.__contains__, "t")
    assert [problem.where for problem in refused.value.problems] == ["t line 1"]
    with pytest.raises(SnapshotError) as refused:
        parse_exposition("a{ 1\na 2\na x\n", {"a"}.__contains__, "t")
    assert [problem.where for problem in refused.value.problems] == ["t line 1", "t line 3"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_saved_files_are_decoded(encoding: str) -> None:
    assert decode_exposition("a 1\n".encode(encoding), "t") == "a 1\n"


def test_a_compressed_file_is_refused_with_a_sentence() -> None:
    with pytest.raises(SnapshotError) as refused:
        decode_exposition(b"\x1f\x8b\x08\x00", "after.prom")
    assert str(refused.value) == (
        "after.prom: byte 1 is not UTF-8 text\n"
        "    save the answer of /metrics as it comes (with curl a compressed answer needs --compressed)"
    )
