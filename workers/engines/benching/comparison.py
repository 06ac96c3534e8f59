"""Whether arms may be compared: do their answers correspond, and did each run what it is there to show. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.specs.bench import BenchArm, Mechanism
from workers.engines.benching.runs import ArmRun, Outcome

#: Logits apart by no more than this are a tie that rounding decides, by the type the model computes in.
TIE_BOUNDS: Mapping[str, float] = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}

#: Share by which output tokens may differ where another library chose other tokens.
COUNT_TOLERANCE = 0.005

#: Counters of a run that show a mechanism at work: names, or beginnings of names that end in "_".
EVIDENCE: Mapping[Mechanism, tuple[str, ...]] = {
    "prefix_cache": ("cached_tokens", "prefix_tokens"),
    "lookup": ("lookup_",),
    "draft": ("draft_",),
    "governor": ("governor_",),
}

#: Words in a counter's name that say the opposite.
_NOT_AT_WORK = ("declined", "refused", "unsupported")

#: Items that are named in a reason.
_NAMED = 5

#: The gap, in the plain model's logits, between two tokens: (item, answer tokens before them, token, other token).
MarginOf = Callable[[int, Sequence[int], int, int], float]


@dataclass(frozen=True, slots=True)
class Correspondence:
    """How an arm's answers stand to those of the reference arm.

    ``equal``: the same. ``ties``: differences that rounding decides. ``differs``: other answers of nearly as many
    tokens. ``refused``: not comparable, see ``reason``. ``compared`` says what was held side by side.
    """

    status: Literal["reference", "equal", "ties", "differs", "refused"]
    compared: Literal["token ids", "texts and token counts"]
    differing: tuple[str, ...] = ()
    largest_margin: float | None = None
    reason: str | None = None

    @property
    def is_comparable(self) -> bool:
        return self.status != "refused"


def correspond(
    reference: Sequence[Outcome], other: Sequence[Outcome], *, is_foreign: bool, tie_bound: float, margin_of: MarginOf
) -> Correspondence:
    """Compare two arms' outcomes of the same items, in order.

    Args:
        is_foreign: another library chose: it may differ where rounding decides, or if the token counts agree.
        tie_bound: largest gap between two logits that counts as a tie.
        margin_of: how far two tokens are apart where two answers first differ.
    """
    compared: Literal["token ids", "texts and token counts"] = (
        "token ids" if _tell_tokens(reference) and _tell_tokens(other) else "texts and token counts"
    )
    if reason := _shape_reason(reference, other):
        return Correspondence("refused", compared, reason=reason)
    pairs = list(zip(reference, other, strict=True))
    differing = [number for number, (one, two) in enumerate(pairs) if not _same(one, two, compared)]
    if not differing:
        return Correspondence("equal", compared)
    names = tuple(reference[number].custom_id for number in differing)
    if not is_foreign:
        reason = f"answers differ on {_listed(names)} of {len(pairs)}"
        return Correspondence("refused", compared, names, reason=reason)
    margin = None
    if compared == "token ids":
        margin = max(_largest_margin(number, *pairs[number], margin_of) for number in differing)
        if margin <= tie_bound:
            return Correspondence("ties", compared, names, margin)
    counts = [sum(one.output_tokens for one in outcomes) for outcomes in (reference, other)]
    if abs(counts[0] - counts[1]) > COUNT_TOLERANCE * counts[0]:
        reason = (
            f"answers differ on {_listed(names)} of {len(pairs)}, "
            f"and so do the output tokens: {counts[1]:,} against {counts[0]:,}"
        )
        return Correspondence("refused", compared, names, margin, reason)
    return Correspondence("differs", compared, names, margin)


def steadiness_reason(runs: Sequence[ArmRun]) -> str | None:
    """Why runs of one arm do not even correspond to each other; None where they do."""
    first = runs[0].outcomes
    for number, run in enumerate(runs[1:], start=2):
        moved = tuple(one.custom_id for one, two in zip(first, run.outcomes, strict=True) if not _same_run(one, two))
        if moved:
            return f"repetition {number} answered {_listed(moved)} otherwise than repetition 1"
    return None


def path_reason(arm: BenchArm, runs: Sequence[ArmRun]) -> str | None:
    """Why an arm did not run what it is there for, or ran what it must not; None where all is well."""
    seen = mechanisms_seen(runs)
    if strays := [name for name in arm.without if name in seen]:
        return f"{' and '.join(strays)} was at work, which this arm is there to go without"
    if arm.uses and not seen.intersection(arm.uses):
        return f"{' or '.join(arm.uses)} never ran, so that it would be plain decoding against itself"
    return None


def same_path_reason(arm: BenchArm, runs: Sequence[ArmRun], baseline: BenchArm, base: Sequence[ArmRun]) -> str | None:
    """Why an arm and its baseline are one and the same; None where at least one of them ran something of its own."""
    if arm.name == baseline.name or arm.runner != baseline.runner or mechanisms_seen(runs) or mechanisms_seen(base):
        return None
    return f"neither it nor {baseline.name} ran a mechanism: it would be plain decoding against itself"


def mechanisms_seen(runs: Sequence[ArmRun]) -> frozenset[Mechanism]:
    """What the counters of these runs show at work."""
    counted = {
        name
        for run in runs
        for name, value in run.counters.items()
        if value > 0 and not any(word in name for word in _NOT_AT_WORK)
    }
    return frozenset(
        mechanism
        for mechanism, marks in EVIDENCE.items()
        if any(name == mark or (mark.endswith("_") and name.startswith(mark)) for name in counted for mark in marks)
    )


def _tell_tokens(outcomes: Sequence[Outcome]) -> bool:
    return all(one.tokens or one.error for one in outcomes)


def _shape_reason(reference: Sequence[Outcome], other: Sequence[Outcome]) -> str | None:
    """Differences that no rounding explains."""
    if [one.custom_id for one in reference] != [one.custom_id for one in other]:
        return "the arms answered other items"
    erred = tuple(one.custom_id for one, two in zip(reference, other, strict=True) if one.error != two.error)
    if erred:
        return f"one of the arms erred on {_listed(erred)}, the other did not, or otherwise"
    prompts = tuple(
        one.custom_id for one, two in zip(reference, other, strict=True) if one.prompt_tokens != two.prompt_tokens
    )
    return f"the prompts of {_listed(prompts)} have other token counts" if prompts else None


def _same(one: Outcome, two: Outcome, compared: str) -> bool:
    if compared == "token ids":
        return one.tokens == two.tokens
    return (one.texts, one.output_tokens) == (two.texts, two.output_tokens)


def _same_run(one: Outcome, two: Outcome) -> bool:
    return (one.tokens, one.texts, one.output_tokens, one.error) == (
        two.tokens,
        two.texts,
        two.output_tokens,
        two.error,
    )


def _largest_margin(item: int, one: Outcome, two: Outcome, margin_of: MarginOf) -> float:
    """Of the first differences of an item's choices; infinite where an answer ends inside the other."""
    if len(one.tokens) != len(two.tokens):
        return math.inf
    margins = [0.0]
    for first, second in zip(one.tokens, two.tokens, strict=True):
        place = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
        if place is not None:
            margins.append(margin_of(item, first[:place], first[place], second[place]))
        elif len(first) != len(second):
            margins.append(math.inf)
    return max(margins)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
