"""Data sets made from recorded traces, and reading those traces."""
