"""The two image scenarios of the contract: which image, and how often in each request."""

from __future__ import annotations

from dataclasses import dataclass

from ais_bench_prefix_cache.datasets.format.paths import IMAGE_SCENARIO_NAMES


@dataclass(frozen=True)
class ImageScenario:
    """``images`` times the same image of ``width`` × ``height`` pixels in every request."""

    width: int
    height: int
    images: int


IMAGE_SCENARIOS: dict[str, ImageScenario] = dict(
    zip(IMAGE_SCENARIO_NAMES, (ImageScenario(1920, 1080, 1), ImageScenario(1280, 720, 5)), strict=True)
)
