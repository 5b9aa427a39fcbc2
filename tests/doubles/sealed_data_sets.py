"""One small data set of each kind, and the means to change it and to make all digests fit again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.doubles.mmmu_directory import cell, drawn, write_parquet

from ais_bench_prefix_cache.cli import main

Manifest = dict[str, Any]
Rows = list[dict[str, Any]]
KINDS = ("text", "csv", "overrides", "mm", "trace", "conversation", "scripted", "distribution")


def canonical(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def seal(path: Path, document: Manifest) -> bytes:
    """Write a document whose digests fit; returns its bytes."""
    document.pop("content_sha256", None)
    if "effective_config_sha256" in document:
        document["effective_config_sha256"] = hashlib.sha256(canonical(document["effective_config"])).hexdigest()
    document["content_sha256"] = hashlib.sha256(canonical(document)).hexdigest()
    content = (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()
    path.write_bytes(content)
    return content


class DataSet:
    """The files of one data set below a directory of its own, with the means to change and seal them."""

    def __init__(self, manifest: Path) -> None:
        self.path = manifest
        self.manifest: Manifest = json.loads(manifest.read_bytes())

    @classmethod
    def copy_of(cls, original: Path, directory: Path) -> DataSet:
        """A fresh copy, below ``directory``, of the data set with this manifest."""
        root = original.parent.parent if original.parent.name == "result" else original.parent
        target = directory / root.name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(root, target)
        return cls(target / original.relative_to(root))

    def file(self, key: str) -> Path:
        return self.path.with_name(self.manifest["artifacts"][key]["name"])

    def rows(self, key: str) -> Rows:
        return [json.loads(line) for line in self.file(key).read_text("utf-8").splitlines()]

    def write_rows(self, key: str, rows: Rows) -> None:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        self.file(key).write_text(text, encoding="utf-8")

    def change_rows(self, change: Callable[[Rows], object]) -> None:
        """Change the rows of the first file; those of the others are made to fit."""
        keys = [key for key in self.manifest["artifacts"] if key != "analysis"]
        rows = self.rows(keys[0])
        change(rows)
        self.write_rows(keys[0], rows)
        if keys[1:] == ["requests"]:
            lengths = self.manifest["effective_config"]["output"]["output_key"]
            more = [{lengths: row["max_tokens"]} if lengths else {} for row in rows]
            partners = [{"question": row["question"], "answer": row["answer"]} for row in rows]
            self.write_rows("requests", [a | b for a, b in zip(partners, more, strict=True)])
        elif keys[1:] == ["prefixes"]:
            sources = [row["parent_prompt_index"] for row in rows]
            self.write_rows(
                "prefixes",
                [
                    {
                        "prompt_index": index,
                        "cached_input_token_length": row["prefix_token_length"],
                        "source": "GSM8K" if source < 0 else f"prompt:{source}",
                    }
                    for index, (row, source) in enumerate(zip(rows, sources, strict=True))
                ],
            )

    def seal(self) -> None:
        for key, entry in self.manifest["artifacts"].items():
            content = self.file(key).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            if key == "analysis":
                entry.update(bytes=len(content), sha256_at_prepare=digest)
            else:
                entry.update(rows=content.count(b"\n"), bytes=len(content), sha256=digest)
        for dataset in self.manifest.get("datasets", {}).values():
            dataset.update({key: self.manifest["artifacts"]["requests"][key] for key in ("sha256", "rows")})
        seal(self.path, self.manifest)


def one_of_each_kind(base: Path, tokenizer: Path) -> dict[str, Path]:
    """Make them below ``base``; the manifest of each."""
    corpus = base / "corpus.jsonl"
    sentences = (f"Number {number} of the apples lay on the table near the window of the house" for number in range(40))
    corpus.write_text("".join(json.dumps({"question": sentence}) + "\n" for sentence in sentences))
    write_parquet(base / "MMMU" / "images.parquet", {"image_1": [cell(drawn(1920, 1080))]})
    lengths = [48, 70, 55, 90, 61, 84, 49, 77]
    (base / "lengths.csv").write_text("input_tokens,output_tokens\n" + "".join(f"{n},{n % 7 + 1}\n" for n in lengths))
    trace = base / "trace.jsonl"
    times = ({"timestamp": 7 * n, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, n + 3]} for n in range(4))
    trace.write_text("".join(json.dumps(row) + "\n" for row in times))
    common = {"tokenizer": {"path": str(tokenizer), "block_size": 16}, "corpus": {"path": str(corpus)}}
    fixed = {"count": 4, "input_length": {"mode": "fixed", "value": 24}, "output_length": {"mode": "fixed", "value": 4}}
    explicit = {
        "count": 8,
        "input_length": {"mode": "explicit", "values": lengths},
        "output_length": {"mode": "uniform", "min": 2, "max": 9},
    }
    csv = {
        "count": 8,
        "input_length": {"mode": "csv", "path": str(base / "lengths.csv")},
        "output_length": {"mode": "csv", "path": str(base / "lengths.csv")},
    }
    talk = {
        "count": 3,
        "turns": {"mode": "uniform", "min": 2, "max": 3},
        "system_prompts": {"count": 2, "length": {"mode": "explicit", "values": [35, 20]}},
        "first_message_length": {"mode": "uniform", "min": 4, "max": 20},
        "message_length": {"mode": "uniform", "min": 4, "max": 20},
        "answer_length": {"mode": "uniform", "min": 2, "max": 9},
        "think_time_ms": {"mode": "uniform", "min": 1, "max": 300},
    }
    ascending = {"strategy": "input_len_asc"}
    cold = {"mode": "cold", "target_hit_rate": 0.4, "groups": {"count": 2}}
    sections: dict[str, dict[str, Any]] = {
        "text": {
            "requests": explicit,
            "prefix_cache": cold | {"mode": "warmup"},
            "output": {"output_key": "max_tokens"},
        },
        "csv": {"requests": csv, "prefix_cache": cold | {"order": ascending}, "service": {"dp_size": 2}},
        "overrides": {
            "requests": {**fixed, "count": 9},
            "prefix_cache": cold
            | {
                "groups": {
                    "count": 3,
                    "assignment": {"mode": "weights", "weights": [3, 2, 1]},
                    "overrides": {
                        "group-1": {
                            "input_length": {"mode": "truncated_normal", "mean": 50, "std": 9, "min": 20, "max": 90},
                            "corpus_selection": {"mode": "indices", "indices": [7, 3]},
                        }
                    },
                },
                "order": {"strategy": "interleave"},
            },
        },
        "mm": {
            "requests": fixed,
            "multimodal": {"mmmu_parquet_dir": str(base / "MMMU"), "scenarios": ["single_1080p"]},
            "service": {"inference_url": "http://127.0.0.1:1/v1/chat/completions"},
        },
        "trace": {"service": {"dp_size": 2}},
        "conversation": {"conversation": talk, "service": {"dp_size": 2}},
        "scripted": {"conversation": {**talk, "answers": "scripted"}},
    }
    manifests = {}
    for name, section in sections.items():
        scenario = base / f"{name}.json"
        scenario.write_text(json.dumps({"run": {"run_id": name, "output_dir": str(base / name)}, **common, **section}))
        mode = {"csv": "text", "overrides": "text", "scripted": "conversation"}.get(name, name)
        options = ["--trace", str(trace), "--trace-block-size", "16"] if name == "trace" else []
        assert main(["prepare", "--mode", mode, "--scenario", str(scenario), *options]) == 0
        (manifests[name],) = base.glob(f"{name}_*/result/*.manifest.json")
    copies = "--distribution 40-60:8 --repeat-rate 0.4 --blocksize 8 --output-length-mode uniform --min-output-len 2"
    copies += f" --max-output-len 9 --prefix-count 3 --tokenizer {tokenizer} --corpus {corpus}"
    (base / "copies").mkdir()
    assert main(["distribution", *copies.split(), "--output", str(base / "copies" / "copies.jsonl")]) == 0
    manifests["distribution"] = base / "copies" / "copies.manifest.json"
    return manifests
