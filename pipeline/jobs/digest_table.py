"""A table from 128-bit digests to positive integers that lies on disk: for sets too large to hold in memory.

Entries are gathered by a prefix of their digest and appended to an unnamed temporary file, one extent of a prefix at
a time. A bit per hash value in memory says of most new digests that they are new, so that only the others are looked
for in their prefix's extents. Memory: 8 MiB of bits, 6 MiB of entries not yet written, 8 bytes for each 128 entries.
Two keys of one digest are taken for the same: at 128 bits that is as good as never. Knows nothing about ids or lines.
"""

from __future__ import annotations

import errno
import os
import tempfile
from array import array
from types import TracebackType
from typing import Self

from pipeline.errors import StoreFull

DIGEST_BYTES = 16
_VALUE_BYTES = 8
_ENTRY_BYTES = DIGEST_BYTES + _VALUE_BYTES

#: Prefixes, and the size at which the entries of one go to disk. Searching 2,000,000 entries reads eight extents.
_PREFIXES = 2048
_EXTENT_BYTES = 128 * _ENTRY_BYTES

#: Bits of the filter: at 2,000,000 entries 3 % of new digests are looked for on disk in vain.
_FILTER_BITS = 1 << 26


class DigestTable:
    """Maps digests to integers from 1. A context manager: the file goes with it."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="pipeline-", buffering=0)  # noqa: SIM115 - closed by close()
        self._handle = self._file.fileno()
        self._end = 0
        self._filter = bytearray(_FILTER_BITS // 8)
        self._buffers = [bytearray() for _ in range(_PREFIXES)]
        self._extents = [array("Q") for _ in range(_PREFIXES)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def setdefault(self, digest: bytes, value: int) -> int:
        """The value under ``digest``; ``value`` where there was none, and from then on."""
        number = int.from_bytes(digest[:8], "little")
        place = self._find(digest, number) if self._mark(number) else None
        if place is not None:
            return self._value(place)
        self._append(digest, number, value)
        return value

    def increment(self, digest: bytes) -> int:
        """Count one more of ``digest``; returns how many there are now."""
        number = int.from_bytes(digest[:8], "little")
        place = self._find(digest, number) if self._mark(number) else None
        if place is None:
            self._append(digest, number, 1)
            return 1
        count = self._value(place) + 1
        data = count.to_bytes(_VALUE_BYTES, "little")
        buffer, offset = place
        if buffer is None:
            self._write(data, offset)
        else:
            buffer[offset : offset + _VALUE_BYTES] = data
        return count

    def _mark(self, number: int) -> bool:
        """Whether the digest may have been seen before; from now on it may."""
        bits = self._filter
        bit = number % _FILTER_BITS
        place, mask = bit >> 3, 1 << (bit & 7)
        byte = bits[place]
        if byte & mask:
            return True
        bits[place] = byte | mask
        return False

    def _find(self, digest: bytes, number: int) -> tuple[bytearray | None, int] | None:
        """Where the value of ``digest`` lies: in a buffer, or (None) in the file, and at which byte."""
        prefix = _prefix(number)
        buffer = self._buffers[prefix]
        found = _position(buffer, digest)
        if found >= 0:
            return buffer, found + DIGEST_BYTES
        for offset in self._extents[prefix]:
            found = _position(os.pread(self._handle, _EXTENT_BYTES, offset), digest)
            if found >= 0:
                return None, offset + found + DIGEST_BYTES
        return None

    def _value(self, place: tuple[bytearray | None, int]) -> int:
        buffer, offset = place
        data = (
            os.pread(self._handle, _VALUE_BYTES, offset) if buffer is None else buffer[offset : offset + _VALUE_BYTES]
        )
        return int.from_bytes(data, "little")

    def _append(self, digest: bytes, number: int, value: int) -> None:
        prefix = _prefix(number)
        buffer = self._buffers[prefix]
        buffer += digest + value.to_bytes(_VALUE_BYTES, "little")
        if len(buffer) == _EXTENT_BYTES:
            self._write(buffer, self._end)
            self._extents[prefix].append(self._end)
            self._end += _EXTENT_BYTES
            buffer.clear()

    def _write(self, data: bytes | bytearray, offset: int) -> None:
        try:
            written = os.pwrite(self._handle, data, offset)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise _disk_full() from error
        if written != len(data):  # a regular file is written short only when it runs into the end of the disk
            raise _disk_full()


def _prefix(number: int) -> int:
    """From the top bits; the filter uses the low ones."""
    return number >> 53


def _position(entries: bytes | bytearray, digest: bytes) -> int:
    """The byte at which an entry with this digest starts, or -1."""
    found = entries.find(digest)
    while found > 0 and found % _ENTRY_BYTES:
        found = entries.find(digest, found + 1)
    return found


def _disk_full() -> StoreFull:
    return StoreFull(f"{tempfile.gettempdir()} has no space left", hint="TMPDIR names another folder")
