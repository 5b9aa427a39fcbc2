"""Proves that the files of an image data set are what ``prepare --mode mm`` wrote and that they agree with each other.

Checked are the manifest, every row word for word, and the image: that its data URL holds the recorded bytes and that
these decode, to an image of the recorded kind and of the size that the image scenario asks for. The rows and the image
are also checked where somebody edited a file and then made all digests fit again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.datasets.format.document_checks import (
    ConfigReader,
    check_analysis_claims,
    check_analysis_form,
    check_artifacts_section,
    check_manifest_form,
    compare_exactly,
    value_in,
)
from ais_bench_prefix_cache.datasets.format.documents import digest_problems, is_count
from ais_bench_prefix_cache.datasets.format.file_hashes import FileHashes
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.sources import tokenizer_problem
from ais_bench_prefix_cache.datasets.format.verified_data_set import VerifiedDataSet
from ais_bench_prefix_cache.datasets.images.decoding import decode
from ais_bench_prefix_cache.datasets.images.image_scenarios import IMAGE_SCENARIOS
from ais_bench_prefix_cache.datasets.images.manifest import (
    CONTENT_ORDER,
    DATASET_KEYS,
    IMAGE_ENCODING,
    IMAGE_KEYS,
    IMAGE_MANIFEST_KEYS,
    MULTIMODAL_SCHEMA_VERSION,
    SEARCH_KEYS,
    image_analysis,
    image_reference,
    requests_section,
)
from ais_bench_prefix_cache.datasets.images.rows import image_row
from ais_bench_prefix_cache.datasets.text.rows import read_full_rows, render_row
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.foundation.strict_json import parse_json

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

TEXTS_ENCODED_AT_ONCE = 512


@dataclass(frozen=True)
class _RowRules:
    """What the configuration says about every row."""

    name: str
    count: int
    text_tokens: int
    max_tokens: int


def verify_image_data_set(paths: RunPaths, manifest: dict[str, Any], content: bytes) -> VerifiedDataSet:
    """Verify the data set of a manifest whose identity is known to be sound.

    Raises :class:`~ais_bench_prefix_cache.foundation.errors.ArtifactError` with everything that is wrong.
    """
    findings = Findings()
    findings.extend(digest_problems(paths.manifest, manifest, content, what="manifest"))
    check_manifest_form(paths, manifest, IMAGE_MANIFEST_KEYS, findings)
    rules = _row_rules(paths, manifest, findings)
    rows = 0
    if rules is not None:
        where = paths.manifest.name
        path = paths.image_requests(rules.name)
        hashes = FileHashes({"requests": path})
        expected = {
            "multimodal_schema_version": MULTIMODAL_SCHEMA_VERSION,
            "requests": requests_section(rules.count, rules.text_tokens, rules.max_tokens),
            "content_order": CONTENT_ORDER,
            "image_encoding": IMAGE_ENCODING,
        }
        for key, value in expected.items():
            compare_exactly(value, manifest.get(key), f"{where}: {key}", findings)
        _check_search(manifest, f"{where}: image_search", findings)
        reference = _check_dataset(paths, manifest, rules, findings)
        if reference is not None:
            rows = _check_rows(path, reference, rules, findings)
        found = hashes.results(findings)
        check_artifacts_section(paths, manifest, {"requests": path}, found, rows or None, findings)
        if "requests" in found and rows != rules.count and reference is not None:
            findings.add(Code.ROW_COUNT, path.name, f"it has {rows} rows", allowed=str(rules.count))
    analysis = check_analysis_form(paths, manifest, findings)
    if analysis:
        warnings = [warning for warning in analysis.get("warnings", ()) if isinstance(warning, dict)]
        check_analysis_claims(image_analysis(paths.run_id, warnings), analysis, paths.analysis.name, findings)
    findings.raise_if_any()
    return VerifiedDataSet(manifest, analysis, paths, rows)


def check_texts(data_set: VerifiedDataSet, tokenizer: PromptTokenizer) -> dict[str, Any]:
    """``validate --deep``: encode every text again; returns what was counted.

    Raises :class:`~ais_bench_prefix_cache.foundation.errors.ArtifactError` with everything that differs.
    """
    findings = Findings()
    problem = tokenizer_problem(data_set.manifest, tokenizer)
    findings.extend([problem] if problem else [])
    (name,) = data_set.manifest["datasets"]
    path = data_set.paths.image_requests(name)
    number = tokens = 0
    for batch in _batches(read_full_rows(path)):
        for row, ids in zip(batch, tokenizer.encode_plain_batch([row["question"] for row in batch]), strict=True):
            number += 1
            tokens += len(ids)
            if len(ids) != row["text_tokens"]:
                message = f"the file says {row['text_tokens']}, but encoding the text gives {len(ids)}"
                findings.add(Code.DEEP_CHECK, f"{path.name} line {number}: text_tokens", message)
    findings.raise_if_any()
    return {
        "texts": number,
        "tokens": tokens,
        "tokenizer_fingerprint_sha256": data_set.manifest["tokenizer"]["fingerprint_sha256"],
    }


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == TEXTS_ENCODED_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _row_rules(paths: RunPaths, manifest: Mapping[str, Any], findings: Findings) -> _RowRules | None:
    """What the configuration says about rows; None, with findings, where it has no usable values."""
    where = f"{paths.manifest.name}: effective_config"
    effective = manifest["effective_config"]
    config = ConfigReader(effective, where, findings)
    count = config.count("requests.count", 1)
    text_tokens = config.count("requests.input_length.value", 1)
    max_tokens = config.count("requests.output_length.value", 1)
    for path in ("corpus.path", "tokenizer.path"):
        config.text(path)
    config.choice("tokenizer.trust_remote_code", (True, False))
    names = value_in(effective, "multimodal.scenarios")
    if names not in [[name] for name in IMAGE_SCENARIOS]:
        findings.add(
            Code.WRONG_TYPE,
            f"{where}.multimodal.scenarios",
            f"it says {shown(names)}",
            allowed=" or ".join(f"['{name}']" for name in IMAGE_SCENARIOS),
        )
        return None
    return _RowRules(names[0], count, text_tokens, max_tokens) if config.sound else None


def _check_search(manifest: Mapping[str, Any], where: str, findings: Findings) -> None:
    search = manifest.get("image_search")
    if not isinstance(search, dict) or tuple(search) != SEARCH_KEYS or not all(map(is_count, search.values())):
        findings.add(Code.WRONG_TYPE, where, "it does not hold its counts", allowed=", ".join(SEARCH_KEYS))


def _check_dataset(paths: RunPaths, manifest: Mapping[str, Any], rules: _RowRules, findings: Findings) -> str | None:
    """The section of the one image scenario; returns how rows must refer to its image."""
    where = f"{paths.manifest.name}: datasets"
    datasets = manifest.get("datasets")
    dataset = datasets.get(rules.name) if isinstance(datasets, dict) and len(datasets) == 1 else None
    if not isinstance(dataset, dict) or tuple(dataset) != DATASET_KEYS:
        allowed = f"{rules.name} with {', '.join(DATASET_KEYS)}"
        findings.add(Code.MISSING_KEY, where, "it does not have its keys", allowed=allowed)
        return None
    place = f"{where}.{rules.name}"
    recorded = value_in(manifest.get("artifacts", {}), "requests")
    recorded = recorded if isinstance(recorded, dict) else {}
    for key in ("path", "sha256", "rows"):
        compare_exactly(recorded.get(key), dataset[key], f"{place}.{key}", findings)
    images = IMAGE_SCENARIOS[rules.name].images
    compare_exactly(images, dataset["image_count_per_request"], f"{place}.image_count_per_request", findings)
    image = dataset["image"]
    if not isinstance(image, dict) or tuple(image) != IMAGE_KEYS:
        findings.add(Code.MISSING_KEY, f"{place}.image", "it does not have its keys", allowed=", ".join(IMAGE_KEYS))
        return None
    return _check_image(image, rules, f"{place}.image", findings)


def _check_image(image: Mapping[str, Any], rules: _RowRules, where: str, findings: Findings) -> str | None:
    """The data URL against what is said about it, and the image against the scenario; returns its reference."""
    for key, kinds in (("parquet_path", str), ("image_column", str), ("sample_id", (str, type(None)))):
        if not isinstance(image[key], kinds):
            findings.add(Code.WRONG_TYPE, f"{where}.{key}", f"it says {shown(image[key])}")
    if not is_count(image["row_index"]):
        findings.add(Code.WRONG_TYPE, f"{where}.row_index", f"it says {shown(image['row_index'])}")
    url = image["data_url"]
    head, _, encoded = url.partition(",") if isinstance(url, str) else ("", "", "")
    try:
        content = base64.b64decode(encoded, validate=True)
        header = decode(content)
    except (binascii.Error, ValueError) as error:
        findings.add(Code.IMAGE_DAMAGED, f"{where}.data_url", f"it does not hold a whole image: {error}")
        return None
    wanted = IMAGE_SCENARIOS[rules.name]
    sha256 = hashlib.sha256(content).hexdigest()
    if (header.width, header.height) != (wanted.width, wanted.height):
        message = f"the image has {header.width}x{header.height} pixels"
        findings.add(Code.IMAGE_SIZE, f"{where}.data_url", message, allowed=f"{wanted.width}x{wanted.height}")
    reference = image_reference(sha256)
    expected: dict[str, Any] = {
        "ref": reference,
        "byte_length": len(content),
        "sha256": sha256,
        "format": header.format,
        "mime_type": header.mime_type,
        "width": header.width,
        "height": header.height,
    }
    compare_exactly(f"data:{header.mime_type};base64", head, f"{where}.data_url", findings)
    for key, value in expected.items():
        compare_exactly(value, image[key], f"{where}.{key}", findings)
    return reference


def _check_rows(path: Path, reference: str, rules: _RowRules, findings: Findings) -> int:
    """Every row against the only one that its text allows; returns their number."""
    number = 0
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                _check_row(line, number, path.name, reference, rules, findings)
    except OSError:
        return 0  # the file's hash reports it
    return number


def _check_row(line: bytes, number: int, name: str, reference: str, rules: _RowRules, findings: Findings) -> None:
    where = f"{name} line {number}"
    try:
        row = parse_json(line)
    except ValueError as error:
        findings.add(Code.INVALID_JSON if line.endswith(b"\n") else Code.TRUNCATED, where, f"it {error}")
        return
    question = row.get("question") if isinstance(row, dict) else None
    if not isinstance(question, str):
        findings.add(Code.WRONG_TYPE, where, "it has no question", allowed="an object with its text under question")
        return
    expected = image_row(
        number - 1,
        question,
        reference=reference,
        images=IMAGE_SCENARIOS[rules.name].images,
        text_tokens=rules.text_tokens,
        max_tokens=rules.max_tokens,
    )
    if render_row(expected) == line:
        return
    if row != expected or list(row) != list(expected):
        compare_exactly(expected, row, where, findings)
    else:
        findings.add(Code.LAYOUT_EDITED, where, "its values are intact, but its bytes are not what was written")
