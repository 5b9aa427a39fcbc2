"""The built-in AISBench templates; ``config_examples/`` holds copies to edit."""
