"""The HTTP client of the inference service: preflight, probe, reset, warm-up, scrape."""
