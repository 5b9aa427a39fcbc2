"""The Scenario: its JSON Schema, loading, defaults, cross-field checks and the frozen model.

Only the model is imported here; :func:`ais_bench_prefix_cache.scenario.loading.load_scenario` reads a file.
"""
