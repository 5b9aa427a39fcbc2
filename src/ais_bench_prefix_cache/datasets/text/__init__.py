"""Data sets of text prompts whose hits are planned."""
