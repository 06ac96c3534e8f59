"""Which mechanism decodes the next step, and how many columns wide: whatever gives the most tokens a second.

A state machine of what it is told: it has no clock, no model and no chance in it, so a recorded run can be replayed
through it (`replay`). It never decides what a row says, only how fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from workers.engines.batching.costs import StepCosts
from workers.engines.batching.decisions import DecisionLog

Mechanism = Literal["plain", "lookup", "draft"]

#: What a mechanism must promise against plain decoding: of several estimates the best is the most flattered one. More
#: is asked of one that is not in charge.
MARGIN, MARGIN_TO_CHANGE = 1.01, 1.04

#: An untried shape is tried if it could be this much faster than what is known.
HOPE = 1.05

#: When no row waits for a place, the batch ends with its slowest row. What the others' tokens are still worth, because
#: rows that end early leave a narrower batch, which is cheaper.
LAST_WORTH = 0.5

#: Time that may be lost by trying: so many plain steps at once, and this share of the time since.
GRANT, MOST, SHARE = 1.0, 1.5, 0.005

#: So many plain steps in a row put plain decoding in charge.
PATIENCE = 32

#: Steps that a drafter is tried for at a time; its first one catches up with the text.
DRAFT_TRIAL = 4

#: A draft's chance per token, and its time per token in plain steps, before any was seen.
_DRAFT_CHANCE, _DRAFT_COST = 0.6, 0.25

#: Hope for a better chance while fewer guesses than this were compared.
_DRAFT_HOPE, _DRAFT_TESTED = 0.2, 50.0

#: What an older observation of acceptance weighs after a newer step.
_KEPT = 0.98

#: And after a plain step: distrust passes in time, or a guesser that lied once would never be asked again.
_KEPT_IDLE = 0.998


class Situation(NamedTuple):
    """What is known before a step.

    Attributes:
        width: rows to decode.
        context: tokens of the longest of them.
        outlook: for each row that prompt lookup could guess for now, the chances that its first, first two, ...
            guesses all come true (`PromptLookup.outlook`). Empty where lookup is not allowed.
        draft_limit: most tokens that a drafter could guess for a row now; 0 where none is allowed.
        is_last: no further row waits for a place in the batch.
    """

    width: int
    context: int
    outlook: Sequence[Sequence[float]] = ()
    draft_limit: int = 0
    is_last: bool = False


class Decision(NamedTuple):
    """Who guesses in the next step, and its most columns: 1 and at most ``columns - 1`` guesses for each row."""

    mechanism: Mechanism
    columns: int


class Observation(NamedTuple):
    """What a step was: told after each one, plain ones too.

    Attributes:
        mechanism: who really guessed; plain if nobody had a guess.
        columns: tokens per row in the forward, 1 for a plain step.
        outcomes: (guessed, accepted) of each row that had guesses.
        forward_s, propose_s: seconds of the target's forward and choice, and of finding the guesses.
    """

    mechanism: Mechanism
    width: int
    columns: int
    context: int
    forward_s: float
    propose_s: float = 0.0
    outcomes: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """One way to do the next step: what its tokens per row are worth, how many are expected, its cost in plain steps.

    ``hoped`` is its score if all that is uncertain turns out well.
    """

    mechanism: Mechanism
    columns: int
    worth: float
    tokens: float
    cost: float
    hoped: float

    @property
    def score(self) -> float:
        return self.worth / self.cost


_PLAIN = Option("plain", 1, 1.0, 1.0, 1.0, 1.0)


class _Share:
    """How much of what was expected came; older observations fade."""

    __slots__ = ("came", "expected")

    def __init__(self) -> None:
        self.came = self.expected = 0.0

    def add(self, came: float, expected: float) -> None:
        self.came = self.came * _KEPT + came
        self.expected = self.expected * _KEPT + expected

    def fade(self) -> None:
        self.came *= _KEPT_IDLE
        self.expected *= _KEPT_IDLE

    def value(self, prior: float, weight: float) -> float:
        return (self.came + prior * weight) / (self.expected + weight)


class Governor:
    """Chooses by expected tokens per second, tries what may be faster, and never spends much time on trying.

    The caller says in each `Situation` only what reproduces the plain seeded stream.
    """

    def __init__(self) -> None:
        self.costs = StepCosts()
        self.log = DecisionLog()
        self._step = 0
        self._in_charge: Mechanism = "plain"
        self._plain_steps = 0
        self._allowance = GRANT
        self._choice = _PLAIN
        self._rival_score = 1.0
        self._is_trying = False
        self._trial_left = 0
        self._lookup_came = _Share()
        self._draft_came = _Share()
        self._draft_cost = _Share()

    def decide(self, situation: Situation) -> Decision:
        """What to do in the next step."""
        options = [_PLAIN, *self._lookups(situation), *self._drafts(situation)]
        best = self._best(options)
        trial = self._trial(situation, options, best)
        self._choice = trial or best
        self._is_trying = trial is not None
        self._rival_score = best.score
        if trial is None:
            self._take_charge(situation, best)
        return Decision(self._choice.mechanism, self._choice.columns)

    def record(self, seen: Observation) -> None:
        """Learn from the step that the last decision led to."""
        self._step += 1
        self.log.count(seen.mechanism, is_trial=self._is_trying)
        self.costs.add(self._step, width=seen.width, columns=seen.columns, context=seen.context, seconds=seen.forward_s)
        plain_s = self.costs.plain_seconds(seen.width, seen.context)
        self._learn_guesses(seen, plain_s)
        cost = (seen.forward_s + seen.propose_s) / plain_s if plain_s else self._choice.cost
        self._allowance = min(MOST, self._allowance + SHARE * cost)
        if self._is_trying:
            came = 1.0 + sum(accepted for _, accepted in seen.outcomes) / seen.width
            # Half of what came, half of what was expected: one step's luck says little about what the trial cost.
            worth = self._choice.worth * (came / self._choice.tokens + 1.0) / 2.0
            self._allowance = min(MOST, self._allowance - (cost - worth / self._rival_score))

    def measured(self, *, width: int, columns: int, context: int, forward_s: float) -> None:
        """Learn a cost from a forward outside the run: a warm-up or a probe. Spares trials."""
        self.costs.add(self._step, width=width, columns=columns, context=context, seconds=forward_s)

    def as_json(self) -> dict[str, Any]:
        """For the job's record: what was decided when and why, and the costs it rests on."""
        return self.log.as_json() | {"costs": self.costs.as_json()}

    def _lookups(self, situation: Situation) -> Iterator[Option]:
        width, rows = situation.width, situation.outlook
        trust = min(1.5, self._lookup_came.value(1.0, 8.0))
        mean = slowest = 1.0
        for guessed in range(max(map(len, rows), default=0)):
            chances = [row[guessed] for row in rows if guessed < len(row)]
            mean += trust * sum(chances) / width
            if len(chances) == width:
                slowest += trust * min(chances)
            tokens = LAST_WORTH * mean + (1.0 - LAST_WORTH) * slowest if situation.is_last else mean
            cost = self.costs.estimate(self._step, width=width, columns=guessed + 2, context=situation.context)
            yield Option("lookup", guessed + 2, tokens, mean, cost.ratio, tokens / cost.hoped)

    def _drafts(self, situation: Situation) -> Iterator[Option]:
        if situation.draft_limit < 1:
            return
        width, context = situation.width, situation.context
        chance = min(0.99, self._draft_came.value(_DRAFT_CHANCE, 2.0))
        unsure = max(0.0, 1.0 - self._draft_came.expected / _DRAFT_TESTED)
        hope = min(0.99, chance + _DRAFT_HOPE * unsure)
        each = self._draft_cost.value(_DRAFT_COST, 0.5)
        for guessed in range(1, situation.draft_limit + 1):
            cost = self.costs.estimate(self._step, width=width, columns=guessed + 1, context=context)
            tokens = sum(chance**power for power in range(guessed + 1))
            hoped = sum(hope**power for power in range(guessed + 1))
            proposing = each * guessed
            hoped_cost = cost.hoped + proposing * (1.0 - 0.5 * unsure)
            yield Option("draft", guessed + 1, tokens, tokens, cost.ratio + proposing, hoped / hoped_cost)

    def _best(self, options: Sequence[Option]) -> Option:
        def promise(option: Option) -> float:
            if option.mechanism == "plain":
                return option.score
            return option.score / (MARGIN if option.mechanism == self._in_charge else MARGIN_TO_CHANGE)

        return max(options, key=promise)

    def _trial(self, situation: Situation, options: Sequence[Option], best: Option) -> Option | None:
        """Something to try instead of the best, if it may turn out better and the time for it is there."""
        if self._trial_left and (drafts := [option for option in options if option.mechanism == "draft"]):
            self._trial_left -= 1
            return min(drafts, key=lambda option: abs(option.columns - self._choice.columns))
        self._trial_left = 0
        if best.mechanism != "plain" and not self.costs.is_plain_known(self._step, situation.width, situation.context):
            return _PLAIN if 1.0 - 1.0 / best.score <= self._allowance else None
        hopeful = [
            option
            for option in options
            if option.hoped > HOPE * best.score and self._loss(option, best) <= self._allowance
        ]
        if not hopeful:
            return None
        chosen = min(hopeful, key=lambda option: self._loss(option, best))
        if chosen.mechanism == "draft":
            self._trial_left = DRAFT_TRIAL - 1
        return chosen

    def _loss(self, option: Option, best: Option) -> float:
        """Plain steps that trying this is expected to lose against the best."""
        times = DRAFT_TRIAL if option.mechanism == "draft" else 1
        return times * (option.cost - option.worth / best.score)

    def _take_charge(self, situation: Situation, best: Option) -> None:
        self._plain_steps = self._plain_steps + 1 if best.mechanism == "plain" else 0
        if best.mechanism == self._in_charge or 0 < self._plain_steps < PATIENCE:
            return
        why = f"{best.worth:.2f} tokens a row for {best.cost:.2f} plain steps"
        if best.mechanism == "plain":
            why = f"nothing promised more for {PATIENCE} steps"
        self.log.note(self._step, situation.width, situation.context, self._in_charge, best.mechanism, why)
        self._in_charge = best.mechanism

    def _learn_guesses(self, seen: Observation, plain_s: float | None) -> None:
        if seen.mechanism == "plain":
            self._lookup_came.fade()
            return
        accepted = sum(accepted for _, accepted in seen.outcomes)
        if seen.mechanism == "lookup" and self._choice.mechanism == "lookup":
            self._lookup_came.add(accepted, (self._choice.tokens - 1.0) * seen.width)
        elif seen.mechanism == "draft":
            tested = sum(accepted + (accepted < guessed) for guessed, accepted in seen.outcomes)
            self._draft_came.add(accepted, tested)
            if plain_s:
                self._draft_cost.add(seen.propose_s / plain_s, seen.columns - 1)
