"""Tokenizer, corpus and the token-exact assembly of prompts."""
