"""What ``import ais_bench_prefix_cache`` gives: the commands as functions, their results as frozen records.

Nothing here is a rule: each function calls what its command calls. A call changes nothing in the process that makes it.
"""
