"""The problems of a file while it is read: the first kept, all counted, all written where somebody asked for them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import orjson

from pipeline.errors import UsageError
from pipeline.formats.problems import Problem, ProblemSummary

#: Problems that are kept to be shown.
SHOWN_PROBLEMS = 100


class ProblemLog:
    """A context manager; the file is made with the first problem, so a sound input leaves none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._shown: list[Problem] = []
        self._counts: Counter[str] = Counter()
        self.total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, problem: Problem) -> None:
        self.total += 1
        self._counts[problem.code] += 1
        if len(self._shown) < SHOWN_PROBLEMS:
            self._shown.append(problem)
        if self._path is None:
            return
        if self._file is None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("wb")
            except OSError as error:
                raise UsageError(
                    f"the file for errors cannot be written: {error.strerror}", place=str(self._path)
                ) from error
        self._file.write(orjson.dumps(problem.as_json()) + b"\n")

    def summary(self) -> ProblemSummary:
        """What was found so far; the file is flushed."""
        if self._file is not None:
            self._file.flush()
        path = self._path if self._file is not None else None
        return ProblemSummary(self.total, tuple(self._shown), dict(self._counts.most_common()), path)
