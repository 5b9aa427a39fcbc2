"""Text with exactly n tokens, for any tokenizer."""
