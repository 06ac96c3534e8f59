"""The words of advice: what a line says. Knows nothing about how it is come by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Possible = Literal["yes", "no", "unknown"]

#: ``measured``: the worker tries it on the job's own rows and keeps it while it is faster.
Chosen = Literal["yes", "no", "measured"]


@dataclass(frozen=True, slots=True)
class Gain:
    """Times plain decoding, from ``least`` to ``most`` (None is not known), and what that rests on."""

    least: float | None
    most: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One line of the advice. ``memory_bytes`` is beside the weights; below zero it saves; None is not known."""

    name: str
    possible: Possible
    chosen: Chosen
    memory_bytes: int | None
    gain: Gain
    why: str


@dataclass(frozen=True, slots=True)
class Room:
    """The memory that rows have, and how many fit. ``row_tokens`` is the longest row's."""

    budget_bytes: int
    row_tokens: int | None
    rows: int | None
    width: int


#: Of a way that does not run here.
NO_GAIN = Gain(None, None, "none: it does not run")

#: Of one that nobody has measured for such a model and host.
UNKNOWN_GAIN = Gain(None, None, "unknown: nothing was measured for such a model and host")
