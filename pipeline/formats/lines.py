"""Lines of a binary stream, one at a time, never more of one than a limit. Knows nothing about what stands in them."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol


class _ReadsLines(Protocol):
    def readline(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class OverlongLine:
    """Stands for a line over the limit; its bytes were read past and dropped."""

    size: int


class LineReader:
    """Iterates over (number from 1, line without its ending); skips blank lines, and counts what it met.

    Lines end in ``\\n`` or ``\\r\\n``; the last one may have no ending (``is_cut`` then is true). One UTF-8 byte order
    mark at the start of the stream is taken off. A blank line is empty or ASCII white space; it keeps its number.

    Attributes:
        number: the line just given, from 1; at the end the number of lines.
        blank_lines: lines that were skipped.
        crlf_lines: lines that ended in ``\\r\\n``.
        has_bom: the stream began with a byte order mark.
        is_cut: the line just given was the last and had no ending.
    """

    def __init__(self, source: BinaryIO, *, max_line_bytes: int) -> None:
        self._source = source
        self._max_line_bytes = max_line_bytes
        self.number = 0
        self.blank_lines = 0
        self.crlf_lines = 0
        self.has_bom = False
        self.is_cut = False

    def __iter__(self) -> Iterator[tuple[int, bytes | OverlongLine]]:
        if not isinstance(self._source, io.RawIOBase):
            yield from self._split(self._source)
            return
        buffered = io.BufferedReader(self._source)  # an unbuffered file reads lines byte by byte
        try:
            yield from self._split(buffered)
        finally:
            buffered.detach()  # or the caller's file would be closed with ours

    def _split(self, source: _ReadsLines) -> Iterator[tuple[int, bytes | OverlongLine]]:
        readline = source.readline
        limit = self._max_line_bytes
        longest = limit + len(b"\r\n")
        first_longest = longest + len(codecs.BOM_UTF8)
        while data := readline(longest if self.number else first_longest):
            self.number += 1
            if self.number == 1 and data.startswith(codecs.BOM_UTF8):
                self.has_bom = True
                data = data[len(codecs.BOM_UTF8) :]
            if data.endswith(b"\r\n"):
                self.crlf_lines += 1
                line = data[:-2]
            elif data.endswith(b"\n"):
                line = data[:-1]
            elif len(data) <= limit:
                self.is_cut = True
                line = data
            else:
                yield self.number, OverlongLine(len(data) + _skip_rest(source))
                continue
            if len(line) > limit:
                yield self.number, OverlongLine(len(line))
            elif not line or line.isspace():
                self.blank_lines += 1
            else:
                yield self.number, line


def _skip_rest(source: _ReadsLines) -> int:
    """Read up to the end of an overlong line; returns its bytes without the newline."""
    skipped = 0
    while data := source.readline(1 << 20):
        skipped += len(data)
        if data.endswith(b"\n"):
            return skipped - 1
    return skipped
