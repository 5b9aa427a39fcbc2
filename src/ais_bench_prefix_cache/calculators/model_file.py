"""The file with a model's configuration, and what transformers knows about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.calculators.config_reader import text_part
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError
from ais_bench_prefix_cache.foundation.regular_files import open_regular


def read_model_config(path: Path) -> Mapping[str, Any]:
    """A ``config.json`` with what it leaves to the defaults of its class, if transformers knows that class.

    Raises:
        CalculationError: the file holds no JSON object.
        OSError: the file cannot be read.
    """
    try:
        with open_regular(path, follow_links=True) as stream:
            config = json.loads(stream.read().decode("utf-8-sig"))
    except RecursionError:
        raise CalculationError.of(Code.MODEL_CONFIG, str(path), "is nested too deeply") from None
    except ValueError as error:
        raise CalculationError.of(Code.MODEL_CONFIG, str(path), f"is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise CalculationError.of(Code.MODEL_CONFIG, str(path), "is not a JSON object")
    return with_defaults(config)


def with_defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``config``, or its text part completed by the defaults of its class, if transformers knows that class."""
    text = dict(text_part(config))
    if not isinstance(text.get("model_type"), str):
        return config
    try:
        from transformers import AutoConfig  # Takes seconds, and a model in numbers needs none of it.

        given = {key: value for key, value in text.items() if key not in ("model_type", "architectures")}
        known = AutoConfig.for_model(text["model_type"], **given).to_dict()
    except Exception:
        # An unknown class, or one that refuses the file: what is missing is then said by its key.
        return text
    decided = {key: known[key] for key, value in text.items() if value is None and key in known}
    return {**text_part(known), **text, **decided}
