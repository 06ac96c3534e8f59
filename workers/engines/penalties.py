"""Rules that push single tokens up or down: penalties for repetition, and a bias that the request brings.

Each rule is of one row and looks at that row's tokens alone. Knows nothing about models or batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import InvalidValue
from workers.engines.batching.seams import Logits, LogitsRule
from workers.engines.history import History

#: Room for distinct tokens that a count starts with.
_ROOM = 256


@dataclass(frozen=True, slots=True)
class PenaltyOptions:
    """How much is taken from tokens that occurred.

    Attributes:
        repetition: divides a positive logit of a token of the prompt or the answer and multiplies a negative one, as
            transformers does; 1 changes nothing.
        presence: is taken once from each token of the answer.
        frequency: is taken as often as a token stands in the answer. Both as in OpenAI's API.
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    @property
    def is_idle(self) -> bool:
        return self == PenaltyOptions()


class PenaltyRule:
    """The three penalties of one row: repetition first, since it goes by the sign of the model's own logit."""

    def __init__(self, options: PenaltyOptions, prompt: Sequence[int]) -> None:
        self._options = options
        self._counts = _Counts(prompt if options.repetition != 1.0 else ())
        self._history = History()

    @property
    def stretch(self) -> float:
        """A repeated token's logit is scaled, another's is not."""
        return max(1.0, self._options.repetition, 1.0 / self._options.repetition)

    def apply(self, logits: Logits, tokens: Sequence[int]) -> Logits:
        removed, added = self._history.follow(tokens)
        self._counts.move(removed, -1)
        self._counts.move(added, 1)
        changed = logits.copy()
        if self._options.repetition != 1.0:
            repeated = self._counts.occurring()
            values = changed[repeated]
            factor = np.float32(self._options.repetition)
            changed[repeated] = np.where(values < 0, values * factor, values / factor)
        ids, counts = self._counts.answered()
        changed[ids] -= np.float32(self._options.frequency) * counts
        changed[ids] -= np.float32(self._options.presence)
        return changed


class BiasRule:
    """``logit_bias``: adds to the logits of the tokens it names."""

    stretch = 1.0

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._ids = np.array(list(bias), dtype=np.int64)
        self._values = np.array(list(bias.values()), dtype=np.float32)

    def apply(self, logits: Logits, tokens: Sequence[int]) -> Logits:
        """Raises InvalidValue for a token that the tokenizer has and the model's output does not."""
        beyond = self._ids[self._ids >= len(logits)]
        if len(beyond):
            raise InvalidValue(f"the model gives no logit for token {beyond[0]}", param="logit_bias")
        changed = logits.copy()
        changed[self._ids] += self._values
        return changed


class RuleChain:
    """Several rules, one after the other."""

    def __init__(self, rules: Sequence[LogitsRule]) -> None:
        self._rules = tuple(rules)

    @property
    def stretch(self) -> float:
        product = 1.0
        for rule in self._rules:
            product *= rule.stretch
        return product

    def apply(self, logits: Logits, tokens: Sequence[int]) -> Logits:
        for rule in self._rules:
            logits = rule.apply(logits, tokens)
        return logits


class _Counts:
    """How often each token stands in the answer, as arrays over the distinct tokens of prompt and answer."""

    def __init__(self, prompt: Sequence[int]) -> None:
        known = np.unique(np.array(prompt, dtype=np.int64))
        self._in_prompt = len(known)
        self._place = {int(token): place for place, token in enumerate(known)}
        self._ids = np.concatenate([known, np.zeros(_ROOM, np.int64)])
        self._counts = np.zeros(len(self._ids), np.float32)

    def move(self, tokens: Sequence[int], step: int) -> None:
        for token in tokens:
            place = self._place.get(token)
            if place is None:
                place = self._add(token)
            self._counts[place] += step

    def _add(self, token: int) -> int:
        place = len(self._place)
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._place[token] = place
        self._ids[place] = token
        return place

    def occurring(self) -> np.ndarray:
        """Tokens of the prompt or the answer."""
        used = len(self._place)
        occurs = self._counts[:used] > 0
        occurs[: self._in_prompt] = True
        return self._ids[:used][occurs]

    def answered(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the answer, and how often each stands in it."""
        used = len(self._place)
        occurs = self._counts[:used] > 0
        return self._ids[:used][occurs], self._counts[:used][occurs]
