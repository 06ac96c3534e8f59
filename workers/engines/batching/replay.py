"""A recorded run once more, under another policy: arithmetic over token streams and step costs, without a model.

What rows say is known, so it is known which guess would have been accepted; what a step of each shape costs was
measured. The sum is what the policy would have taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.specs.generate import LookupOptions
from workers.engines.batching.governor import Decision, Mechanism, Observation, Situation
from workers.engines.batching.lookup import PromptLookup

#: Seconds that prompt lookup takes for a row and step.
LOOKUP_S = 1e-5

StepSeconds = Callable[[int, int, int], float]


class Policy(Protocol):
    """Decides before each step and is told about it afterwards; `Governor` is one."""

    def decide(self, situation: Situation) -> Decision: ...

    def record(self, seen: Observation) -> None: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """One mechanism throughout."""

    mechanism: Mechanism
    columns: int = 1

    def decide(self, situation: Situation) -> Decision:
        return Decision(self.mechanism, self.columns)

    def record(self, seen: Observation) -> None:
        """Nothing to learn."""


@dataclass(frozen=True, slots=True)
class TracedRow:
    """A prompt, what was answered, how long it might have become, and which answer tokens a drafter would guess."""

    prompt: Sequence[int]
    answer: Sequence[int]
    max_tokens: int
    drafted: Sequence[bool] = ()


@dataclass(frozen=True, slots=True)
class Drafter:
    """A full-model drafter in a replay: seconds that one guessed token of all rows takes."""

    limit: int
    token_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    tokens: int
    seconds: float
    steps: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class StepTable:
    """Measured (width, columns, context, seconds) as a function: linear between them, the nearest one outside."""

    def __init__(self, steps: Sequence[Sequence[float]]) -> None:
        self._seconds = {(int(width), int(columns), int(context)): s for width, columns, context, s in steps}
        self._widths, self._columns, self._contexts = (
            sorted({key[axis] for key in self._seconds}) for axis in range(3)
        )

    def __call__(self, width: int, columns: int, context: int) -> float:
        return sum(
            of_width * of_columns * of_context * self._seconds[w, c, x]
            for w, of_width in _weights(self._widths, width)
            for c, of_columns in _weights(self._columns, columns)
            for x, of_context in _weights(self._contexts, context)
        )


def _weights(points: Sequence[int], value: int) -> list[tuple[int, float]]:
    """The two points around a value with their shares."""
    value = min(max(value, points[0]), points[-1])
    high = next(point for point in points if point >= value)
    if high == value:
        return [(high, 1.0)]
    low = points[points.index(high) - 1]
    share = (value - low) / (high - low)
    return [(low, 1.0 - share), (high, share)]


def replay(
    rows: Sequence[TracedRow],
    policy: Policy,
    step_s: StepSeconds,
    *,
    width: int,
    options: LookupOptions | None = None,
    adaptive: bool = False,
    drafter: Drafter | None = None,
) -> Outcome:
    """Decode ``rows`` in order, at most ``width`` at once, a waiting one joining when one ends.

    ``step_s`` gives the seconds of a step by width, columns and context. ``adaptive`` lets prompt lookup cut its own
    guesses, for a policy that does not. Reading prompts costs nothing here: no policy changes it.
    """
    run = _Run(rows, PromptLookup(options or LookupOptions(), adaptive=adaptive), drafter)
    seconds = 0.0
    steps = 0
    while run.fill(width):
        decision = policy.decide(run.situation())
        guesses = run.guesses(decision)
        columns = 1 + max(map(len, guesses.values()), default=0)
        mechanism: Mechanism = decision.mechanism if columns > 1 else "plain"
        propose_s = LOOKUP_S * len(run.said)
        if mechanism == "draft" and drafter is not None:
            propose_s += drafter.token_s * (columns - 1)
        seen = (mechanism, len(run.said), columns, run.context())
        forward_s = step_s(*seen[1:])
        outcomes = run.step(guesses, by_lookup=mechanism == "lookup")
        policy.record(Observation(*seen, forward_s, propose_s, outcomes))
        seconds += forward_s + propose_s
        steps += 1
    return Outcome(sum(len(row.answer) for row in rows), seconds, steps)


class _Run:
    """Rows on their way: those being decoded, by number, with the count of tokens each has said."""

    def __init__(self, rows: Sequence[TracedRow], lookup: PromptLookup, drafter: Drafter | None) -> None:
        self._rows = rows
        self._lookup = lookup
        self._draft_limit = drafter.limit if drafter else 0
        self._next = 0
        self.said: dict[int, int] = {}

    def fill(self, width: int) -> bool:
        while len(self.said) < width and self._next < len(self._rows):
            if self._rows[self._next].answer:
                self.said[self._next] = 0
                self._lookup.begin(self._next, self._rows[self._next].prompt)
            self._next += 1
        return bool(self.said)

    def context(self) -> int:
        return max(len(self._rows[number].prompt) + said for number, said in self.said.items())

    def situation(self) -> Situation:
        limits = self._limits()
        return Situation(
            width=len(self.said),
            context=self.context(),
            outlook=list(self._lookup.outlook(limits).values()),
            draft_limit=min(self._draft_limit, max(limits.values())),
            is_last=self._next == len(self._rows),
        )

    def guesses(self, decision: Decision) -> dict[int, list[int]]:
        limits = {number: min(limit, decision.columns - 1) for number, limit in self._limits().items()}
        if decision.mechanism == "lookup":
            return self._lookup.propose(limits)
        if decision.mechanism == "draft":
            return {number: self._draft(number, limit) for number, limit in limits.items() if limit}
        return {}

    def step(self, guesses: dict[int, list[int]], *, by_lookup: bool) -> list[tuple[int, int]]:
        """Say what the trace says; returns (guessed, accepted) of each row that had guesses."""
        outcomes = []
        for number, said in list(self.said.items()):
            answer = self._rows[number].answer
            guess = guesses.get(number, [])
            accepted = 0
            while accepted < min(len(guess), len(answer) - said) and guess[accepted] == answer[said + accepted]:
                accepted += 1
            if guess:
                outcomes.append((len(guess), accepted))
            new = answer[said : said + accepted + 1]
            counted = (len(guess), accepted) if by_lookup else (0, 0)
            self._lookup.advance(number, new, proposed=counted[0], accepted=counted[1])
            self.said[number] += len(new)
            if self.said[number] == len(answer):
                self._lookup.end(number)
                del self.said[number]
        return outcomes

    def _limits(self) -> dict[int, int]:
        """The last token that a row may say is never guessed: the forward before it says it."""
        return {number: self._rows[number].max_tokens - said - 1 for number, said in self.said.items()}

    def _draft(self, number: int, count: int) -> list[int]:
        """The answer where the drafter knows it; -1, which nobody says, elsewhere and past the end."""
        row, said = self._rows[number], self.said[number]
        right = zip(row.answer[said : said + count], row.drafted[said : said + count], strict=True)
        known = [token if hit else -1 for token, hit in right]
        return known + [-1] * (count - len(known))
