"""The embedded server: HTTP around kvcache, for demos and tests."""
