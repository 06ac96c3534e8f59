"""The item file's lines."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.items import Item, dump_item, parse_item, parse_items

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=3)
ITEMS = st.builds(
    lambda custom_id, line, body, is_error: (
        Item(custom_id, line, error=body) if is_error else Item(custom_id, line, body)
    ),
    TEXT,
    st.integers(1, 2**40),
    OBJECTS,
    st.booleans(),
)


@given(ITEMS)
def test_item_survives_its_line(item: Item) -> None:
    line = dump_item(item)
    assert parse_item(line) == item
    assert line.index(b"\n") == len(line) - 1
    assert dump_item(parse_item(line)) == line


@given(st.lists(ITEMS, max_size=5))
def test_items_survive_a_byte_range(items: list[Item]) -> None:
    assert parse_items(b"".join(map(dump_item, items))) == items


def test_line_separators_of_unicode_do_not_end_an_item() -> None:
    item = Item("a\u2028b\x85c\x0bd", 1, {"input": "x\u2029y\r\nz\x1c"})
    assert parse_items(dump_item(item)) == [item]
