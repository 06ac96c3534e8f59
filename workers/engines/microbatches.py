"""Micro-batches that are a function of the whole shard: which rows are in one forward, and where a part may end.

A *group* is a number of whole items; its rows are run in batches that depend on the group alone. So a resumed shard
that leaves out finished groups computes the others exactly as an undisturbed one would. Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

#: Least share of a batch's cells that hold tokens and not padding; a row that would go below starts another batch.
LEAST_FILL = 0.75

#: Rows up to this many tokens share a batch whatever their lengths: another forward would cost more than padding.
SHORT_TOKENS = 32


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
    while their rows fit one batch; an item whose rows do not has a group of its own, in several batches.
    """
    order = sorted(rows_of, key=lambda item: (-max(map(len, rows_of[item])), item))
    groups: list[Group] = []
    members: list[int] = []
    gauge = _Gauge(batch_size)
    for item in order:
        lengths = sorted(map(len, rows_of[item]), reverse=True)
        if members and not gauge.has_room(lengths):
            groups.append(_group(members, rows_of, batch_size))
            members, gauge = [], _Gauge(batch_size)
        members.append(item)
        gauge.add(lengths)
    if members:
        groups.append(_group(members, rows_of, batch_size))
    return groups


class _Gauge:
    """How full a batch is; rows come longest first."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._longest = self._rows = self._tokens = 0

    def has_room(self, lengths: Sequence[int]) -> bool:
        rows, longest = self._rows + len(lengths), self._longest or lengths[0]
        if rows > self._batch_size:
            return False
        return longest <= SHORT_TOKENS or self._tokens + sum(lengths) >= LEAST_FILL * rows * longest

    def add(self, lengths: Sequence[int]) -> None:
        self._longest = self._longest or lengths[0]
        self._rows += len(lengths)
        self._tokens += sum(lengths)


def _group(members: Sequence[int], rows_of: Mapping[int, Sequence[Sequence[int]]], batch_size: int) -> Group:
    rows = [Row(item, ordinal, ids) for item in members for ordinal, ids in enumerate(rows_of[item])]
    rows.sort(key=lambda row: (-len(row.ids), row.item, row.ordinal))
    batches: list[list[Row]] = []
    gauge = _Gauge(batch_size)
    for row in rows:
        if not batches or not gauge.has_room([len(row.ids)]):
            batches.append([])
            gauge = _Gauge(batch_size)
        batches[-1].append(row)
        gauge.add([len(row.ids)])
    return Group(tuple(sorted(members)), tuple(map(tuple, batches)))


def pad_right(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[mx.array, mx.array]:
    """Rows as one [B, L] int32 array, L the longest row, and their [B] lengths."""
    lengths = [len(row) for row in rows]
    ids = np.full((len(rows), max(lengths)), pad_id, dtype=np.int32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return mx.array(ids), mx.array(lengths, dtype=mx.int32)
