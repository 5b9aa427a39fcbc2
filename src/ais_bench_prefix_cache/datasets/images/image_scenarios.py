"""The two image scenarios of the contract: which image, and how often in each request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImageScenario:
    """``images`` times the same image of ``width`` × ``height`` pixels in every request."""

    width: int
    height: int
    images: int


IMAGE_SCENARIOS: dict[str, ImageScenario] = {
    "single_1080p": ImageScenario(1920, 1080, 1),
    "multi_720p_5": ImageScenario(1280, 720, 5),
}
