"""The ids of a file while it is read: each once, on disk, so that memory does not grow with the file."""

from __future__ import annotations

from hashlib import blake2b
from types import TracebackType
from typing import Self

import orjson

from pipeline.jobs.digest_table import DIGEST_BYTES, DigestTable
from pipeline.ports import JsonObject


class SeenIds:
    """Who took which id, and how often the same content came without one. A context manager."""

    def __init__(self) -> None:
        self._lines = DigestTable()
        self._contents = DigestTable()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        self._contents.close()

    def take(self, custom_id: str, line: int) -> int:
        """Take an id for a line; returns the line that has it: another one where it was taken before."""
        return self._lines.setdefault(blake2b(custom_id.encode(), digest_size=DIGEST_BYTES).digest(), line)

    def id_of_content(self, body: JsonObject) -> str:
        """The id of a line that brings none: from its content and the how-manyth of that content it is.

        The same lines in another order get the same ids. The id is not taken yet.
        """
        digest = blake2b(orjson.dumps(body, option=orjson.OPT_SORT_KEYS), digest_size=DIGEST_BYTES)
        occurrence = self._contents.increment(digest.digest())
        return f"auto-{digest.hexdigest()}" + (f"-{occurrence}" if occurrence > 1 else "")

    def take_for_invalid(self, line: int) -> str:
        """Take an id for an invalid line that has none of its own."""
        name, attempt = f"invalid-line-{line}", 1
        while self.take(name, line) != line:
            attempt += 1
            name = f"invalid-line-{line}-{attempt}"
        return name
