"""Micro-batches that are a function of the whole shard: which rows are in one forward, and where a part may end.

A *group* is a number of whole items; its rows are run in batches that depend on the group alone. So a resumed shard
that leaves out finished groups computes the others exactly as an undisturbed one would. Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence for the model: the ``ordinal``-th of the item at ``item`` in the shard."""

    item: int
    ordinal: int
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Group:
    """Whole items (by place in the shard, ascending) and their rows in batches."""

    items: tuple[int, ...]
    batches: tuple[tuple[Row, ...], ...]

    def is_answered(self, done: frozenset[int]) -> bool:
        return all(item in done for item in self.items)


def freeze_groups(rows_of: Mapping[int, Sequence[Sequence[int]]], batch_size: int) -> list[Group]:
    """Cut a shard into groups, longest rows first, so that a lack of memory shows at once and padding is small.

    ``rows_of`` holds the token rows of every item that has any. Items are sorted by their longest row and joined
    while their rows fit one batch; an item with more rows than that has a group of its own, in several batches.
    """
    order = sorted(rows_of, key=lambda item: (-max(map(len, rows_of[item])), item))
    groups: list[Group] = []
    members: list[int] = []
    count = 0
    for item in order:
        if members and count + len(rows_of[item]) > batch_size:
            groups.append(_group(members, rows_of, batch_size))
            members, count = [], 0
        members.append(item)
        count += len(rows_of[item])
    if members:
        groups.append(_group(members, rows_of, batch_size))
    return groups


def _group(members: Sequence[int], rows_of: Mapping[int, Sequence[Sequence[int]]], batch_size: int) -> Group:
    rows = [Row(item, ordinal, ids) for item in members for ordinal, ids in enumerate(rows_of[item])]
    rows.sort(key=lambda row: (-len(row.ids), row.item, row.ordinal))
    return Group(tuple(sorted(members)), tuple(_slices(rows, batch_size)))


def _slices(rows: Sequence[Row], size: int) -> Iterator[tuple[Row, ...]]:
    for start in range(0, len(rows), size):
        yield tuple(rows[start : start + size])


def pad_right(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[mx.array, mx.array]:
    """Rows as one [B, L] int32 array, L the longest row, and their [B] lengths."""
    lengths = [len(row) for row in rows]
    ids = np.full((len(rows), max(lengths)), pad_id, dtype=np.int32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return mx.array(ids), mx.array(lengths, dtype=mx.int32)
