"""The main job from beginning to end on one machine: embedded server, real tokenizer, real AISBench."""
