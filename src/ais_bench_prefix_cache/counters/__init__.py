"""Prometheus texts to counters per rank, and their differences."""
