"""One step of the rows that are decoded together: a forward, and each row's next tokens chosen from it.

Whoever guesses ahead gives a row more columns; they are accepted as long as they are what the row would have chosen
anyway (the sampler's own draw, keyed by position, so the rule is lossless at any temperature). Guesses that say what
they were drawn from are judged by the stochastic rule instead. Choices that are too close to call are decided by the
canonical pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from pipeline.errors import ItemError
from workers.engines.batching.canonical import deviation
from workers.engines.batching.choosing import choose, second_best
from workers.engines.batching.lanes import Lanes, SingleLane
from workers.engines.batching.logprobs import note_logprob
from workers.engines.batching.machine import Machine
from workers.engines.batching.rows import Row
from workers.engines.batching.seams import Draws, Logits
from workers.engines.batching.stochastic import Drawn, keep_or_draw
from workers.engines.tally import Tally


@dataclass(frozen=True, slots=True)
class Advance:
    """What one row did in a step. ``error`` ends it; ``accepted`` of ``proposed`` guesses were taken."""

    row: Row
    tokens: tuple[int, ...]
    proposed: int
    accepted: int
    error: ItemError | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.row.reason is not None


class Decoder:
    """Rows in lanes; ``rows[i]`` is in lane ``i``."""

    def __init__(self, machine: Machine, lanes: Lanes | SingleLane, tally: Tally) -> None:
        self._machine = machine
        self._lanes = lanes
        self._tally = tally
        self.rows: list[Row] = []
        self.forward_s = 0.0

    @property
    def lanes(self) -> Lanes | SingleLane:
        return self._lanes

    def join(self, row: Row, source: Any, lane: int) -> None:
        """A row whose prompt, but for its last token, was read in another one's lane."""
        self._lanes.adopt(source, lane)
        self.rows.append(row)

    def leave(self, row: Row, *, is_broken: bool = False) -> None:
        """``is_broken``: its keys and values may hold what are no numbers."""
        lane = self.rows.index(row)
        self._lanes.drop(lane, is_broken=is_broken)
        self.rows[lane] = self.rows[-1]
        self.rows.pop()

    def step(self, guesses: Mapping[Row, Sequence[int]]) -> list[Advance]:
        """Every row's next token, and more where its guesses hold. Rows that are over have left."""
        inputs = [[_last(row), *guesses.get(row, ())] for row in self.rows]
        with self._tally.call():
            start = time.monotonic()
            block, margins = self._forward(inputs)
            self.forward_s = time.monotonic() - start
            heads = _Heads(block, self._doubts(margins))
            advances = [self._take(lane, guesses.get(row, ()), heads) for lane, row in enumerate(self.rows)]
            self._lanes.advance([advance.accepted + 1 for advance in advances])
            self._mend(advances, heads)
        for advance in advances:
            if advance.is_over:
                self.leave(advance.row, is_broken=advance.error is not None)
        return advances

    def _forward(self, inputs: list[list[int]]) -> tuple[Logits, np.ndarray[Any, Any] | None]:
        """(rows, columns, V) float32, and how close routers were, (rows, columns)."""
        routers = self._machine.routers
        with routers.listening() as scores:
            logits = self._lanes.forward(inputs).astype(mx.float32)
        margins = routers.margins(scores, (logits.shape[0], logits.shape[1]))
        mx.eval(logits, self._lanes.arrays, *([] if margins is None else [margins]))
        return np.asarray(logits), None if margins is None else np.array(margins)

    def _doubts(self, margins: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
        """(rows, columns): a router's pick was close there, or in a column before it, which it looks at."""
        if margins is None or not self._machine.is_exact or not self._lanes.can_rewind:
            return None
        ends = [length + margins.shape[1] for length in self._lanes.lengths]
        bounds = np.array([self._machine.routers.bounds.bound(end) for end in ends])
        return np.logical_or.accumulate(margins <= bounds[:, None], axis=1)

    def _take(self, lane: int, guess: Sequence[int], heads: _Heads) -> Advance:
        """A row's tokens of this step: one, and one more for each guess that holds."""
        row, accepted = self.rows[lane], 0
        taken: list[int] = []
        try:
            while True:
                if isinstance(guess, Drawn) and row.draws is not None:
                    token = self._keep_or_draw(row, row.draws, guess, heads.logits[lane, len(taken)], len(taken))
                else:
                    token = self._choose(row, lane, len(taken), heads)
                taken.append(token)
                is_over = row.add(token, time.monotonic(), is_end=token in self._machine.end_tokens)
                is_right = len(taken) <= len(guess) and _holds(guess[len(taken) - 1], token)
                accepted += is_right
                if is_over or not is_right:
                    return Advance(row, tuple(taken), len(guess), accepted)
        except FloatingPointError as error:
            return self._failed(row, taken, guess, ItemError(str(error), code="non_finite_logits"))
        except ItemError as error:
            return self._failed(row, taken, guess, error)
        except Exception as error:  # noqa: BLE001 - a row's rule or scanner may raise anything, and harms that row alone
            return self._failed(row, taken, guess, ItemError(f"the answer cannot go on: {error}", code="decode_failed"))

    @staticmethod
    def _failed(row: Row, taken: Sequence[int], guess: Sequence[int], error: ItemError) -> Advance:
        return Advance(row, tuple(taken), len(guess), 0, error)

    def _choose(self, row: Row, lane: int, column: int, heads: _Heads) -> int:
        machine, rule = self._machine, row.rule
        bound = machine.bounds.bound(len(row.prompt) + len(row.tokens)) if machine.is_exact else 0.0
        is_doubtful = heads.is_doubtful(lane, column)
        if rule is None and row.sampling.is_greedy and row.top_logprobs is None and not is_doubtful:
            token, margin = heads.best(lane, column)
            if bound < margin < math.inf:  # not so where a logit is infinite, or none is a number
                return token
        self._tally.count("choices")
        if is_doubtful:
            ruled = self._ruled(row, self._canonical(row))
            choice = choose(ruled, row.sampling, row.seed, row.choice, len(row.tokens), 0.0)
        else:
            logits = heads.logits[lane, column]
            ruled = self._ruled(row, logits)
            stretch = 1.0 if rule is None else rule.stretch
            choice = choose(ruled, row.sampling, row.seed, row.choice, len(row.tokens), bound * stretch)
            if not choice.settled and machine.is_exact:
                canonical = self._canonical(row)
                machine.bounds.see(len(row.prompt) + len(row.tokens), deviation(logits, canonical))
                ruled = self._ruled(row, canonical)
                choice = choose(ruled, row.sampling, row.seed, row.choice, len(row.tokens), 0.0)
        if row.top_logprobs is not None:
            note_logprob(row, ruled, choice.token)
        return choice.token

    def _keep_or_draw(self, row: Row, draws: Draws, guess: Drawn, logits: Logits, place: int) -> int:
        """By the stochastic rule; it promises no particular tokens, so nothing is too close to call."""
        ruled = self._ruled(row, logits)
        token = keep_or_draw(ruled, draws, guess, place)
        self._tally.count("choices")
        if row.top_logprobs is not None:
            note_logprob(row, ruled, token)
        return token

    def _canonical(self, row: Row) -> Logits:
        """The logits that decide."""
        tokens = row.so_far
        self._tally.count("canonical_choices")
        self._tally.count("canonical_tokens", len(tokens))
        return self._machine.canonical.last(tokens)

    @staticmethod
    def _ruled(row: Row, logits: Logits) -> Logits:
        return logits if row.rule is None else row.rule.apply(logits, row.tokens)

    def _mend(self, advances: Sequence[Advance], heads: _Heads) -> None:
        """Rows in which a router's pick was close go on from keys and values of the canonical pass."""
        for lane, advance in enumerate(advances):
            if advance.is_over or not heads.is_doubtful(lane, advance.accepted):
                continue
            tokens = advance.row.so_far[: self._lanes.lengths[lane]]
            assert isinstance(self._lanes, Lanes)  # what has no lanes cannot rewind, and is not doubted
            self._lanes.replace(lane, self._machine.canonical.read(tokens))
            self._tally.count("canonical_mends")
            self._tally.count("canonical_tokens", len(tokens))


class _Heads:
    """The logits of a step, (rows, columns, V).

    ``doubts``: where experts may be others than the canonical pass picks, so that logits say nothing.
    """

    def __init__(self, logits: Logits, doubts: np.ndarray[Any, Any] | None) -> None:
        self.logits = logits
        self._doubts = doubts

    def is_doubtful(self, lane: int, column: int) -> bool:
        return self._doubts is not None and bool(self._doubts[lane, column])

    def best(self, lane: int, column: int) -> tuple[int, float]:
        """(token, lead over the second best)."""
        logits = self.logits[lane, column]
        token = int(logits.argmax())
        return token, float(logits[token] - second_best(logits, token))


def _holds(guess: int, token: int) -> bool:
    """The acceptance rule: a guess stands if it is what the row would have chosen, greedy or drawn."""
    return guess == token


def _last(row: Row) -> int:
    return row.tokens[-1] if row.tokens else row.prompt[-1]
