"""``python -m ais_bench_prefix_cache`` is the same program as ``ais-bench-prefix-cache``."""

from ais_bench_prefix_cache.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
