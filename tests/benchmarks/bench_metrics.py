"""Two metric texts of 64 ranks: parsed and subtracted, in one process, after its imports.

The texts are a real vLLM text whose samples of one engine are repeated for 64.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time

from tests.benchmarks.measuring import TEST_DATA, print_bars, verdict
from tests.doubles.metric_texts import snapshot

from ais_bench_prefix_cache.counters.difference import difference

RANKS, TIMES, BAR = 64, 15, 200.0
SOURCE = TEST_DATA / "prom" / "05_vllm0320_dp2_apiserver2_active.prom"


def text_of_ranks(text: str, ranks: int) -> str:
    """``text`` with the lines of engine 0 once for each rank, in place of those of all engines."""
    lines = []
    for line in text.splitlines():
        if 'engine="0"' in line:
            lines += [line.replace('engine="0"', f'engine="{rank}"') for rank in range(ranks)]
        elif 'engine="' not in line:
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    text = text_of_ranks(SOURCE.read_text(encoding="utf-8"), RANKS)
    later = re.sub(r"(?m)^(vllm:prefix_cache_queries_total\{.*) \S+$", r"\1 9000000000", text)
    later = re.sub(r"(?m)^(vllm:prefix_cache_hits_total\{.*) \S+$", r"\1 5000000000", later)
    took = []
    for _ in range(TIMES):
        begin = time.process_time()
        early, late = snapshot(text, dp_size=RANKS), snapshot(later, dp_size=RANKS)
        delta = difference(early, late)
        took.append(1000 * (time.process_time() - begin))
        assert len(delta.by_rank) == RANKS
    print(f"Each text has {len(text.splitlines()):,} lines, {len(text) / 1e6:.1f} MB.")
    asked = verdict(statistics.median(took), BAR, unit=" ms")
    print_bars([f"| two texts of {RANKS} ranks parsed and subtracted, processor | {asked} |"])


if __name__ == "__main__":
    main()
