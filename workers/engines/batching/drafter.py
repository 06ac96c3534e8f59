"""A second model guesses: it reads what rows read and say, and writes a few tokens ahead for all of them together.

Between two rounds its lane of a row holds the row's text but for the pending token, as the target's does. What it read
of guesses that were not taken lies behind that, and is written over. It never reads its last guess: where that was
taken too, the next round begins with two columns for that row. A row that went on without it is caught up with in the
same way. Only its own logits count here: penalties, biases and grammars are the target's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import mlx.core as mx
import numpy as np

from workers.engines.batching.choosing import Floats, choose
from workers.engines.batching.draft_lanes import DraftLanes, Text, can_rewind
from workers.engines.batching.seams import Draws
from workers.engines.batching.stochastic import Drawn, distribution

#: After so many failures in a run the drafter is given up.
MOST_FAILURES = 3


class FullModelDrafter:
    """A ``Proposer`` with a model. Nothing that goes wrong in it reaches a row: it forgets, counts and starts anew.

    A greedy row's guess is the best token. A sampled row's is drawn from the drafter's own logits with the row's own
    noise: a Gumbel coupling, by which two distributions at distance d draw the same token with a chance of at least
    (1 - d) / (1 + d) (Daliri, Musco and Suresh, "Coupling without Communication and Drafter-Invariant Speculative
    Decoding", 2024). With ``stochastic`` acceptance the guess brings the distribution that it was drawn from.

    Args:
        vocabulary: tokens that both models can read and say.
        most_tokens: most tokens guessed at once.
        end_tokens: nothing is guessed behind one of these.
        context_length: tokens that the drafter can read; a row that is longer is refused.
    """

    name = "draft"

    def __init__(
        self,
        model: Any,
        *,
        vocabulary: int,
        most_tokens: int,
        end_tokens: frozenset[int] = frozenset(),
        context_length: int | None = None,
        acceptance: Literal["sampler_match", "stochastic"] = "sampler_match",
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._most_tokens = most_tokens
        self._end_tokens = end_tokens
        self._context_length = context_length
        self._is_stochastic = acceptance == "stochastic"
        self._can_rewind = can_rewind(model)
        self._texts: dict[int, Text] = {}
        self._lanes: DraftLanes | None = None
        self._counts: Counter[str] = Counter()
        self.reading_s = 0.0

    @property
    def nbytes(self) -> int:
        return 0 if self._lanes is None else self._lanes.nbytes

    def counters(self) -> dict[str, int]:
        """Forwards and tokens read of the drafter, failures, and rows that it could not or cannot guess for."""
        names = ("forwards", "tokens_read", "failures", "refused_rows")
        return {f"draft_{name}": self._counts[name] for name in names}

    def begin(self, row: int, prompt: Sequence[int], draws: Draws | None = None) -> None:
        self._texts[row] = Text(prompt, draws)
        if not self._can_rewind or not self._can_read(prompt):
            self._refuse(row)

    def propose(self, limits: Mapping[int, int]) -> Mapping[int, Sequence[int]]:
        """As `Proposer`: one forward for each guessed token, over all rows. Raises at the last of several failures."""
        asked = {row: most for row, limit in limits.items() if (most := self._limit(row, limit)) > 0}
        self.reading_s = 0.0
        if not asked:
            return {}
        try:
            return self._draft(asked)
        except Exception:
            self._forget()
            if self._counts["failures"] >= MOST_FAILURES:
                raise
            return {}

    def advance(self, row: int, tokens: Sequence[int], *, proposed: int, accepted: int) -> None:
        text = self._texts.get(row)
        if text is None:
            return
        text.grow(tokens)
        if not self._can_read(tokens):
            self._refuse(row)

    def end(self, row: int) -> None:
        self._texts.pop(row, None)
        if self._lanes is not None:
            self._lanes.drop(row)

    def _can_read(self, tokens: Sequence[int]) -> bool:
        return all(0 <= token < self._vocabulary for token in tokens)

    def _limit(self, row: int, limit: int) -> int:
        """Most tokens to guess; a row that reached the end of the drafter's own context is refused."""
        text = self._texts.get(row)
        if text is None:
            return 0
        most = min(limit, self._most_tokens)
        if self._context_length is None:
            return most
        room = self._context_length - len(text.tokens) + 1
        if room <= 0:
            self._refuse(row)
        return min(most, room)

    def _refuse(self, row: int) -> None:
        self._counts["refused_rows"] += 1
        self.end(row)

    def _forget(self) -> None:
        """The rows that are here get no guesses any more; those to come begin with new lanes."""
        self._counts["failures"] += 1
        self._texts.clear()
        self._lanes = None

    def _draft(self, asked: Mapping[int, int]) -> dict[int, Sequence[int]]:
        if self._lanes is None:
            self._lanes = DraftLanes(self._model, self._most_tokens, self._counts)
        texts = {row: self._texts[row] for row in asked}
        start = time.monotonic()
        self._lanes.catch_up(texts, self._texts)
        self.reading_s = time.monotonic() - start
        pending = {row: text.tokens[text.read :] for row, text in texts.items()}
        guesses: dict[int, list[int]] = {row: [] for row in asked}
        chances: dict[int, list[Floats]] = {row: [] for row in asked}
        while pending:
            heads = _Heads(self._lanes.forward(pending)[:, : self._vocabulary], self._lanes.arrays)
            for row in pending:
                guesses[row].append(self._choose(row, len(guesses[row]), heads, chances[row]))
            pending = {row: guesses[row][-1:] for row in pending if self._goes_on(guesses[row], asked[row])}
        for row, text in texts.items():
            text.read, text.drafted = len(text.tokens), guesses[row][:-1]
        return {row: Drawn(guess, chances[row]) if chances[row] else guess for row, guess in guesses.items()}

    def _goes_on(self, guess: Sequence[int], most: int) -> bool:
        return len(guess) < most and guess[-1] not in self._end_tokens

    def _choose(self, row: int, ahead: int, heads: _Heads, chances: list[Floats]) -> int:
        assert self._lanes is not None
        lane, draws = self._lanes.lane(row), self._texts[row].draws_at(ahead)
        if draws is None:
            return int(heads.best[lane])
        logits = np.array(heads.logits[lane].astype(mx.float32))
        if self._is_stochastic:
            chances.append(distribution(logits, draws))
        return choose(logits, draws.sampling, draws.seed, draws.choice, draws.position, 0.0).token


class _Heads:
    """(lanes, V) logits of a forward, and the best token of each lane."""

    def __init__(self, logits: mx.array, arrays: list[mx.array]) -> None:
        self.logits = logits
        best = mx.argmax(logits, axis=-1)
        mx.eval(logits, best, arrays)
        self.best = np.array(best)
