"""Writes the files of an image data set, all or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.datasets.format.documents import sealed
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.writing import FileSet
from ais_bench_prefix_cache.datasets.images.image_scenarios import IMAGE_SCENARIOS
from ais_bench_prefix_cache.datasets.images.manifest import image_analysis, image_manifest, image_section
from ais_bench_prefix_cache.datasets.images.rows import image_row
from ais_bench_prefix_cache.datasets.text.rows import render_row

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.images.mmmu_parquet import ChosenImage, SearchRecord
    from ais_bench_prefix_cache.datasets.images.plain_texts import PlainText
    from ais_bench_prefix_cache.scenario.model import Scenario


def write_image_data_set(
    scenario: Scenario,
    paths: RunPaths,
    *,
    name: str,
    image: ChosenImage,
    record: SearchRecord,
    texts: Iterable[PlainText],
    text_tokens: int,
    max_tokens: int,
    corpus_sha256: str,
    tokenizer: Mapping[str, Any],
    replace: bool,
    progress: Callable[[Iterable[PlainText]], Iterator[PlainText]] = iter,
) -> dict[str, Any]:
    """Write rows, analysis and, last, the manifest; returns the manifest.

    ``name`` is the image scenario, ``record`` the search that found ``image``. ``replace`` allows the data files to
    exist already (an inspected manifest is always upgraded).
    """
    section = image_section(image)
    images = IMAGE_SCENARIOS[name].images
    with FileSet(replace=replace) as files:
        requests = files.open(paths.image_requests(name))
        for index, text in enumerate(progress(texts)):
            row = image_row(
                index,
                text.text,
                reference=section["ref"],
                images=images,
                text_tokens=len(text.token_ids),
                max_tokens=max_tokens,
            )
            requests.write(render_row(row))
        analysis = sealed(image_analysis(paths.run_id, record.warnings()))
        artifacts = {"requests": requests.finish(), "analysis": files.write_document(paths.analysis, analysis)}
        manifest = image_manifest(
            scenario,
            paths,
            name=name,
            image=section,
            record=record,
            text_tokens=text_tokens,
            max_tokens=max_tokens,
            corpus_sha256=corpus_sha256,
            tokenizer=tokenizer,
            artifacts=artifacts,
        )
        files.write_document(paths.manifest, manifest, replace=True)
        files.commit()
    return manifest
