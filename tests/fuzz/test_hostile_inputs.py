"""Whatever a file holds, the answer is a result or an error of our own tree. ``make fuzz SECONDS=600`` goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.doubles.hostile import JSON, NUMBERS, SETTINGS, TEXTS
from tests.doubles.mmmu_directory import cell, drawn, write_parquet

from ais_bench_prefix_cache.aisbench.adapters.observation import AnswerError, usage_numbers
from ais_bench_prefix_cache.calculators.model_file import read_model_config
from ais_bench_prefix_cache.counters.ranks import read_snapshot
from ais_bench_prefix_cache.datasets.images.mmmu_parquet import find_image
from ais_bench_prefix_cache.datasets.traces.reading import check_block_trace, read_trace
from ais_bench_prefix_cache.exact_text.corpus import load_corpus
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError
from ais_bench_prefix_cache.foundation.quoting import plain
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.discovery import service_config_of

SECTIONS = st.sampled_from(
    ["run", "tokenizer", "corpus", "requests", "prefix_cache", "service", "aisbench", "multimodal"]
)


@SETTINGS
@given(content=TEXTS | st.dictionaries(SECTIONS, JSON, max_size=4).map(lambda value: json.dumps(value).encode()))
def test_scenarios(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    path.write_bytes(content)
    try:
        load_scenario(path, environment={})
    except PrefixCacheError as error:
        assert error.problems


PROM = [path.read_bytes() for path in sorted((Path(__file__).parents[1] / "data" / "prom").glob("[012]*"))]


@SETTINGS
@given(data=st.data())
def test_metric_texts(data: st.DataObject) -> None:
    content = data.draw(st.sampled_from(PROM))
    at = data.draw(st.integers(0, len(content)))
    text = (content[:at] + data.draw(st.binary(max_size=30)) + content[at + data.draw(st.integers(0, 30)) :]).decode(
        "utf-8", "replace"
    )
    try:
        read_snapshot([text], dp_size=data.draw(st.integers(1, 3)))
    except PrefixCacheError as error:
        assert error.problems


@SETTINGS
@given(content=TEXTS)
@pytest.mark.parametrize("kind", ["corpus", "model config"])
def test_corpora_and_model_configurations(kind: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    try:
        load_corpus(path, "question") if kind == "corpus" else read_model_config(path)
    except PrefixCacheError as error:
        assert error.problems


LENGTHS = st.lists(st.text(st.characters(codec="utf-8"), max_size=8) | st.integers().map(str), max_size=6).map(",".join)


@SETTINGS
@given(content=st.binary(max_size=300) | st.lists(LENGTHS, max_size=6).map(lambda rows: "\n".join(rows).encode()))
@pytest.mark.parametrize("header", [b"", b"input_tokens,output_tokens\n", b"\xef\xbb\xbfinput_tokens\n"])
def test_csv_of_lengths(header: bytes, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_bytes(header + content)
    lengths = {"mode": "csv", "path": "lengths.csv"}
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({"requests": {"count": 2, "input_length": lengths, "output_length": lengths}}))
    try:
        load_scenario(path, environment={})
    except PrefixCacheError as error:
        assert error.problems


TRACE_ROWS = st.fixed_dictionaries(
    {},
    optional={
        "timestamp": NUMBERS,
        "input_length": NUMBERS,
        "output_length": NUMBERS,
        "hash_ids": st.lists(NUMBERS, max_size=4) | JSON,
        "prompt": JSON,
        "token_ids": st.lists(NUMBERS, max_size=4),
        "cache_salt": JSON,
        "images": JSON,
    },
)


@SETTINGS
@given(lines=st.lists(TRACE_ROWS.map(lambda row: json.dumps(row).encode()) | TEXTS, max_size=4))
@pytest.mark.parametrize("block_size", [None, 16])
def test_traces(block_size: int | None, lines: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(lines))
    for read in (lambda: list(read_trace(path)), lambda: check_block_trace(path, block_size)):
        try:
            read()
        except PrefixCacheError as error:
            assert error.problems


PARQUET: list[bytes] = []


@SETTINGS
@given(data=st.data())
def test_parquet_of_rows(data: st.DataObject, tmp_path: Path) -> None:
    stream = io.BytesIO()
    pq.write_table(pa.table({"timestamp": [1, 2], "input_length": [9, 9], "hash_ids": [[1], [2]]}), stream)
    content = bytearray(stream.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    (tmp_path / "trace.parquet").write_bytes(bytes(content))
    try:
        list(read_trace(tmp_path / "trace.parquet"))
    except PrefixCacheError as error:
        assert error.problems


@SETTINGS
@given(data=st.data())
def test_parquet_of_images(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "MMMU" / "images.parquet"
    if not PARQUET:
        path.parent.mkdir()
        write_parquet(path, {"image_1": [cell(drawn(32, 32)), cell(b"no image"), None]})
        PARQUET.append(path.read_bytes())
    path.parent.mkdir(exist_ok=True)
    content = bytearray(PARQUET[0])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    path.write_bytes(bytes(content))
    try:
        find_image(path.parent, 32, 32)
    except PrefixCacheError as error:
        assert error.problems


STATUS = st.sampled_from([200, 200, 200, 204, 301, 401, 404, 500, 599])
HEADERS = st.dictionaries(
    st.sampled_from(["content-type", "location", "content-encoding"]),
    st.sampled_from(["application/json", "text/html", "gzip", "deflate", "http://[::1", "//", "text/plain; charset=x"]),
)
ANSWERS = TEXTS | st.fixed_dictionaries(
    {},
    optional={
        "data": JSON,
        "usage": st.fixed_dictionaries({}, optional={"prompt_tokens": NUMBERS, "prompt_tokens_details": JSON}) | JSON,
        "tokens": st.lists(NUMBERS, max_size=3) | JSON,
        "error": JSON,
        "success": JSON,
        "version": JSON,
    },
).map(lambda value: json.dumps(value).encode())


@SETTINGS
@given(status=STATUS, headers=HEADERS, body=ANSWERS)
def test_answers_of_a_server(status: int, headers: dict[str, str], body: bytes) -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(status, headers=headers, stream=_Body(body)))
    with ServiceClient(service_config_of("http://localhost:1", "sk-a-key", 9), transport=transport) as client:
        for ask in (
            lambda: client.complete("x"),
            lambda: client.chat([{"type": "text", "text": "x"}]),
            client.models,
            lambda: client.tokenize("x"),
            client.version,
            lambda: read_snapshot(client.scrape(), dp_size=1),
            lambda: client.reset("http://localhost:1/reset"),
        ):
            try:
                ask()
            except PrefixCacheError as error:
                assert error.problems
                assert all(plain(problem.message) == problem.message for problem in error.problems)


class _Body(httpx.SyncByteStream):
    """Compressed or not, as the headers claim: the client finds out."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __iter__(self) -> Iterator[bytes]:
        yield self.content


@SETTINGS
@given(usage=JSON | st.fixed_dictionaries({"prompt_tokens": NUMBERS, "prompt_tokens_details": JSON}))
def test_the_usage_of_a_formal_request(usage: object) -> None:
    try:
        numbers = usage_numbers(usage)
    except AnswerError:
        return
    assert numbers is None or all(
        value is None or (isinstance(value, int) and value >= 0) or name == "prompt_tokens_details"
        for name, value in numbers.items()
    )
