"""Data sets of image requests."""
