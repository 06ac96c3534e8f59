"""Prompt lookup: a row's next tokens are guessed from what followed the same few tokens earlier in its own text.

Knows token ids only: neither models nor batches. The idea is Saxena's prompt lookup decoding (2023); the index, the
estimate of what a guess is worth and the pause are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.specs.generate import LookupOptions
from workers.engines.batching.seams import Draws
from workers.engines.batching.speculation import SpeculationStats

#: Adaptive guesses end before the token whose chance of being accepted is below this.
FLOOR = 0.3

#: So many rounds of guesses in a row without an accepted token make a row pause.
MISSES = 3

#: Rounds of the first pause and of the longest; each pause after another is twice as long.
PAUSE, LONGEST_PAUSE = 4, 32

#: A pause ends early when so many tokens in a row came as they would have been guessed.
CONFIRMED = 2

#: Longest agreement that is looked at, in tokens.
_LONGEST = 16

#: Class of an agreement of 0, 1, 2, ... tokens: the longer two places agree, the likelier they go on alike.
_CLASSES = (0, 0, 1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 6)

#: Chance that the next token agrees too, by class, before anything was seen; and how many observations that weighs.
_PRIOR = (0.15, 0.35, 0.5, 0.65, 0.75, 0.85, 0.92)
_PRIOR_WEIGHT = 4.0

#: How much of an older observation is left after a newer one of its class: over all rows, and within one row.
_KEPT_ALL, _KEPT_ROW = 0.99, 0.9


class Match(NamedTuple):
    """An earlier place whose last ``length`` tokens (16 at most) are the text's last ones; ``at`` is what followed."""

    at: int
    length: int


class Text:
    """Tokens of one row with an index of their n-grams; memory is linear in the tokens."""

    __slots__ = ("_indexes", "tokens")

    def __init__(self, tokens: Sequence[int], *, ngram_min: int, ngram_max: int) -> None:
        self.tokens = list(tokens)
        # One dict for each n, longest first: n-gram -> where its latest occurrence that has a follower goes on.
        self._indexes: list[tuple[int, dict[tuple[int, ...], int]]] = []
        for n in range(ngram_max, ngram_min - 1, -1):
            ngrams = zip(*(self.tokens[start:] for start in range(n)), strict=False)
            self._indexes.append((n, dict(zip(ngrams, range(n, len(self.tokens)), strict=False))))

    def append(self, token: int) -> None:
        tokens = self.tokens
        end = len(tokens)
        for n, index in self._indexes:
            if end >= n:
                index[tuple(tokens[end - n :])] = end
        tokens.append(token)

    def find(self) -> Match | None:
        """The most recent earlier occurrence of the longest n-gram that ends the text and was followed by something."""
        tokens = self.tokens
        for n, index in self._indexes:
            at = index.get(tuple(tokens[-n:]))
            if at is not None:
                return Match(at, self._agreement(at, n))
        return None

    def after(self, at: int, count: int) -> list[int]:
        """``count`` tokens from ``at`` on; where the text ends it goes on as from ``at``, as a loop would."""
        found = self.tokens[at : at + count]
        if len(found) < count:
            found = (found * (count // len(found) + 1))[:count]
        return found

    def _agreement(self, at: int, length: int) -> int:
        tokens = self.tokens
        end = len(tokens)
        most = min(at, _LONGEST)
        while length < most and tokens[at - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return min(length, _LONGEST)


class _Rates:
    """How often a guess came true, by class of agreement; older observations fade."""

    __slots__ = ("_hits", "_kept", "_seen")

    def __init__(self, kept: float) -> None:
        self._kept = kept
        self._hits = [0.0] * len(_PRIOR)
        self._seen = [0.0] * len(_PRIOR)

    def add(self, kind: int, hit: bool) -> None:
        self._hits[kind] = self._hits[kind] * self._kept + hit
        self._seen[kind] = self._seen[kind] * self._kept + 1.0

    def rate(self, kind: int, prior: float) -> float:
        return (self._hits[kind] + _PRIOR_WEIGHT * prior) / (self._seen[kind] + _PRIOR_WEIGHT)


class _Row:
    """A text, where it was seen before, how its guesses fared and how long it still pauses."""

    __slots__ = ("come_true", "match", "misses", "next_pause", "rates", "resting", "text")

    def __init__(self, text: Text) -> None:
        self.text = text
        self.match = text.find()
        self.rates = _Rates(_KEPT_ROW)
        self.misses = 0
        self.next_pause = PAUSE
        self.resting = 0
        self.come_true = 0

    def rest(self, proposed: int, accepted: int) -> bool:
        """Take in how a round went; true if the row was pausing in it."""
        was_resting = self.resting > 0
        if accepted:
            self.misses, self.resting, self.next_pause = 0, 0, PAUSE
        elif proposed:
            self.misses += 1
            if self.misses >= MISSES:
                self.resting, self.misses, self.come_true = self.next_pause, 0, 0
                self.next_pause = min(2 * self.next_pause, LONGEST_PAUSE)
        elif was_resting:
            self.resting = 0 if self.come_true >= CONFIRMED else self.resting - 1
        return was_resting and not proposed


class PromptLookup:
    """A ``Proposer`` without a second model; all calls together cost microseconds per row and step.

    It also judges itself while nobody asks: whatever a row says is compared with what it would have guessed. So its
    estimates stay true in plain steps, and trying them out costs nothing.

    Args:
        options: lengths of the n-grams and of the guesses.
        adaptive: cut guesses where they become unlikely and pause rows whose guesses fail. Without it every guess is
            as long as it may be: for a caller who weighs `outlook` himself.
    """

    name = "lookup"

    def __init__(self, options: LookupOptions, *, adaptive: bool = True) -> None:
        self._options = options
        self._adaptive = adaptive
        self._rows: dict[int, _Row] = {}
        self._rates = _Rates(_KEPT_ALL)
        self.stats = SpeculationStats()

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def reading_s(self) -> float:
        return 0.0

    def begin(self, row: int, prompt: Sequence[int], draws: Draws | None = None) -> None:
        sizes = self._options
        self._rows[row] = _Row(Text(prompt, ngram_min=sizes.ngram_min, ngram_max=sizes.ngram_max))

    def outlook(self, limits: Mapping[int, int]) -> dict[int, tuple[float, ...]]:
        """For each row that could guess now, the chances that its first, first two, ... guessed tokens all come true.

        Changes nothing. Rows that pause are left out if the proposer is adaptive.
        """
        chances = {}
        for number, limit in limits.items():
            row = self._rows[number]
            if row.match is None or limit < 1 or (self._adaptive and row.resting):
                continue
            chances[number] = self._chances(row, row.match.length, min(limit, self._options.max_draft))
        return chances

    def propose(self, limits: Mapping[int, int]) -> dict[int, list[int]]:
        """As `Proposer`; changes nothing, and is a function of the texts and of what came true so far."""
        guesses = {}
        for number, limit in limits.items():
            row = self._rows[number]
            if row.match is None or limit < 1 or (self._adaptive and row.resting):
                continue
            count = min(limit, self._options.max_draft)
            if self._adaptive:
                count = sum(chance >= FLOOR for chance in self._chances(row, row.match.length, count))
            if count:
                guesses[number] = row.text.after(row.match.at, count)
        return guesses

    def advance(self, row: int, tokens: Sequence[int], *, proposed: int, accepted: int) -> None:
        """As `Proposer`. ``proposed`` counts guesses of this proposer only: 0 in a step that another guessed for.

        Raises:
            ValueError: more was accepted than proposed or said.
        """
        self.stats.add(len(tokens), proposed, accepted)
        state = self._rows[row]
        self._judge(state, tokens)
        for token in tokens:
            state.text.append(token)
        state.match = state.text.find()
        self.stats.paused_rounds += state.rest(proposed, accepted)

    def end(self, row: int) -> None:
        self._rows.pop(row, None)

    def counters(self) -> dict[str, int]:
        return {"lookup_paused_rounds": self.stats.paused_rounds}

    def _chances(self, row: _Row, length: int, count: int) -> tuple[float, ...]:
        chances = []
        chance = 1.0
        for agreed in range(length, length + count):
            kind = _CLASSES[min(agreed, _LONGEST)]
            chance *= row.rates.rate(kind, self._rates.rate(kind, _PRIOR[kind]))
            chances.append(chance)
        return tuple(chances)

    def _judge(self, row: _Row, tokens: Sequence[int]) -> None:
        """Compare what the row said with what it would have guessed, up to the first difference."""
        if row.match is None:
            row.come_true = 0
            return
        at, length = row.match
        for token, guessed in zip(tokens, row.text.after(at, len(tokens)), strict=True):
            hit = token == guessed
            kind = _CLASSES[min(length, _LONGEST)]
            row.rates.add(kind, hit)
            self._rates.add(kind, hit)
            row.come_true = row.come_true + 1 if hit else 0
            if not hit:
                return
            length += 1
