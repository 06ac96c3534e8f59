"""Which arms of a benchmark may be compared, and how sure a ratio is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pipeline.specs.bench import BenchArm
from workers.engines.benching.comparison import (
    Correspondence,
    correspond,
    mechanisms_seen,
    path_reason,
    same_path_reason,
    steadiness_reason,
)
from workers.engines.benching.intervals import paired_ratio
from workers.engines.benching.runs import ArmRun, MemoryUse, Outcome, percentile

MEMORY = MemoryUse(((0.0, 1),), 1, 1, 1, True, 1)


def outcome(name: str, *tokens: int, prompt: int = 5) -> Outcome:
    return Outcome(name, (tokens,), (str(tokens),), prompt, len(tokens))


def run(*outcomes: Outcome, **counters: int) -> ArmRun:
    return ArmRun(outcomes, 1.0, MEMORY, counters=counters)


def compare(
    reference: Sequence[Outcome], other: Sequence[Outcome], *, is_foreign: bool = False, margin: float = math.inf
) -> Correspondence:
    return correspond(
        reference, other, is_foreign=is_foreign, tie_bound=1e-3, margin_of=lambda item, shared, token, rival: margin
    )


def test_equal_tokens_are_equal() -> None:
    found = compare([outcome("a", 1, 2)], [outcome("a", 1, 2)])
    assert (found.status, found.compared) == ("equal", "token ids")


def test_own_arm_with_another_token_is_refused_by_the_item_s_name() -> None:
    reference = [outcome("a", 1, 2), outcome("b", 3, 4)]
    found = compare(reference, [reference[0], outcome("b", 3, 5)], margin=0.0)
    assert found.status == "refused"
    assert found.differing == ("b",)
    assert found.reason == "answers differ on b of 2"


def test_many_differing_items_are_counted_and_not_all_named() -> None:
    reference = [outcome(f"i{number}", 1) for number in range(9)]
    found = compare(reference, [outcome(f"i{number}", 2) for number in range(9)])
    assert found.reason == "answers differ on i0, i1, i2, i3, i4 and 4 more of 9"


def test_another_library_may_differ_at_a_tie() -> None:
    found = compare([outcome("a", 1, 2, 3)], [outcome("a", 1, 9)], is_foreign=True, margin=9e-4)
    assert (found.status, found.largest_margin) == ("ties", 9e-4)


def test_margin_is_asked_for_where_answers_first_part() -> None:
    asked: list[tuple[int, tuple[int, ...], int, int]] = []

    def margin_of(item: int, shared: Sequence[int], token: int, other: int) -> float:
        asked.append((item, tuple(shared), token, other))
        return 0.0

    reference = [outcome("a", 1), outcome("b", 1, 2, 3, 4)]
    others = [outcome("a", 1), outcome("b", 1, 2, 7, 8)]
    correspond(reference, others, is_foreign=True, tie_bound=1e-3, margin_of=margin_of)
    assert asked == [(1, (1, 2), 3, 7)]


def test_another_library_with_other_answers_of_as_many_tokens_is_marked() -> None:
    reference = [outcome("a", *range(200)), outcome("b", 1, 2)]
    found = compare(reference, [outcome("a", *range(199), 0), outcome("b", 1, 3)], is_foreign=True)
    assert (found.status, found.differing) == ("differs", ("a", "b"))


def test_another_library_with_fewer_tokens_is_refused() -> None:
    found = compare([outcome("a", *range(100))], [outcome("a", *range(98), 7)], is_foreign=True)
    assert found.status == "refused"
    assert found.reason is not None and "99 against 100" in found.reason


def test_answer_that_ends_inside_the_other_is_no_tie() -> None:
    assert compare([outcome("a", 1, 2)], [outcome("a", 1)], is_foreign=True, margin=0.0).status == "refused"


def test_texts_and_counts_stand_in_where_tokens_are_not_told() -> None:
    reference, other = outcome("a", 1, 2), replace(outcome("a", 1, 2), tokens=())
    found = compare([reference], [other])
    assert (found.status, found.compared) == ("equal", "texts and token counts")
    assert compare([reference], [replace(other, output_tokens=3)]).status == "refused"


def test_error_of_one_arm_alone_is_refused() -> None:
    found = compare([outcome("a", 1)], [Outcome("a", error="context_length_exceeded")], is_foreign=True)
    assert found.reason is not None and "erred on a" in found.reason


def test_same_error_of_both_is_equal() -> None:
    both = [outcome("a", 1), Outcome("b", error="context_length_exceeded")]
    assert compare(both, both).status == "equal"


def test_other_prompt_tokens_are_refused() -> None:
    found = compare([outcome("a", 1)], [outcome("a", 1, prompt=6)], is_foreign=True)
    assert found.reason == "the prompts of a have other token counts"


def test_arm_that_changes_its_answers_between_repetitions_is_refused() -> None:
    assert steadiness_reason([run(outcome("a", 1)), run(outcome("a", 1))]) is None
    assert steadiness_reason([run(outcome("a", 1)), run(outcome("a", 2))]) == (
        "repetition 2 answered a otherwise than repetition 1"
    )


LOOKUP = BenchArm(name="lookup", options={}, uses=("lookup",), without=("draft",))


def test_arm_whose_mechanism_never_ran_is_refused() -> None:
    assert path_reason(LOOKUP, [run(lookup_proposed=3), run()]) is None
    for counters in ({}, {"lookup_proposed": 0}, {"lookup_declined": 4}, {"draft_declined": 1}):
        reason = path_reason(LOOKUP, [run(**counters)])
        assert reason is not None and "lookup never ran" in reason


def test_arm_that_ran_what_it_goes_without_is_refused() -> None:
    reason = path_reason(LOOKUP, [run(lookup_proposed=3, draft_proposed=1)])
    assert reason is not None and "draft was at work" in reason


def test_two_plain_arms_of_one_engine_are_not_compared() -> None:
    default, plain = BenchArm(name="default", options={}), BenchArm(name="plain", options={})
    library = BenchArm(name="mlx_lm", runner="mlx_lm", options={})
    assert same_path_reason(default, [run()], plain, [run()]) is not None
    assert same_path_reason(default, [run(lookup_proposed=1)], plain, [run()]) is None
    assert same_path_reason(plain, [run()], library, [run()]) is None
    assert same_path_reason(plain, [run()], plain, [run()]) is None


def test_mechanisms_are_read_from_counters() -> None:
    assert mechanisms_seen([run(draft_proposed=2), run(width_declined=1)]) == {"draft"}


def test_ratio_pairs_the_runs_of_a_repetition() -> None:
    ratio = paired_ratio([10.0, 40.0, 90.0], [5.0, 20.0, 45.0])
    assert ratio.per_run == (2.0, 2.0, 2.0)
    assert ratio.interval == pytest.approx((2.0, 2.0))


def test_interval_of_the_ratio_is_student_s_on_logarithms() -> None:
    ratio = paired_ratio([1.0, 2.0, 4.0], [1.0, 1.0, 1.0])
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 1.0, 4.0)
    # log2 of the ratios: 0, 1, 2; mean 1, deviation 1; t(2) is 4.303.
    reach = 4.303 / math.sqrt(3)
    assert ratio.interval == pytest.approx((2 ** (1 - reach), 2 ** (1 + reach)))


def test_single_repetition_has_no_interval() -> None:
    assert paired_ratio([3.0], [2.0]).interval is None


def test_percentile_is_by_nearest_rank() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 95) == 4.0
    assert percentile([], 50) is None
