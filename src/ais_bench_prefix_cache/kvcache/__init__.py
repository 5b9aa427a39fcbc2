"""A prefix cache as vLLM keeps it: block hash chain, block pool, replay.

Pure, and ignorant of planning and prompts: the independent witness.
"""
