"""What ``report --json`` prints: the figures of a run as numbers, with units in their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ais_bench_prefix_cache.analysis.performance import PERFORMANCE_KEY
from ais_bench_prefix_cache.service.client import EMBEDDED_SERVER


def report_document(
    analysis: Mapping[str, Any], config: Mapping[str, Any], aisbench: Mapping[str, Any] | None
) -> dict[str, Any]:
    """``{run, prefix_cache, performance, aisbench, findings, warnings}``.

    ``config`` is the effective configuration of the run, ``aisbench`` AISBench's own files, with figures as it wrote
    them; None where they are gone.
    """
    return {
        "run": run_section(analysis, config),
        "prefix_cache": prefix_cache_section(analysis),
        "performance": analysis.get(PERFORMANCE_KEY),
        "aisbench": aisbench,
        "findings": list(analysis.get("findings", ())),
        "warnings": list(analysis.get("warnings", ())),
    }


def server_versions(analysis: Mapping[str, Any]) -> list[str]:
    """What the servers of a run said of themselves, each once, in order."""
    precheck = (analysis.get("runtime") or {}).get("precheck") or {}
    return sorted({str(version) for version in (precheck.get("versions") or {}).values()})


def imitation_answered(analysis: Mapping[str, Any]) -> bool:
    """Whether the embedded server was measured, and no real one."""
    return any(EMBEDDED_SERVER in version for version in server_versions(analysis))


def run_section(analysis: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Who was asked what, and when."""
    service, runtime = config["service"], analysis["runtime"]
    model = config["aisbench"]["model"]
    sent = runtime.get("aisbench", {})
    theory = analysis.get("theory")
    mode = ", ".join(config["multimodal"]["scenarios"]) if theory is None else config["prefix_cache"]["mode"]
    if theory is not None and "turns" in theory:
        mode = f"conversations, {config['conversation']['answers']} answers"
        if (form := config["conversation"].get("form", "token_ids")) != "token_ids":
            mode += f" as {form}"
        routing = config["conversation"].get("routing", "sticky")
        if routing != "sticky":
            mode += f", {routing} routing"
    return {
        "run": runtime.get("run"),
        "model": service["model"],
        "server_versions": server_versions(analysis),
        "mode": mode,
        "requests": (theory or {}).get("requests", config["requests"]["count"]),
        "dp_size": service["dp_size"],
        "batch_size": sent.get("batch_size", model["batch_size"]),
        "request_rate_per_s": model.get("request_rate"),
        "stream": sent.get("stream", model["stream"]) if sent else model.get("stream"),
        "sending_started_at": runtime.get("phases", {}).get("formal", {}).get("started_at"),
    }


def prefix_cache_section(analysis: Mapping[str, Any]) -> dict[str, Any]:
    """Rates are fractions of 1, differences percentage points; what was not measured is null."""
    actual = analysis.get("actual") or {}
    theory = analysis.get("theory") or {}
    requests = analysis.get("requests") or {}
    return {
        "target_hit_rate": analysis.get("requested_target_hit_rate"),
        "theoretical_hit_rate": analysis.get("theoretical_hit_rate"),
        "actual_hit_rate": actual.get("global_hit_rate"),
        "theory_actual_difference_pp": analysis.get("theory_actual_signed_difference_pp"),
        "theory_target_difference_pp": analysis.get("target_absolute_difference_pp"),
        "theoretical_hit_tokens": theory.get("hit_tokens"),
        "theoretical_input_tokens": theory.get("input_tokens"),
        "actual_hit_tokens": actual.get("global_hits"),
        "actual_input_tokens": actual.get("global_queries"),
        "requests_compared": requests.get("compared"),
        "requests_as_predicted": requests.get("matched"),
        "by_dp": {
            rank: {
                "hit_rate": entry["hit_rate"],
                "hit_tokens": entry["hits"],
                "input_tokens": entry["queries"],
            }
            for rank, entry in actual.get("by_dp", {}).items()
        },
    }
