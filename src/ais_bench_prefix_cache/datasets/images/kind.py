"""Data sets of requests with images: rows, manifest sections and rules.

A row is an OpenAI-style message with references in place of images: a data URL of 2 MB in every row would make files
and memory grow with the requests; the manifest holds the image once, and the model adapter puts it in when a request is
sent. Verifying also proves that the data URL holds the recorded bytes and that these are an image of the recorded kind
and of the size that the image scenario asks for. Image tokens are the server's: nobody else can count them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.datasets.format.document_checks import value_in
from ais_bench_prefix_cache.datasets.format.documents import is_count
from ais_bench_prefix_cache.datasets.format.kind import (
    Content,
    DataSetKind,
    DeepCheck,
    Inspection,
    JsonRow,
    Ledger,
    Preparation,
    Sources,
    Warnings,
)
from ais_bench_prefix_cache.datasets.format.manifest import SOURCE_KEYS, TOKENIZER_KEYS
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.recorded import recorded_scenario
from ais_bench_prefix_cache.datasets.format.rows import ANSWER, FreeText, Row, read_rows, request_id
from ais_bench_prefix_cache.datasets.format.writing import FileRecord
from ais_bench_prefix_cache.datasets.images.image_scenarios import IMAGE_SCENARIOS
from ais_bench_prefix_cache.datasets.images.messages import REFERENCE_KEY
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.foundation.names import verdict
from ais_bench_prefix_cache.foundation.telling import ProgressBar, no_bar
from ais_bench_prefix_cache.planning.summary import image_summary
from ais_bench_prefix_cache.scenario.model import FixedLength, Scenario

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.images.mmmu_parquet import ChosenImage, SearchRecord
    from ais_bench_prefix_cache.datasets.images.plain_texts import PlainTexts
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

MULTIMODAL_SCHEMA_VERSION = "1.0"
CONTENT_ORDER = "images_before_text"
IMAGE_ENCODING = "base64_data_url"
SEARCH_KEYS = ("files", "damaged_cells", "cells_without_bytes", "unreadable_files")


@dataclass(frozen=True)
class ImageRow(Row):
    """One request: the images stand before the text. ``text_tokens`` counts the text alone."""

    request_id: str
    question: FreeText
    answer: str
    image_refs: list[str]
    prompt: list[dict[str, Any]]
    text_tokens: int
    max_out_len: int


@dataclass(frozen=True)
class ImageEntry:
    """``datasets.<name>.image``: the untouched bytes as a data URL, and where they come from."""

    ref: str
    data_url: str
    byte_length: int
    sha256: str
    format: str
    mime_type: str
    width: int
    height: int
    parquet_path: str
    row_index: int
    sample_id: str | None
    image_column: str

    @classmethod
    def of(cls, image: ChosenImage) -> ImageEntry:
        """What the manifest says of an image that was found."""
        return cls.of_content(
            image.content, image.header, str(image.parquet_path), image.row_index, image.sample_id, image.image_column
        )

    @classmethod
    def of_content(
        cls, content: bytes, header: Any, parquet_path: str, row_index: int, sample_id: str | None, image_column: str
    ) -> ImageEntry:
        """The same from the image's bytes and its header."""
        sha256 = hashlib.sha256(content).hexdigest()
        return cls(
            ref=f"image-{sha256[:16]}",
            data_url=f"data:{header.mime_type};base64,{base64.b64encode(content).decode('ascii')}",
            byte_length=len(content),
            sha256=sha256,
            format=header.format,
            mime_type=header.mime_type,
            width=header.width,
            height=header.height,
            parquet_path=parquet_path,
            row_index=row_index,
            sample_id=sample_id,
            image_column=image_column,
        )


class ImageLedger(Ledger):
    """All rows are alike but for their text."""

    def __init__(
        self, scenario: Scenario, image: ImageEntry, search: Mapping[str, int], search_warnings: Warnings = ()
    ) -> None:
        requests, multimodal = scenario.requests, scenario.multimodal
        assert multimodal is not None
        assert isinstance(requests.input_length, FixedLength) and isinstance(requests.output_length, FixedLength)
        self.count = requests.count
        (self.name,) = multimodal.scenarios
        self.text_tokens, self.max_tokens = requests.input_length.value, requests.output_length.value
        self._images = IMAGE_SCENARIOS[self.name].images
        self._image = image
        self._search = search
        self._search_warnings = search_warnings

    def row(self, index: int, text: str) -> ImageRow:
        """The row of one text."""
        reference = self._image.ref
        return ImageRow(
            request_id=request_id(index),
            question=text,
            answer=ANSWER,
            image_refs=[reference] * self._images,
            prompt=[
                {
                    "role": "user",
                    "content": [
                        *({"type": "image_url", REFERENCE_KEY: reference} for _ in range(self._images)),
                        {"type": "text", "text": text},
                    ],
                }
            ],
            text_tokens=self.text_tokens,
            max_out_len=self.max_tokens,
        )

    def expected(self, index: int, row: JsonRow) -> ImageRow:
        return self.row(index, row["question"])

    def sections(self, artifacts: Mapping[str, Any]) -> dict[str, Any]:
        rows = artifacts.get("requests")
        file = rows if isinstance(rows, dict) else {}
        return {
            "multimodal_schema_version": MULTIMODAL_SCHEMA_VERSION,
            "requests": {
                "count": self.count,
                "text_tokens": self.text_tokens,
                "output_tokens": self.max_tokens,
                "total_text_tokens": (self.count or 0) * self.text_tokens,
            },
            "content_order": CONTENT_ORDER,
            "image_encoding": IMAGE_ENCODING,
            "datasets": {
                self.name: {
                    **{key: file.get(key) for key in ("path", "sha256", "rows")},
                    "image_count_per_request": self._images,
                    "image": vars(self._image),
                }
            },
            "image_search": dict(self._search),
        }

    def analysis(self, run_id: str, recorded: Warnings | None) -> dict[str, Any]:
        # What the search passed by was seen by `prepare` alone.
        warnings = self._search_warnings if recorded is None else recorded
        return {
            "schema_version": "1.0",
            "run_id": run_id,
            "status": "prepared",
            "benchmark_mode": ImageKind.name,
            "validation": {
                "status": verdict(warnings),
                "warning_only": True,
                "affects_exit_code": False,
            },
            "warnings": [dict(warning) for warning in warnings],
        }


class ImageDeepCheck(DeepCheck):
    """Each text alone, without special tokens, has its number of tokens."""

    special_tokens = False

    def __init__(self, requests: Path, findings: Findings) -> None:
        self._requests = requests
        self._findings = findings
        self._texts = self._tokens = 0

    def texts(self) -> Iterator[tuple[str, Callable[[Sequence[int]], None]]]:
        for index, row in enumerate(read_rows(self._requests)):
            yield row["question"], partial(self._judge, f"{self._requests.name} line {index + 1}", row["text_tokens"])

    def _judge(self, where: str, claimed: int, token_ids: Sequence[int]) -> None:
        self._texts += 1
        self._tokens += len(token_ids)
        if len(token_ids) != claimed:
            message = f"the file says {claimed}, but encoding the text gives {len(token_ids)}"
            self._findings.add(Code.DEEP_CHECK, f"{where}: text_tokens", message)

    def report(self) -> dict[str, Any]:
        return {"texts": self._texts, "tokens": self._tokens}


class ImageKind(DataSetKind):
    """See the module's docstring."""

    name = "mm"
    manifest_keys = (
        *SOURCE_KEYS[:4],
        "multimodal_schema_version",
        *SOURCE_KEYS[4:],
        "requests",
        "content_order",
        "image_encoding",
        "datasets",
        "image_search",
        "artifacts",
        "content_sha256",
    )
    tokenizer_keys = tuple(key for key in TOKENIZER_KEYS if key != "block_size")
    row_type = ImageRow
    scenario_rules = "images"
    hits_are_known = False
    answer_length_key = "max_out_len"
    aisbench_template = "multimodal_perf.py"
    takes_template = False

    def row_files(self, paths: RunPaths, manifest: Mapping[str, Any]) -> dict[str, Path] | None:
        names = value_in(manifest, "effective_config.multimodal.scenarios")
        if names not in [[name] for name in IMAGE_SCENARIOS]:
            return None
        return {"requests": paths.result_dir / f"{paths.run_id}.{names[0]}.requests.jsonl"}

    def inspect(self, scenario: Scenario, bar: ProgressBar = no_bar) -> Inspection:
        count = scenario.requests.count
        note = f"{count} requests with images, which share nothing by plan"
        return Inspection(image_summary(scenario), (), note, count, None)

    def prepare(self, preparation: Preparation) -> Content:
        from ais_bench_prefix_cache.datasets.images.mmmu_parquet import find_image

        scenario = preparation.scenario
        multimodal = scenario.multimodal
        assert multimodal is not None
        directory = multimodal.mmmu_parquet_dir
        assert directory is not None
        wanted = IMAGE_SCENARIOS[multimodal.scenarios[0]]
        found: list[tuple[ChosenImage, SearchRecord]] = []
        sources = preparation.load(lambda: found.append(find_image(directory, wanted.width, wanted.height)))
        ((image, record),) = found
        texts = _texts(scenario, sources)
        search = (record.files, len(record.damaged), record.without_bytes, len(record.unreadable_files))
        search_section = dict(zip(SEARCH_KEYS, search, strict=True))
        ledger = ImageLedger(scenario, ImageEntry.of(image), search_section, record.warnings())
        note = f"image {image.parquet_path} row {image.row_index} {image.image_column}"
        return Content(_rows(texts, ledger), len(texts), ledger, (note,))

    def report(self, paths: RunPaths, manifest: Mapping[str, Any]) -> dict[str, Any]:
        ((name, dataset),) = manifest["datasets"].items()
        requests, image = manifest["requests"], dataset["image"]
        return {
            "ok": True,
            "request_count": requests["count"],
            "text_tokens": requests["text_tokens"],
            "output_tokens": requests["output_tokens"],
            "datasets": {name: dataset["path"]},
            "selected_images": {
                name: {
                    "size": [image["width"], image["height"]],
                    **{key: image[key] for key in ("sample_id", "image_column", "parquet_path", "sha256")},
                }
            },
        }

    def ledger(
        self, paths: RunPaths, manifest: Mapping[str, Any], records: Mapping[str, FileRecord], findings: Findings
    ) -> ImageLedger | None:
        scenario = recorded_scenario(paths, manifest, self.scenario_rules, findings)
        where = paths.manifest.name
        search = manifest.get("image_search")
        if not isinstance(search, dict) or tuple(search) != SEARCH_KEYS or not all(map(is_count, search.values())):
            allowed = ", ".join(SEARCH_KEYS)
            findings.add(Code.WRONG_TYPE, f"{where}: image_search", "it does not hold its counts", allowed=allowed)
            return None
        if scenario is None or scenario.multimodal is None:
            return None
        name = scenario.multimodal.scenarios[0]
        image = _recorded_image(
            value_in(manifest, f"datasets.{name}.image"), name, f"{where}: datasets.{name}.image", findings
        )
        return None if image is None else ImageLedger(scenario, image, search)

    def not_proven(self, manifest: Mapping[str, Any]) -> list[str]:
        return ["that the image is the first of its size in the Parquet files, which are not searched again"]

    def rebuild(
        self, paths: RunPaths, manifest: Mapping[str, Any], sources: Sources, trace: Path | None
    ) -> Content | None:
        # The image is the manifest's: only its Parquet files could say whether another one came before it.
        scenario = recorded_scenario(paths, manifest, self.scenario_rules, Findings())
        ledger = self.ledger(paths, manifest, {}, Findings())
        if scenario is None or ledger is None:
            return None
        texts = _texts(scenario, sources)
        return Content(_rows(texts, ledger), len(texts), ledger)

    def deep_check(
        self, paths: RunPaths, manifest: Mapping[str, Any], tokenizer: PromptTokenizer, findings: Findings
    ) -> ImageDeepCheck:
        files = self.row_files(paths, manifest)
        assert files is not None, "the data set has been verified"
        return ImageDeepCheck(files["requests"], findings)


KIND = ImageKind()


def _texts(scenario: Scenario, sources: Sources) -> PlainTexts:
    from ais_bench_prefix_cache.datasets.images.plain_texts import PlainTexts

    length = scenario.requests.input_length
    assert isinstance(length, FixedLength), "images go with texts of one length"
    return PlainTexts(
        sources.corpus,
        scenario.corpus.selection,
        sources.tokenizer,
        random_seed=scenario.run.random_seed,
        tokens=length.value,
        count=scenario.requests.count,
    )


def _rows(texts: PlainTexts, ledger: ImageLedger) -> Iterator[ImageRow]:
    for index, text in enumerate(texts):
        yield ledger.row(index, text.text)


def _recorded_image(image: Any, name: str, where: str, findings: Findings) -> ImageEntry | None:
    """The image that a data URL holds and what is said of its origin; None, with findings, where it holds none."""
    from ais_bench_prefix_cache.datasets.images.decoding import decode

    origin: dict[str, Any] = {"parquet_path": None, "row_index": None, "sample_id": None, "image_column": None}
    if not isinstance(image, dict):
        findings.add(Code.MISSING_KEY, where, "it is missing")
        return None
    for key, holds in (
        ("parquet_path", lambda value: isinstance(value, str)),
        ("row_index", is_count),
        ("sample_id", lambda value: value is None or isinstance(value, str)),
        ("image_column", lambda value: isinstance(value, str)),
    ):
        if key not in image or not holds(image[key]):
            findings.add(Code.WRONG_TYPE, f"{where}.{key}", f"it says {shown(image.get(key))}")
        origin[key] = image.get(key)
    url = image.get("data_url")
    _, _, encoded = url.partition(",") if isinstance(url, str) else ("", "", "")
    try:
        content = base64.b64decode(encoded, validate=True)
        header = decode(content)
    except (binascii.Error, ValueError) as error:
        findings.add(Code.IMAGE_DAMAGED, f"{where}.data_url", f"it does not hold a whole image: {error}")
        return None
    wanted = IMAGE_SCENARIOS[name]
    if (header.width, header.height) != (wanted.width, wanted.height):
        message = f"the image has {header.width}x{header.height} pixels"
        findings.add(Code.IMAGE_SIZE, f"{where}.data_url", message, allowed=f"{wanted.width}x{wanted.height}")
    return ImageEntry.of_content(content, header, **origin)
