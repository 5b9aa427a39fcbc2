"""The same prompts from other tools: vLLM's prefix_repetition and inference-perf's shared_prefix.

Ten groups, 4,096 tokens a prompt, of which 2,464 (154 blocks of 16) are shared. The tools' clocks run while they
generate, after their imports and the loading of the tokenizer; ours runs from process start to finished files. All
prompts are then encoded whole by ``AutoTokenizer``'s tokenizer. A tool runs under an interpreter of its own, named by
an option; without one it is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from tests.benchmarks.measuring import (
    PROGRAM,
    PROJECT,
    find_data,
    newest_manifest,
    run,
    scratch_directory,
    warmup_sections,
    write_scenario,
)

GROUPS, PREFIX, SUFFIX = 10, 2464, 1632


def judged(prompts: list[tuple[object, int, list[int]]]) -> tuple[float, float]:
    """Shares of the prompts that have the wanted length, and whose shared tokens are those of most of their group.

    ``prompts``: (group, shared tokens, ids).
    """
    exact = sum(len(ids) == PREFIX + SUFFIX for _, _, ids in prompts)
    usual: dict[tuple[object, int], Counter[tuple[int, ...]]] = {}
    for group, shared, ids in prompts:
        usual.setdefault((group, shared), Counter())[tuple(ids[:shared])] += 1
    intact = sum(counter.most_common(1)[0][1] for counter in usual.values())
    return exact / len(prompts), intact / len(prompts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--prompts", type=int, default=200, help="a multiple of ten (default: %(default)s)")
    parser.add_argument("--vllm-python", type=Path, default=PROJECT / ".venv-vllm" / "bin" / "python")
    parser.add_argument(
        "--inference-perf-python", type=Path, default=PROJECT / ".venv-inference-perf" / "bin" / "python"
    )
    arguments = parser.parse_args()
    data = find_data(arguments.tokenizer, arguments.corpus)
    sys.modules["torch"] = None  # type: ignore[assignment]  # not needed, and seconds to import
    from transformers import AutoTokenizer

    backend = AutoTokenizer.from_pretrained(str(data.tokenizer), local_files_only=True).backend_tokenizer

    def ids_of(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=True)]

    print(f"{arguments.prompts} prompts.\n")
    print("| tool | wall | processor | tokens a second (processor) | exact length | prefix intact |")
    print("|---|---|---|---|---|---|")
    notes = []

    def show(tool: str, wall: float, cpu: float, prompts: list[tuple[object, int, list[int]]]) -> None:
        exact, intact = judged(prompts)
        speed = len(prompts) * (PREFIX + SUFFIX) / cpu / 1e6
        print(f"| {tool} | {wall:.1f} s | {cpu:.1f} s | {speed:.2f} million | {exact:.1%} | {intact:.1%} |", flush=True)

    with scratch_directory() as directory:
        for tool, python in (
            ("vllm", arguments.vllm_python),
            ("inference-perf", arguments.inference_perf_python),
        ):
            if not python.is_file():
                notes.append(
                    f"Left out: {tool} (no interpreter {python.name!r} for it; name one with --{tool}-python)."
                )
                continue
            output = directory / f"{tool}.jsonl"
            numbers = (arguments.prompts, GROUPS, PREFIX, SUFFIX)
            script = Path(__file__).with_name("peer_prompts.py")
            finished = run([python, script, tool, data.tokenizer, *map(str, numbers), output])
            figures = json.loads(finished.output.strip().splitlines()[-1])
            made = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
            texts = [text for _, text in made]
            prompts = [(group, PREFIX, ids) for (group, _), ids in zip(made, ids_of(texts), strict=True)]
            show(tool, figures["wall"], figures["cpu"], prompts)
        for count in (arguments.prompts, 10_000):
            scenario = write_scenario(directory, f"ours-{count}", data, **warmup_sections(count, groups=GROUPS))
            finished = run([*PROGRAM, "prepare", "--mode", "text", "--scenario", scenario])
            full = Path(str(newest_manifest(directory, f"ours-{count}")).replace(".manifest.json", ".full.jsonl"))
            with full.open(encoding="utf-8") as lines:
                rows = [json.loads(line) for line, _ in zip(lines, range(arguments.prompts), strict=False)]
            ids = ids_of([row["question"] for row in rows])
            prompts = [(row["group_id"], row["shared_prefix_tokens"], one) for row, one in zip(rows, ids, strict=True)]
            exact, intact = judged(prompts)
            speed = count * (PREFIX + SUFFIX) / finished.cpu / 1e6
            print(
                f"| prepare, {count:,} prompts, whole command | {finished.wall:.1f} s | {finished.cpu:.1f} s "
                f"| {speed:.2f} million | {exact:.1%} | {intact:.1%} |",
                flush=True,
            )
    if notes:
        print("\n" + "\n".join(notes))


if __name__ == "__main__":
    main()
