"""One object of a bucket as a stream, read from where it broke off when the connection ends in the middle."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from pipeline.store.bucket_faults import BROKEN_OFF, ERRORS, code_of

#: Connections that one read may use up before it is given up.
TRIES = 3

#: Asks for the object: (Range header or None, ETag that it must still have or None) to botocore's response.
Get = Callable[[str | None, str | None], dict[str, Any]]


class ObjectReader(io.RawIOBase):
    """Reads bytes ``start`` to ``end`` (None: all the rest), front to back.

    Who reads slowly (a planner between two commits) may find the connection closed by the server: it is asked again
    for the rest, and only for the same version of the object. ``fail`` turns an error into ours and raises it.
    """

    def __init__(
        self, get: Get, fail: Callable[[BaseException], NoReturn], *, start: int = 0, end: int | None = None
    ) -> None:
        """Raises what ``fail`` does for an object that is not there."""
        self._get = get
        self._fail = fail
        self._position = start
        self._end = end
        self._etag: str | None = None
        self._body: Any = None
        self._is_at_end = False
        try:
            self._ask()
        except ERRORS as error:
            fail(error)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        for attempt in range(TRIES):
            try:
                if self._body is None and not self._is_at_end:
                    self._ask()
                data = self._body.read(len(buffer)) if self._body is not None else b""
                break
            except BROKEN_OFF as error:
                self._drop()
                if attempt == TRIES - 1:
                    self._fail(error)
            except ERRORS as error:
                self._fail(error)
        if not data:
            self._is_at_end = True
            self._drop()
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        self._drop()
        super().close()

    def _ask(self) -> None:
        asked = None
        if self._position or self._end is not None:
            asked = f"bytes={self._position}-{'' if self._end is None else self._end - 1}"
        try:
            response = self._get(asked, self._etag)
        except ERRORS as error:
            if code_of(error) in ("InvalidRange", "416"):  # nothing is left from here on
                self._is_at_end = True
                return
            raise
        self._etag = response.get("ETag")
        self._body = response["Body"]

    def _drop(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            with suppress(*ERRORS):
                body.close()
