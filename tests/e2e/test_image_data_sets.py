"""Image data sets from the command line: what is written, and what `validate` notices."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.mmmu_directory import cell, drawn, write_parquet
from transformers import AutoTokenizer

CommandLine = Callable[..., subprocess.CompletedProcess[str]]
IMAGES = {"single_1080p": drawn(1920, 1080, mode="RGBA"), "multi_720p_5": drawn(1280, 720, kind="WEBP")}
COUNTS = {"single_1080p": 1, "multi_720p_5": 5}


def image_scenario(directory: Path, tokenizer: Path, name: str, **changes: Any) -> Path:
    write_parquet(
        directory / "MMMU" / "Art" / "validation-00000-of-00001.parquet",
        {
            "image_1": [cell(drawn(32, 32)), cell(IMAGES["single_1080p"]), None],
            "image_2": [cell(b"damaged"), None, cell(IMAGES["multi_720p_5"], "a.png")],
        },
    )
    (directory / "corpus.jsonl").write_text(
        '{"question": "How many apples are left on the table after lunch?"}\n'
        '{"question": "A train leaves the station at noon; when does it arrive?"}\n'
    )
    document = {
        "run": {"run_id": "images", "output_dir": "./out/images"},
        "tokenizer": {"path": str(tokenizer), "block_size": 128},
        "corpus": {"path": "./corpus.jsonl"},
        "requests": {
            "count": 7,
            "input_length": {"mode": "fixed", "value": 30},
            "output_length": {"mode": "fixed", "value": 4},
        },
        "service": {"inference_url": "http://127.0.0.1:1/v1/chat/completions"},
        "multimodal": {"mmmu_parquet_dir": "./MMMU", "scenarios": [name]},
        **changes,
    }
    path = directory / "scenario.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("name", IMAGES)
def test_rows_refer_to_the_image_and_the_manifest_holds_it_once(
    name: str, tmp_path: Path, qwen3_tokenizer_dir: Path, command_line: CommandLine
) -> None:
    scenario = image_scenario(tmp_path, qwen3_tokenizer_dir, name)
    done = command_line("prepare", "--mode", "mm", "--scenario", scenario, cwd=tmp_path)
    said = json.loads(done.stdout)
    assert "warning [DAMAGED_IMAGES] skipped damaged image cells: 1" in done.stderr
    assert (said["ok"], said["request_count"], said["text_tokens"], said["output_tokens"]) == (True, 7, 30, 4)
    manifest = json.loads(Path(said["manifest"]).read_text())
    rows_path = Path(said["datasets"][name])
    run_id = manifest["run_id"]
    assert rows_path.name == f"{run_id}.{name}.requests.jsonl"
    assert sorted(path.name for path in rows_path.parent.iterdir()) == sorted(
        f"{run_id}.{end}" for end in ("analysis.json", "manifest.json", f"{name}.requests.jsonl")
    )

    dataset = manifest["datasets"][name]
    image = dataset["image"]
    content = IMAGES[name]
    kind = {"single_1080p": "PNG", "multi_720p_5": "WEBP"}[name]
    assert manifest["benchmark_mode"] == "mm"
    assert dataset["sha256"] == hashlib.sha256(rows_path.read_bytes()).hexdigest()
    assert (dataset["rows"], dataset["image_count_per_request"]) == (7, COUNTS[name])
    assert image["data_url"] == f"data:image/{kind.lower()};base64,{base64.b64encode(content).decode()}"
    assert (image["sha256"], image["byte_length"]) == (hashlib.sha256(content).hexdigest(), len(content))
    assert (image["row_index"], image["image_column"]) == {
        "single_1080p": (1, "image_1"),
        "multi_720p_5": (2, "image_2"),
    }[name]
    assert said["selected_images"] == {
        name: {
            "size": [1920, 1080] if name == "single_1080p" else [1280, 720],
            "sample_id": f"validation_Art_{image['row_index']}",
            "image_column": image["image_column"],
            "parquet_path": str(tmp_path / "MMMU" / "Art" / "validation-00000-of-00001.parquet"),
            "sha256": image["sha256"],
        }
    }

    tokenizer = AutoTokenizer.from_pretrained(str(qwen3_tokenizer_dir))
    for number, line in enumerate(rows_path.read_text().splitlines()):
        row = json.loads(line)
        text = row["question"]
        assert len(tokenizer.encode(text, add_special_tokens=False)) == 30
        assert row == {
            "request_id": f"request-{number:08d}",
            "question": text,
            "answer": "none",
            "image_refs": [image["ref"]] * COUNTS[name],
            "prompt": [
                {
                    "role": "user",
                    "content": [
                        *[{"type": "image_url", "base64_ref": image["ref"]}] * COUNTS[name],
                        {"type": "text", "text": text},
                    ],
                }
            ],
            "text_tokens": 30,
            "max_out_len": 4,
        }

    proven = json.loads(command_line("validate", "--deep", "--scenario", scenario, cwd=tmp_path).stdout)
    assert (proven["ok"], proven["rows"], proven["run_id"]) == (True, 7, run_id)
    assert (proven["deep"]["texts"], proven["deep"]["tokens"]) == (7, 210)
    again = json.loads(command_line("prepare", "--mode", "mm", "--scenario", scenario, cwd=tmp_path.parent).stdout)
    assert Path(again["datasets"][name]).read_bytes() == rows_path.read_bytes()
    assert again["manifest"] != said["manifest"]
    replaced = command_line("prepare", "--mode", "mm", "--scenario", scenario, "--overwrite", cwd=tmp_path)
    assert json.loads(replaced.stdout)["manifest"] == again["manifest"]


def test_what_cannot_be_made_writes_nothing(
    tmp_path: Path, qwen3_tokenizer_dir: Path, command_line: CommandLine
) -> None:
    scenario = image_scenario(
        tmp_path,
        qwen3_tokenizer_dir,
        "single_1080p",
        service={"inference_url": "http://127.0.0.1:1/v1/completions"},
        multimodal={"mmmu_parquet_dir": None, "scenarios": ["single_1080p", "multi_720p_5"]},
    )
    done = command_line("prepare", "--mode", "mm", "--scenario", scenario, cwd=tmp_path, expect=2)
    for place in ("service.inference_url", "multimodal.mmmu_parquet_dir", "multimodal.scenarios"):
        assert f"scenario.json: {place}: " in done.stderr
    assert not (tmp_path / "out").exists()


def sealed(document: dict[str, Any]) -> bytes:
    """The bytes of a document whose digest has been made to fit again."""
    content = {key: value for key, value in document.items() if key != "content_sha256"}
    canonical = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    content["content_sha256"] = hashlib.sha256(canonical).hexdigest()
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


def _swap_lines(rows: bytes) -> bytes:
    lines = rows.splitlines(keepends=True)
    return b"".join([lines[1], lines[0], *lines[2:]])


EDITS: dict[str, tuple[Callable[[bytes], bytes] | None, Callable[[dict[str, Any]], object] | None, str]] = {
    "a changed length": (lambda rows: rows.replace(b'"max_out_len": 4', b'"max_out_len": 5', 1), None, "max_out_len"),
    "rows in another order": (_swap_lines, None, "line 1: request_id"),
    "text that differs from the question": (
        lambda rows: rows.replace(b'"text": "', b'"text": "x', 1),
        None,
        "content[5].text",
    ),
    "a reference less": (
        lambda rows: rows.replace(b'{"type": "image_url", ', b'{"type": "image", ', 1),
        None,
        "content[0].type",
    ),
    "a cut end": (lambda rows: rows[:-9], None, "TRUNCATED"),
    "a missing row": (lambda rows: b"".join(rows.splitlines(keepends=True)[:-1]), None, "ROW_COUNT"),
    "another space": (lambda rows: rows.replace(b'": ', b'":  ', 1), None, "LAYOUT_EDITED"),
    "other pixels": (
        None,
        lambda image: image.update(
            data_url="data:image/png;base64," + base64.b64encode(drawn(1280, 720, noise=1)).decode()
        ),
        "image_refs[0]",
    ),
    "another size": (
        None,
        lambda image: image.update(data_url="data:image/png;base64," + base64.b64encode(drawn(9, 9)).decode()),
        "IMAGE_SIZE",
    ),
    "half an image": (None, lambda image: image.update(data_url=image["data_url"][:4000]), "IMAGE_DAMAGED"),
    "another mime type": (
        None,
        lambda image: image.update(data_url=image["data_url"].replace("webp", "png", 1), mime_type="image/png"),
        "image.mime_type",
    ),
    "another width": (None, lambda image: image.update(width=1920), "image.width"),
}


def test_validate_notices_edits_even_where_all_digests_fit(
    tmp_path: Path, qwen3_tokenizer_dir: Path, command_line: CommandLine
) -> None:
    from ais_bench_prefix_cache.datasets.kinds import verify_data_set
    from ais_bench_prefix_cache.foundation.errors import ArtifactError

    scenario = image_scenario(tmp_path, qwen3_tokenizer_dir, "multi_720p_5")
    said = json.loads(command_line("prepare", "--mode", "mm", "--scenario", scenario, cwd=tmp_path).stdout)
    manifest_path, rows_path = Path(said["manifest"]), Path(said["datasets"]["multi_720p_5"])
    manifest_bytes, rows_bytes = manifest_path.read_bytes(), rows_path.read_bytes()
    for name, (edit_rows, edit_image, expected) in EDITS.items():
        rows = rows_bytes if edit_rows is None else edit_rows(rows_bytes)
        document = json.loads(manifest_bytes)
        digest = hashlib.sha256(rows).hexdigest()
        document["datasets"]["multi_720p_5"]["sha256"] = digest
        document["artifacts"]["requests"] |= {"sha256": digest, "bytes": len(rows), "rows": rows.count(b"\n")}
        document["datasets"]["multi_720p_5"]["rows"] = rows.count(b"\n")
        if edit_image is not None:
            edit_image(document["datasets"]["multi_720p_5"]["image"])
        assert (rows, document) != (rows_bytes, json.loads(manifest_bytes)), name
        rows_path.write_bytes(rows)
        manifest_path.write_bytes(sealed(document))
        with pytest.raises(ArtifactError) as found:
            verify_data_set(manifest_path)
        assert expected in str([(problem.code, problem.where) for problem in found.value.problems]), name
    manifest_path.write_bytes(manifest_bytes.replace(b'"text_tokens": 30', b'"text_tokens": 31', 1))
    rows_path.unlink()
    refused = command_line("validate", "--manifest", manifest_path, cwd=tmp_path, expect=2)
    codes = {problem["code"] for problem in json.loads(refused.stdout)["errors"]}
    assert {"CONTENT_EDITED", "MISSING_FILE"} <= codes


def test_everything_that_is_missing_is_said_at_once(tmp_path: Path, command_line: CommandLine) -> None:
    scenario = image_scenario(
        tmp_path,
        tmp_path / "no-tokenizer",
        "single_1080p",
        corpus={"path": "./no-corpus.jsonl"},
        multimodal={"mmmu_parquet_dir": "./no-images"},
    )
    done = command_line("prepare", "--mode", "mm", "--scenario", scenario, cwd=tmp_path, expect=2)
    assert done.stderr == (
        f"error [CORPUS_NOT_FOUND] scenario: corpus.path: the file '{tmp_path}/no-corpus.jsonl' does not exist\n"
        f"error [TOKENIZER_NOT_FOUND] scenario: tokenizer.path: the directory '{tmp_path}/no-tokenizer' does not exist "
        "(allowed: a directory with the tokenizer of the served model, or a model name)\n"
        f"error [MMMU_NOT_FOUND] scenario: multimodal.mmmu_parquet_dir: the directory '{tmp_path}/no-images' does not "
        "exist (allowed: a directory with the Parquet files of MMMU)\n"
    )
    assert done.stdout == "" and not (tmp_path / "out").exists()
