"""Prefix-cache benchmarks for LLM servers whose hit rate is known, to the token, before they run."""

__version__ = "0.2.0"
