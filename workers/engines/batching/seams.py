"""What the scheduler asks of others: a rule over logits, and somebody who guesses the next tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


class LogitsRule(Protocol):
    """What one row's request does to its logits before a token is chosen: penalties, bias, a grammar."""

    @property
    def stretch(self) -> float:
        """Largest factor by which it widens a difference between two logits; 1 for what only adds or excludes."""
        ...

    def apply(self, logits: Logits, tokens: Sequence[int]) -> Logits:
        """The logits to choose from after the answer's first ``len(tokens)`` tokens; -inf excludes a token.

        A pure function of its arguments: (V,) float32 in, (V,) float32 out, and ``logits`` stays as it is. The
        scheduler may ask for a shorter or another continuation than the last time (a guess that was not taken).
        """
        ...


class Proposer(Protocol):
    """Guesses what rows will say next. A guess costs or saves time; it never changes an answer.

    Rows are known by a number that the scheduler gives out and never uses twice.
    """

    name: str

    def begin(self, row: int, prompt: Sequence[int]) -> None:
        """A row starts to be decoded; nothing of its answer exists yet."""
        ...

    def propose(self, limits: Mapping[int, int]) -> Mapping[int, Sequence[int]]:
        """For each row at most so many tokens that may come next; a row without a guess may be left out."""
        ...

    def advance(self, row: int, tokens: Sequence[int], *, proposed: int, accepted: int) -> None:
        """The row said ``tokens`` (at least one), of which the first ``accepted`` of ``proposed`` were guessed."""
        ...

    def end(self, row: int) -> None:
        """The row is finished or gone."""
        ...
