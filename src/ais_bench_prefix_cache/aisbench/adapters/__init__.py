"""Classes that run inside AISBench. Importing this package is light and cannot fail."""
