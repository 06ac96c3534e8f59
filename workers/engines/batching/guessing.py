"""Between the scheduler and those who guess ahead: whom to ask, how many columns a step gets, who learns what.

Nobody is trusted: what cannot be a guess is cut off, and who fails is not asked again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from workers.engines.batching.decoding import Advance
from workers.engines.batching.governor import Decision, Governor, Observation, Situation
from workers.engines.batching.lookup import PromptLookup
from workers.engines.batching.rows import Row
from workers.engines.batching.seams import Proposer
from workers.engines.batching.speculation import SpeculationStats

#: What a proposer spends on reading a text is charged to so many of its rounds, about.
READING_ROUNDS = 16


class Guesser:
    """Asks one of its proposers before each step.

    Args:
        proposers: who may guess, each with the most tokens it may guess for a row.
        governor: decides by measured costs; without one the first proposer is always asked.
        vocabulary: tokens that the model can read.
        context_length: most tokens of prompt and answer; None where the model does not say.

    Attributes:
        failures: what a proposer raised, by its name.
    """

    def __init__(
        self,
        proposers: Sequence[tuple[Proposer, int]],
        governor: Governor | None,
        vocabulary: int = 1 << 31,
        context_length: int | None = None,
    ) -> None:
        self._context_length = context_length
        self._vocabulary = vocabulary
        self._all = [proposer for proposer, _ in proposers]
        self.failures: dict[str, str] = {}
        self._proposers = {proposer.name: proposer for proposer, _ in proposers}
        self._most = {proposer.name: most for proposer, most in proposers}
        self._governor = governor
        self._stats = {name: SpeculationStats() for name in self._proposers}
        self._numbers: dict[Row, int] = {}
        self._next = 0
        self._asked = "plain"
        self._decided: Counter[str] = Counter()
        self._propose_s = 0.0
        self._owed_s = 0.0

    @property
    def names(self) -> Collection[str]:
        """Who may guess."""
        return self._proposers.keys()

    @property
    def most_columns(self) -> int:
        """Most columns of a step."""
        return 1 + max(self._most.values())

    def begin(self, row: Row) -> None:
        """The row's prompt was read; what it said before stays said."""
        number = self._numbers[row] = self._next
        self._next += 1
        for proposer in list(self._proposers.values()):
            with self._guarded(proposer):
                proposer.begin(number, row.so_far, row.draws)

    def end(self, row: Row) -> None:
        """The row is finished or gone."""
        number = self._numbers.pop(row)
        for proposer in list(self._proposers.values()):
            with self._guarded(proposer):
                proposer.end(number)

    def keep(self, names: Collection[str]) -> None:
        """Only these may guess from now on."""
        for proposer in [proposer for name, proposer in self._proposers.items() if name not in names]:
            with self._guarded(proposer):
                for number in self._numbers.values():
                    proposer.end(number)
        self._proposers = {name: proposer for name, proposer in self._proposers.items() if name in names}

    def guess(self, rows: Sequence[Row], *, is_last: bool = False) -> Mapping[Row, Sequence[int]]:
        """Guesses of the rows that have some, for the next step; ``is_last``: no other row waits."""
        self._asked, self._propose_s = "plain", 0.0
        if not self._proposers:
            return {}
        decision = self._decide(rows, is_last)
        self._decided[decision.mechanism] += 1
        if decision.mechanism == "plain":
            return {}
        start = time.monotonic()
        limits = self._limits(rows, decision.columns - 1)
        proposer = self._proposers[decision.mechanism]
        found: dict[int, Sequence[int]] = {}
        with self._guarded(proposer):
            for number, guess in proposer.propose(limits).items():
                found[number] = self._readable(guess, limits[number])
        self._propose_s = self._charge(time.monotonic() - start, proposer.reading_s)
        guesses = {row: tokens for row in rows if (tokens := found.get(self._numbers[row]))}
        self._asked = decision.mechanism if guesses else "plain"
        return guesses

    def learn(self, advances: Sequence[Advance], context: int, forward_s: float) -> None:
        """What became of the last step; ``context`` is of its longest row."""
        for advance in advances:
            self._tell(advance)
        outcomes = [(advance.proposed, advance.accepted) for advance in advances if advance.proposed]
        if self._governor is not None:
            columns = 1 + max((guessed for guessed, _ in outcomes), default=0)
            self._governor.record(
                Observation(
                    self._asked,  # type: ignore[arg-type]
                    len(advances),
                    columns,
                    context,
                    forward_s,
                    self._propose_s,
                    outcomes,
                )
            )

    def counters(self) -> dict[str, int]:
        """What guessing came to, by proposer, and how many steps a governor gave to whom."""
        counts: dict[str, int] = {}
        if self._governor is not None:
            counts |= {f"governor_{name}": steps for name, steps in self._decided.items()}
        for proposer in self._all:
            counts |= self._stats[proposer.name].as_counters(proposer.name) | dict(proposer.counters())
        return counts | {f"{name}_given_up": 1 for name in self.failures}

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values that proposers hold."""
        return sum(proposer.nbytes for proposer in self._all)

    def _tell(self, advance: Advance) -> None:
        row, number = advance.row, self._numbers[advance.row]
        if advance.proposed:
            row.guessed_by = self._asked
            row.accepted += advance.accepted
            self._stats[self._asked].add(max(len(advance.tokens), advance.accepted), advance.proposed, advance.accepted)
        if advance.is_over:
            self.end(row)
            return
        for name, proposer in list(self._proposers.items()):
            is_its = name == self._asked
            with self._guarded(proposer):
                proposer.advance(
                    number,
                    advance.tokens,
                    proposed=advance.proposed if is_its else 0,
                    accepted=advance.accepted if is_its else 0,
                )

    def _readable(self, tokens: Sequence[int], limit: int) -> Sequence[int]:
        """What can go through the model of a guess: so many tokens, up to the first that is none."""
        for place, token in enumerate(tokens[:limit]):
            if not isinstance(token, int) or not 0 <= token < self._vocabulary:
                return tokens[:place]
        return tokens[:limit]

    def _charge(self, spent_s: float, reading_s: float) -> float:
        """Seconds that a round is said to have cost: one that reads a prompt would look bad, and those after it good."""
        self._owed_s += reading_s
        due = self._owed_s / READING_ROUNDS
        self._owed_s -= due
        return max(0.0, spent_s - reading_s) + due

    @contextmanager
    def _guarded(self, proposer: Proposer) -> Iterator[None]:
        """A proposer that fails is not asked again."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in guessing, rows are decoded without
            self.failures[proposer.name] = f"{type(error).__name__}: {error}"
            self._proposers.pop(proposer.name, None)

    def _decide(self, rows: Sequence[Row], is_last: bool) -> Decision:
        if self._governor is None:
            name = next(iter(self._proposers))
            return Decision(name, 1 + self._most[name])  # type: ignore[arg-type]
        lookup, drafter = self._proposers.get("lookup"), self._proposers.get("draft")
        outlook: list[tuple[float, ...]] = []
        if isinstance(lookup, PromptLookup):
            with self._guarded(lookup):
                outlook = list(lookup.outlook(self._limits(rows, self._most["lookup"])).values())
        left = max(row.max_tokens - len(row.tokens) - 1 for row in rows)
        context = max(len(row.prompt) + len(row.tokens) for row in rows)
        draft_limit = 0 if drafter is None else max(0, min(self._most["draft"], left))
        return self._governor.decide(Situation(len(rows), context, outlook, draft_limit, is_last))

    def _limits(self, rows: Sequence[Row], most: int) -> dict[int, int]:
        """No row is asked for more than it may still say after the next token.

        Nor for so much that a shorter guess beside it, padded, would reach behind the context: learned positions end there.
        """
        if self._context_length is not None:
            longest = max(len(row.prompt) + len(row.tokens) for row in rows)
            most = min(most, self._context_length - longest)
        limits = {self._numbers[row]: min(most, row.max_tokens - len(row.tokens) - 1) for row in rows}
        return {number: limit for number, limit in limits.items() if limit > 0}
