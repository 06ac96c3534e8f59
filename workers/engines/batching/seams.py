"""What the scheduler asks of others: a rule over logits, and somebody who guesses the next tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # requests know penalties, and penalties know these seams
    from workers.engines.requests import Sampling

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


class Draws(NamedTuple):
    """How a row's next token is drawn: noise is keyed by ``seed``, ``choice`` and ``position`` (tokens it has said)."""

    sampling: Sampling
    seed: int
    choice: int
    position: int


class Proposer(Protocol):
    """Guesses what rows will say next. A guess costs or saves time; it never changes an answer.

    Rows are known by a number that the scheduler gives out and never uses twice.
    """

    name: str

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values that it holds."""
        ...

    @property
    def reading_s(self) -> float:
        """Seconds of the last ``propose`` that went into reading what rows had read and said: paid once for a text."""
        ...

    def begin(self, row: int, prompt: Sequence[int], draws: Draws | None = None) -> None:
        """A row starts to be decoded, or goes on: ``prompt`` is all it has read and said.

        ``draws`` is how it draws its next token; None for one that takes the best.
        """
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

    def counters(self) -> Mapping[str, int]:
        """What it counted beside its guesses, by names that begin with its own."""
        ...
