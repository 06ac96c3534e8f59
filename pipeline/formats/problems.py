"""What can be wrong with a line of an input file, as values. Knows nothing about files, jobs or the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from pipeline.errors import InputInvalid
from pipeline.ports import JsonObject

#: Longest piece of a user's value that a message repeats, in characters.
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One invalid line. ``line`` counts from 1 and is None for a fault of the whole file; ``param`` is what to mend."""

    code: str
    line: int | None
    message: str
    param: str | None = None

    def as_json(self) -> JsonObject:
        return {"code": self.code, "line": self.line, "message": self.message, "param": self.param}

    def __str__(self) -> str:
        place = "file" if self.line is None else f"line {self.line}"
        return f"{place}: {self.code}: {self.message}"


class LineRefused(Exception):
    """A line breaks a rule; whoever knows its number makes the :class:`Problem`."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def at(self, line: int) -> Problem:
        return Problem(self.code, line, self.message, self.param)


@dataclass(frozen=True, slots=True)
class ProblemSummary:
    """All problems of a file: the first ones, counts by code, and the file that holds every one (if asked for)."""

    total: int = 0
    shown: tuple[Problem, ...] = ()
    code_counts: Mapping[str, int] = field(default_factory=dict)
    path: Path | None = None


class InvalidLines(InputInvalid):
    """The input file has invalid lines."""

    def __init__(self, message: str, summary: ProblemSummary, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.summary = summary

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The first problems, in the order of the file."""
        return self.summary.shown


def show_value(value: Any) -> str:
    """A user's value as short JSON, safe in any log, terminal or text column (no control characters)."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
