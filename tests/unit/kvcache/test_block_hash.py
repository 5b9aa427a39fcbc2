"""Which requests share which block hashes."""

from __future__ import annotations

import numpy as np
import pytest

from ais_bench_prefix_cache.kvcache.block_hash import MAX_TOKEN_ID, ExtraKeys, MultimodalItem, block_hashes

TOKENS = list(range(100, 116))


def shared_blocks(first: list[bytes], second: list[bytes]) -> list[bool]:
    return [one == other for one, other in zip(first, second, strict=True)]


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (16, 4)])
def test_only_full_blocks_have_a_hash(num_tokens: int, num_blocks: int) -> None:
    assert len(block_hashes(TOKENS[:num_tokens], 4)) == num_blocks


def test_a_block_depends_on_everything_before_it() -> None:
    other = [*TOKENS[:5], 7, *TOKENS[6:]]
    assert shared_blocks(block_hashes(TOKENS, 4), block_hashes(other, 4)) == [True, False, False, False]


def test_equal_blocks_at_different_positions_differ() -> None:
    assert len(set(block_hashes([1, 2, 1, 2, 1, 2], 2))) == 3


def test_hashes_continue_where_known_ones_end() -> None:
    whole = block_hashes(TOKENS, 4)
    assert block_hashes(TOKENS, 4, known=whole[:2]) == whole[2:]


def test_lists_and_arrays_of_any_integer_type_agree() -> None:
    assert block_hashes(np.array(TOKENS, dtype=np.uint16), 4) == block_hashes(TOKENS, 4)


def test_hashes_do_not_change_between_machines() -> None:
    # BLAKE2b-128 of 16 zero bytes and the ids as little-endian 32-bit integers: computed once with b2sum -l 128.
    assert [value.hex() for value in block_hashes([1, 2, 3, 4], 4)] == ["f23680cf9d0cdff61c7fe464c491f63b"]


@pytest.mark.parametrize("token_id", [-1, MAX_TOKEN_ID + 1])
def test_ids_that_are_none_are_refused(token_id: int) -> None:
    with pytest.raises(ValueError, match="token ids lie between 0 and 4294967295"):
        block_hashes([1, 2, 3, token_id], 4)


@pytest.mark.parametrize(
    ("keys", "same_as_plain"),
    [
        (ExtraKeys(), [True, True, True, True]),
        (ExtraKeys(cache_salt="s"), [False, False, False, False]),
        (ExtraKeys(lora=("a", "/a")), [False, False, False, False]),
        (ExtraKeys(multimodal_items=(MultimodalItem("i", 6, 3),)), [True, False, False, False]),
        (ExtraKeys(multimodal_items=(MultimodalItem("i", 12, 4),)), [True, True, True, False]),
    ],
)
def test_extra_keys_separate_from_the_first_block_that_they_touch(keys: ExtraKeys, same_as_plain: list[bool]) -> None:
    assert shared_blocks(block_hashes(TOKENS, 4, extra_keys=keys), block_hashes(TOKENS, 4)) == same_as_plain


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ExtraKeys(cache_salt="s"), ExtraKeys(cache_salt="t")),
        (ExtraKeys(cache_salt="s"), ExtraKeys(lora=("s", ""))),
        (ExtraKeys(lora=("a", "/a")), ExtraKeys(lora=("a", "/b"))),
        (
            ExtraKeys(multimodal_items=(MultimodalItem("i", 0, 4),)),
            ExtraKeys(multimodal_items=(MultimodalItem("j", 0, 4),)),
        ),
        (
            ExtraKeys(multimodal_items=(MultimodalItem("i", 0, 3),)),
            ExtraKeys(multimodal_items=(MultimodalItem("i", 1, 3),)),
        ),
    ],
)
def test_different_extra_keys_never_share(first: ExtraKeys, second: ExtraKeys) -> None:
    hashes = block_hashes(TOKENS, 4, extra_keys=first), block_hashes(TOKENS, 4, extra_keys=second)
    assert shared_blocks(*hashes) == [False] * 4


def test_the_salt_is_a_key_of_the_first_block_only() -> None:
    keys = ExtraKeys(cache_salt="s")
    assert [keys.of_block(start, start + 4) for start in (0, 4)] == [(("cache_salt", "s"),), ()]
