"""Paths in the store are made of our own ids and of nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.store import layout

STRANGE = ["", ".", "..", "a/b", "../../etc/passwd", "a\\b", "a b", "a\nb", "a\n", "a\0b", "é", "a.b", "~", "-/", "C:"]


@pytest.mark.parametrize("text", STRANGE)
def test_no_strange_segment_enters_a_path(text: str) -> None:
    for make in (
        lambda: layout.input_file(text),
        lambda: layout.part_file(text, 0, 1, 0),
        lambda: layout.vector_file(text, 0, 1, 0),
        lambda: layout.output_file(text, 1),
        lambda: layout.errors_file(text, 1),
        lambda: layout.index_file(text, 1),
        lambda: layout.index_manifest(text, 1),
    ):
        with pytest.raises(ValueError, match="not a path segment of ours"):
            make()


@given(st.text(max_size=40))
def test_a_path_has_as_many_segments_as_its_pattern_whatever_is_put_in(text: str) -> None:
    try:
        path = layout.part_file(text, 3, 1, 0)
    except ValueError:
        return
    assert path.split("/") == ["jobs", text, "parts", "3", "1-0.jsonl"]


def test_parts_of_two_leases_never_share_a_name() -> None:
    names = {layout.part_file("job", shard, token, n) for shard in range(3) for token in range(3) for n in range(3)}
    assert len(names) == 27


def test_outputs_of_two_finalizers_never_share_a_name() -> None:
    assert layout.output_file("job", 1) != layout.output_file("job", 2)
    assert layout.errors_file("job", 1) != layout.errors_file("job", 2)
    assert layout.index_file("index", 1) != layout.index_file("index", 2)


def test_an_input_lies_under_its_checksum() -> None:
    assert layout.input_file("ab" + "0" * 62) == "inputs/ab/ab" + "0" * 62 + ".jsonl"
