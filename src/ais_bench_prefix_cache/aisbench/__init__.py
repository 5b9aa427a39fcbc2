"""AISBench: its config, its process, its results."""
