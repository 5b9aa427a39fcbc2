"""The warning that theory misses the wanted hit rate."""

from __future__ import annotations

from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code


def deviation_warnings(requested: float, theory: float, warning_pp: float) -> list[dict[str, Any]]:
    """The warning where ``theory`` is more than so many percentage points away from ``requested``; else empty."""
    difference = abs(theory - requested) * 100
    if difference <= warning_pp:
        return []
    return [
        {
            "code": Code.TARGET_DEVIATION.value,
            "message": f"the theoretical hit rate {theory:.4f} is {difference:.2f} percentage "
            f"points away from the requested {requested:.4f} (warning above {warning_pp:g})",
            "requested_target_hit_rate": requested,
            "theoretical_hit_rate": theory,
            "difference_pp": difference,
            "threshold_pp": float(warning_pp),
        }
    ]
