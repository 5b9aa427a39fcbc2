"""Answers that need no data set: sizes, batches, replays."""
