"""The line reader: endings, marks, blanks and the limit."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.lines import LineReader, OverlongLine


def read_all(data: bytes, limit: int = 100) -> tuple[list[tuple[int, bytes | OverlongLine]], LineReader]:
    reader = LineReader(io.BytesIO(data), max_line_bytes=limit)
    return list(reader), reader


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"a", [(1, b"a")]),
        (b"a\n", [(1, b"a")]),
        (b"a\nb\n", [(1, b"a"), (2, b"b")]),
        (b"a\r\nb\r\n", [(1, b"a"), (2, b"b")]),
        (b"a\n\nb", [(1, b"a"), (3, b"b")]),
        (b"a\n \t\r\nb\n\n", [(1, b"a"), (3, b"b")]),
        (b"\xef\xbb\xbfa\n", [(1, b"a")]),
        (b"\xef\xbb\xbf", []),
        (b"a\n\xef\xbb\xbfb\n", [(1, b"a"), (2, b"\xef\xbb\xbfb")]),
        (b"a\rb\n", [(1, b"a\rb")]),
    ],
)
def test_line_reader_splits_lines(data: bytes, expected: list[tuple[int, bytes]]) -> None:
    assert read_all(data)[0] == expected


def test_line_reader_counts_what_it_met() -> None:
    _, reader = read_all(b"\xef\xbb\xbfa\r\n\nb\r\n  \nlast")
    assert (reader.number, reader.blank_lines, reader.crlf_lines) == (5, 2, 2)
    assert reader.has_bom
    assert reader.is_cut


def test_line_reader_knows_that_a_file_with_a_last_newline_is_whole() -> None:
    assert not read_all(b"a\nb\n")[1].is_cut


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"x\n"])
@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_line_reader_takes_a_line_of_exactly_the_limit(start: bytes, ending: bytes) -> None:
    lines, _ = read_all(start + b"y" * 10 + ending, limit=10)
    assert lines[-1][1] == b"y" * 10


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"x\n"])
@pytest.mark.parametrize("excess", [1, 2, 3, 4, 5, 6, 3_000_000])
@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_line_reader_drops_a_longer_line_and_goes_on_after_it(start: bytes, excess: int, ending: bytes) -> None:
    after = b"after" if ending else b""
    lines, reader = read_all(start + b"y" * (10 + excess) + ending + after, limit=10)
    place = start.count(b"\n") + 1
    assert lines[place - 1] == (place, OverlongLine(10 + excess))
    assert lines[place:] == ([(place + 1, after)] if after else [])
    assert reader.number == place + bool(after)


def test_line_reader_reads_an_unbuffered_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a\nb")
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as source:
        assert list(LineReader(cast(BinaryIO, source), max_line_bytes=10)) == [(1, b"a"), (2, b"b")]


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line and b"\r" not in line)))
def test_line_reader_gives_back_what_was_joined(lines: list[bytes]) -> None:
    found = read_all(b"".join(line + b"\n" for line in lines))[0]
    bom = b"\xef\xbb\xbf"
    expected = [line.removeprefix(bom) if place == 0 else line for place, line in enumerate(lines)]
    kept = [(number, line) for number, line in enumerate(expected, 1) if line and not line.isspace()]
    assert found == kept
