"""Whether accelerations keep a job's contract, and what follows where one does not: decisions alone, no model.

Who probes and decodes again is elsewhere; here it is said what was found, and answered what may go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pipeline.errors import CeilingExceeded, ContractViolated
from pipeline.ports import Verdict
from pipeline.specs.contract import MEASURABLE, Contract, Correctness, check_measurable

#: What may go on after a violation: all but the one mechanism, or nothing but plain decoding at width 1.
Consequence = Literal["decline", "baseline"]

#: The mechanism of verdicts about all accelerations, and about ceilings.
ALL, CEILING = "all", "ceiling"

#: The strictest first.
_STRICTNESS: tuple[Correctness, ...] = ("greedy_identical", "distribution_preserving", "statistical", "task_quality")

_SIZE_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


@dataclass(slots=True)
class Findings:
    """What outlives a run, since it is true of model and machine, whichever job found it.

    Attributes:
        reasons: mechanisms that broke a contract in this process, and why.
        seen: mechanisms of which a row was decoded again.
        credit: tokens that may be decoded again.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    credit: float = 0.0


class ContractWatch:
    """Watches one run. ``findings`` outlive it: an engine keeps them as long as it holds its model.

    Raises:
        CeilingUnmeasurable: the contract has a ceiling that nothing here can measure.
    """

    def __init__(self, contract: Contract, findings: Findings | None = None) -> None:
        check_measurable(contract)
        self.contract = contract
        self._findings = Findings() if findings is None else findings
        self._verdicts: dict[tuple[str, str, str], Verdict] = {}
        self._highest: dict[str, float] = {}
        for mechanism, reason in self._findings.reasons.items():
            self._note(Verdict(mechanism, "declined", "violated_before", f"off in this process: {reason}"))
        if self.is_plain:
            self._note_plain()

    # --- what may be done ---

    @property
    def is_plain(self) -> bool:
        """Only plain decoding, one row at a time, is left."""
        return self.contract.fallback == "baseline" and bool(self._findings.reasons)

    def allows(self, mechanism: str) -> bool:
        """Whether the mechanism may be used from here on."""
        return not self.is_plain and mechanism not in self._findings.reasons

    def permits(self, promise: Correctness) -> bool:
        """Whether a mechanism that promises this much is enough for the contract."""
        return _STRICTNESS.index(promise) <= _STRICTNESS.index(self.contract.correctness)

    def must_match(self, *, is_greedy: bool) -> bool:
        """Whether a row's tokens must be those of plain decoding: all rows, the greedy ones, or none."""
        match self.contract.correctness:
            case "greedy_identical":
                return True
            case "distribution_preserving":
                return is_greedy
            case _:
                return False

    def worked(self, tokens: int) -> None:
        """So many tokens went through the model; the contract's share of them may be decoded again."""
        self._findings.credit += self.contract.shadow * tokens

    def shadow_due(self, mechanism: str, tokens: int) -> bool:
        """Whether the plain path is to decode a finished row of so many tokens again, which ``mechanism`` helped.

        The first of each mechanism is, as a probe on the job's own rows, and then as many as the credit pays for.
        """
        if self.contract.shadow == 0.0:
            return False
        if mechanism in self._findings.seen and self.contract.shadow < 1.0 and self._findings.credit < tokens:
            return False
        self._findings.seen.add(mechanism)
        self._findings.credit = max(0.0, self._findings.credit - tokens)
        return True

    # --- what was found ---

    def compared(
        self, mechanism: str, got: Sequence[int], plain: Sequence[int], *, is_greedy: bool
    ) -> Consequence | None:
        """A finished row beside its shadow, as token ids; None where the contract is kept. Raises ContractViolated."""
        if list(got) == list(plain):
            self.held(mechanism, "same_tokens", "a row decoded again by the plain path has the same tokens")
            return None
        place = next((at for at, (one, other) in enumerate(zip(got, plain, strict=False)) if one != other), None)
        place = min(len(got), len(plain)) if place is None else place
        reason = f"token {place} of a row is {_at(got, place)}; the plain path has {_at(plain, place)}"
        if not self.must_match(is_greedy=is_greedy):
            self.held(mechanism, "tokens_may_differ", reason)
            return None
        return self.mismatch(mechanism, "tokens_differ", reason)

    def mismatch(self, mechanism: str, code: str, reason: str) -> Consequence:
        """A check failed: what may go on. Raises ContractViolated where the contract says so."""
        self._note(Verdict(mechanism, "violated", code, reason))
        if self.contract.fallback == "fail":
            error = ContractViolated(
                f"{mechanism}: {code}: {reason}", hint="contract.fallback: decline goes on without what failed"
            )
            error.verdicts = self.verdicts()
            raise error
        was_plain = self.is_plain
        self._findings.reasons.setdefault(mechanism, f"{code}: {reason}")
        if self.is_plain and not was_plain:
            self._note_plain()
        return self.contract.fallback

    def declined(self, mechanism: str, code: str, reason: str, count: int = 1) -> None:
        """The mechanism was not used, and no contract is broken by that."""
        self._note(Verdict(mechanism, "declined", code, reason, count))

    def held(self, mechanism: str, code: str, reason: str, count: int = 1) -> None:
        """A check passed."""
        self._note(Verdict(mechanism, "held", code, reason, count))

    def limit(self, name: str) -> float | None:
        """The ceiling of that name, if the contract sets one."""
        return self.contract.ceilings.given.get(name)

    def ceiling(self, name: str, value: float, *, rows: int = 1) -> bool:
        """Whether a measured or expected value is within its ceiling, with so many rows.

        Past it with several rows the answer is no: fewer must do, which is counted. Past it with one, nothing can.

        Raises:
            CeilingExceeded: past the ceiling with one row.
        """
        if name not in MEASURABLE:
            raise ValueError(f"no ceiling {name!r} is measured")
        limit = self.limit(name)
        if limit is None:
            return True
        self._highest[name] = highest = max(value, self._highest.get(name, 0.0))
        if value <= limit:
            self._note(Verdict(CEILING, "held", name, f"at most {_show(name, highest)} of {_show(name, limit)}"))
            return True
        reason = f"{_show(name, value)} with {rows} rows, {_show(name, limit)} allowed"
        if rows > 1:
            self._note(Verdict(CEILING, "declined", name, reason))
            return False
        raised = f"contract.ceilings.{name}: {_show(name, value)} needed, {_show(name, limit)} allowed"
        self._note(Verdict(CEILING, "violated", name, raised))
        error = CeilingExceeded(raised, hint="raise the ceiling, or take a smaller or quantized model")
        error.verdicts = self.verdicts()
        raise error

    def verdicts(self) -> tuple[Verdict, ...]:
        """All of this run, one for each (mechanism, outcome, code), in the order of the first; the reason is the last's."""
        return tuple(self._verdicts.values())

    def _note_plain(self) -> None:
        broken = ", ".join(self._findings.reasons)
        self._note(Verdict(ALL, "declined", "baseline", f"plain decoding at width 1, for {broken} broke the contract"))

    def _note(self, verdict: Verdict) -> None:
        key = verdict.mechanism, verdict.outcome, verdict.code
        before = self._verdicts.get(key)
        self._verdicts[key] = replace(verdict, count=verdict.count + (before.count if before else 0))


def _at(tokens: Sequence[int], place: int) -> str:
    return str(tokens[place]) if place < len(tokens) else "the end"


def _show(name: str, value: float) -> str:
    if not name.endswith("_bytes"):
        return f"{value:.3g} s"
    unit, size = next((one for one in _SIZE_UNITS if value >= one[1]), ("B", 1))
    return f"{value / size:.4g} {unit}"
