"""The prediction of evictions, held against a replay of real token sequences through the hash chain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doubles.token_replay import replay_prompts

from ais_bench_prefix_cache.analysis.cache_prediction import predict_hits
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.datasets.text.plan_replay import PlannedRequest

BLOCK = 4
requests = st.lists(
    st.tuples(
        st.integers(0, 2),  # group
        st.integers(0, 1),  # rank
        st.integers(0, 5),  # shared blocks
        st.integers(4, 17),  # further tokens
        st.integers(1, 9),  # output tokens
    ),
    min_size=1,
    max_size=30,
)


def prompt(number: int, group: int, shared: int, more: int) -> npt.NDArray[np.int64]:
    unique = 10_000 * (number + 1)
    columns = [np.arange(shared, dtype=np.int64) + 1000 * (group + 1), np.arange(more, dtype=np.int64) + unique]
    return np.concatenate(columns)


@settings(max_examples=300, deadline=None)
@given(rows=requests, usable=st.integers(11, 40), warm=st.booleans())
def test_prediction_equals_a_replay_of_tokens(
    rows: list[tuple[int, int, int, int, int]], usable: int, warm: bool
) -> None:
    plan = [(group, rank, 20) for group in range(3) for rank in range(2)] if warm else []
    columns = RequestColumns(
        group_ids=[f"group-{group}" for group, *_ in rows],
        dp_ranks=[rank for _, rank, *_ in rows],
        lane_sequences=[0] * len(rows),
        input_tokens=[shared * BLOCK + more for _, _, shared, more, _ in rows],
        hit_tokens=[0] * len(rows),
        shared_prefix_tokens=[shared * BLOCK for _, _, shared, _, _ in rows],
        max_tokens=[output for *_, output in rows],
    )
    prediction = predict_hits(
        columns,
        block_size=BLOCK,
        capacity_tokens=(usable + 1) * BLOCK,
        dp_size=2,
        warmup=[
            PlannedRequest(f"group-{group}", rank, shared + BLOCK, shared, counted=False)
            for group, rank, shared in plan
        ],
    )

    def replayed(blocks: int) -> int:
        return sum(
            replay_prompts(
                (prompt(n, group, shared * BLOCK, more) for n, (group, _, shared, more, _) in enumerate(rows)),
                (rank for _, rank, *_ in rows),
                block_size=BLOCK,
                num_ranks=2,
                num_blocks=blocks,
                warmup=[(rank, prompt(500 + n, group, shared, BLOCK)) for n, (group, rank, shared) in enumerate(plan)],
                output_tokens=(output for *_, output in rows),
            )
        )

    if prediction is None:
        # Nothing is said where everything fits: then nothing is lost either.
        assert replayed(usable) == replayed(100_000)
    else:
        assert prediction.hit_tokens == replayed(usable)
        assert prediction.capacity_tokens == (usable + 1) * BLOCK
