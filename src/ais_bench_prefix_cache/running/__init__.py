"""The sequence of a run: from a prepared data set through the service and AISBench to a complete analysis."""
