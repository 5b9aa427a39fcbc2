"""Data sets of conversations: histories that grow turn by turn."""
