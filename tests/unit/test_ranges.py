"""Sets of integers as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.ranges import dump_ranges, parse_ranges


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], ""),
        ([0], "0"),
        ([3, 1, 2, 2], "1-3"),
        ([0, 1, 2, 3, 4, 7, 9, 10, 11, 12], "0-4,7,9-12"),
        ([5, 3], "3,5"),
    ],
)
def test_ranges_are_written_canonically(values: list[int], text: str) -> None:
    assert dump_ranges(values) == text
    assert parse_ranges(text) == set(values)


@given(st.sets(st.integers(0, 200)))
def test_ranges_survive_a_round_trip(values: set[int]) -> None:
    assert parse_ranges(dump_ranges(values)) == values
