"""Data sets whose prompts copy the beginning of an earlier one, and files of them for other benchmarks."""
