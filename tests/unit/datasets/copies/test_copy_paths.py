"""Names that a data set of copies takes; that two commands never take one stands in the e2e tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_bench_prefix_cache.datasets.copies.copy_paths import claim_names
from ais_bench_prefix_cache.foundation.errors import ArtifactError


def test_a_name_that_is_taken_is_numbered_as_long_as_there_are_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ais_bench_prefix_cache.datasets.copies.copy_paths.MOST_NUMBERED_NAMES", 3)
    wanted = tmp_path / "requests.jsonl"
    for name in ("requests.jsonl", "requests_1.jsonl"):
        (tmp_path / name).touch()
    assert claim_names(wanted).requests.name == "requests_2.jsonl"
    (tmp_path / "requests_2.jsonl").touch()
    with pytest.raises(ArtifactError) as caught:
        claim_names(wanted)
    assert [problem.code for problem in caught.value.problems] == ["NO_FREE_NAME"]
