"""Groups of whole items: a function of the shard, cheap in padding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.engines.microbatches import LEAST_FILL, SHORT_TOKENS, freeze_groups

SHARDS = st.dictionaries(
    st.integers(0, 60), st.lists(st.integers(1, 90).map(lambda size: [7] * size), min_size=1, max_size=12), max_size=25
)


@given(rows_of=SHARDS, batch_size=st.integers(1, 9))
def test_every_row_is_in_one_batch_of_its_item_s_group(rows_of: dict[int, list[list[int]]], batch_size: int) -> None:
    groups = freeze_groups(rows_of, batch_size)
    assert sorted(item for group in groups for item in group.items) == sorted(rows_of)
    for group in groups:
        rows = [row for batch in group.batches for row in batch]
        assert sorted((row.item, row.ordinal) for row in rows) == [
            (item, ordinal) for item in group.items for ordinal in range(len(rows_of[item]))
        ]
        assert all(1 <= len(batch) <= batch_size for batch in group.batches)
        assert len(group.batches) == 1 or len(group.items) == 1


@given(rows_of=SHARDS, batch_size=st.integers(1, 9))
def test_groups_do_not_depend_on_the_order_of_items(rows_of: dict[int, list[list[int]]], batch_size: int) -> None:
    backwards = dict(reversed(rows_of.items()))
    assert freeze_groups(backwards, batch_size) == freeze_groups(rows_of, batch_size)


def test_rows_of_like_length_share_a_batch() -> None:
    lengths = [3, 40, 4, 41, 5, 39, 2, 42]
    groups = freeze_groups({item: [[7] * length] for item, length in enumerate(lengths)}, 4)
    assert [sorted(len(row.ids) for row in group.batches[0]) for group in groups] == [[39, 40, 41, 42], [2, 3, 4, 5]]


@given(rows_of=SHARDS, batch_size=st.integers(1, 9))
def test_long_batches_are_mostly_tokens(rows_of: dict[int, list[list[int]]], batch_size: int) -> None:
    for group in freeze_groups(rows_of, batch_size):
        for batch in group.batches:
            lengths = [len(row.ids) for row in batch]
            assert max(lengths) <= SHORT_TOKENS or sum(lengths) >= LEAST_FILL * len(lengths) * max(lengths)


def test_group_is_answered_when_all_its_items_are() -> None:
    (group,) = freeze_groups({3: [[1]], 5: [[1]]}, 4)
    assert not group.is_answered(frozenset({3}))
    assert group.is_answered(frozenset({3, 5, 9}))
