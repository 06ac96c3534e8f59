"""The table on disk against a plain dict, across buffers and extents."""

from __future__ import annotations

import errno
import os
import random
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import StoreFull
from pipeline.jobs import digest_table
from pipeline.jobs.digest_table import DIGEST_BYTES, DigestTable


def digest_of(number: int) -> bytes:
    return blake2b(str(number).encode(), digest_size=DIGEST_BYTES).digest()


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extents of two entries and a filter that is soon full, so that little input takes every path."""
    monkeypatch.setattr(digest_table, "_EXTENT_BYTES", 2 * (DIGEST_BYTES + 8))
    monkeypatch.setattr(digest_table, "_FILTER_BITS", 1 << 10)


@pytest.mark.usefixtures("small_table")
def test_digest_table_keeps_first_values_like_a_dict() -> None:
    plain: dict[bytes, int] = {}
    chance = random.Random(1)
    with DigestTable() as table:
        for value in range(1, 40_001):
            digest = digest_of(chance.randrange(20_000))
            assert table.setdefault(digest, value) == plain.setdefault(digest, value)


@pytest.mark.usefixtures("small_table")
def test_digest_table_counts_like_a_dict() -> None:
    plain: dict[bytes, int] = {}
    chance = random.Random(2)
    with DigestTable() as table:
        for _ in range(40_000):
            digest = digest_of(chance.randrange(15_000))
            plain[digest] = plain.get(digest, 0) + 1
            assert table.increment(digest) == plain[digest]


def test_digest_table_finds_all_of_many_at_its_own_size() -> None:
    count = 300_000
    with DigestTable() as table:
        assert all(table.setdefault(digest_of(n), n) == n for n in range(1, count))
        for n in range(1, count, 97):
            assert table.setdefault(digest_of(n), count + n) == n


@pytest.mark.usefixtures("small_table")
@settings(max_examples=30)
@given(st.lists(st.sampled_from([bytes(16), b"\1" * 16, b"\0" * 15 + b"\1", b"\1" + bytes(15), b"\0\1" * 8])))
def test_digest_table_is_not_misled_by_entries_that_look_like_each_other(digests: list[bytes]) -> None:
    plain: dict[bytes, int] = {}
    with DigestTable() as table:
        for value, digest in enumerate(digests, 1):
            assert table.setdefault(digest, value) == plain.setdefault(digest, value)


@pytest.mark.usefixtures("small_table")
def test_digest_table_says_that_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", refuse)
    with DigestTable() as table:
        table.setdefault(bytes(DIGEST_BYTES), 1)
        with pytest.raises(StoreFull, match="no space left"):
            table.setdefault(b"\1" + bytes(DIGEST_BYTES - 1), 2)
