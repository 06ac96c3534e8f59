"""Penalties and biases of one row, against their formulas written out, and against mlx-lm's."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.sample_utils import make_repetition_penalty

from pipeline.errors import InvalidValue
from workers.engines.history import History
from workers.engines.penalties import BiasRule, PenaltyOptions, PenaltyRule, RuleChain

VOCABULARY = 12
LOGITS = np.linspace(-3, 3, VOCABULARY, dtype=np.float32)
tokens_of = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)
amounts = st.floats(-2, 2, width=32)


def formula(options: PenaltyOptions, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """One token after the other, in double precision."""
    values = []
    for token, logit in enumerate(LOGITS.tolist()):
        if token in prompt or token in tokens:
            logit = logit * options.repetition if logit < 0 else logit / options.repetition
        logit -= options.frequency * tokens.count(token) + options.presence * (token in tokens)
        values.append(logit)
    return values


@given(tokens_of, st.lists(tokens_of, min_size=1, max_size=5), st.floats(0.25, 2, width=32), amounts, amounts)
def test_penalties_are_their_formulas_whatever_was_asked_before(
    prompt: list[int], answers: list[list[int]], repetition: float, presence: float, frequency: float
) -> None:
    options = PenaltyOptions(repetition, presence, frequency)
    rule = PenaltyRule(options, prompt)
    for answer in [*answers, answers[0], []]:
        np.testing.assert_allclose(rule.apply(LOGITS, answer), formula(options, prompt, answer), rtol=1e-5, atol=1e-5)
    assert LOGITS.tolist() == np.linspace(-3, 3, VOCABULARY, dtype=np.float32).tolist()


def test_repetition_penalty_is_mlx_lms() -> None:
    prompt, answer = [0, 3, 11], [3, 5, 9]
    theirs = make_repetition_penalty(1.3, 100)(mx.array(prompt + answer), mx.array(LOGITS)[None])
    ours = PenaltyRule(PenaltyOptions(repetition=1.3), prompt).apply(LOGITS, answer)
    np.testing.assert_allclose(ours, np.array(theirs)[0], rtol=1e-6)


def test_openais_penalties_leave_the_prompt_alone() -> None:
    rule = PenaltyRule(PenaltyOptions(presence=1.0, frequency=0.5), prompt=[1, 2])
    assert rule.apply(LOGITS, []).tolist() == LOGITS.tolist()
    assert (LOGITS - rule.apply(LOGITS, [4, 4, 7])).nonzero()[0].tolist() == [4, 7]


@given(tokens_of, st.floats(0.25, 2, width=32), st.integers(0, VOCABULARY - 1), st.floats(-1, 1, width=32))
def test_stretch_bounds_how_much_a_change_of_a_logit_grows(
    answer: list[int], repetition: float, token: int, change: float
) -> None:
    rule = PenaltyRule(PenaltyOptions(repetition, 1.0, 1.0), prompt=[2])
    moved = LOGITS.copy()
    moved[token] += np.float32(change)
    widened = np.abs(rule.apply(moved, answer) - rule.apply(LOGITS, answer)).max()
    assert widened <= abs(change) * rule.stretch + 1e-5


def test_more_distinct_tokens_than_there_is_room_for_at_first() -> None:
    logits = np.ones(2000, np.float32)
    changed = PenaltyRule(PenaltyOptions(presence=1.0), prompt=[]).apply(logits, list(range(1500)))
    assert changed.tolist() == [0.0] * 1500 + [1.0] * 500


def test_bias_adds_and_nothing_else() -> None:
    changed = BiasRule({1: 100.0, 4: -100.0, 5: 0.25}).apply(LOGITS, [1, 1])
    difference = dict(enumerate((changed - LOGITS).tolist()))
    assert {token: round(value, 3) for token, value in difference.items() if value} == {1: 100.0, 4: -100.0, 5: 0.25}


def test_bias_of_a_token_without_a_logit_is_an_error() -> None:
    with pytest.raises(InvalidValue, match="token 12"):
        BiasRule({12: 1.0}).apply(LOGITS, [])


def test_chain_applies_in_order_and_multiplies_the_stretch() -> None:
    first, second = PenaltyRule(PenaltyOptions(repetition=2.0), [0]), BiasRule({0: 1.0})
    chain = RuleChain([first, second])
    assert chain.stretch == 2.0
    assert chain.apply(LOGITS, []).tolist() == second.apply(first.apply(LOGITS, []), []).tolist()


@given(st.lists(tokens_of))
def test_history_says_what_left_and_what_came(answers: list[list[int]]) -> None:
    history, before = History(), list[int]()
    for answer in answers:
        removed, added = history.follow(answer)
        kept = before[: len(before) - len(removed)]
        assert kept + removed == before
        assert kept + added == answer
        assert not removed or not added or removed[0] != added[0]
        before = answer
