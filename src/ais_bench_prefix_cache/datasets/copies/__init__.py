"""Data sets whose prompts copy earlier ones."""
