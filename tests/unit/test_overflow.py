"""Prompts that are too long: refused, or cut at the left or in the middle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ContextLengthExceeded
from workers.engines.overflow import Overflow, fit_prompt


@given(st.integers(1, 40), st.integers(1, 30), st.sampled_from(["error", "truncate_left", "truncate_middle"]))
def test_what_comes_back_fits_and_keeps_what_the_policy_says(length: int, answer: int, policy: Overflow) -> None:
    prompt, context = list(range(length)), 20
    if answer >= context or (policy == "error" and length + answer > context):
        with pytest.raises(ContextLengthExceeded):
            fit_prompt(prompt, answer, context, policy)
        return
    kept = fit_prompt(prompt, answer, context, policy)
    assert len(kept) == min(length, context - answer)
    assert kept[-1] == prompt[-1]
    if length + answer <= context:
        assert kept == prompt
    elif policy == "truncate_left":
        assert kept == prompt[-len(kept) :]
    else:
        head, tail = len(kept) // 2, len(kept) - len(kept) // 2
        assert kept == prompt[:head] + prompt[-tail:]


def test_refusal_says_every_count_and_names_the_limit_where_it_alone_is_too_much() -> None:
    with pytest.raises(
        ContextLengthExceeded, match="context is 20 tokens; this item asks for 33: 30 in the prompt and 3"
    ):
        fit_prompt(list(range(30)), 3, 20, "error")
    with pytest.raises(ContextLengthExceeded) as caught:
        fit_prompt([1], 20, 20, "truncate_left")
    assert caught.value.param == "max_tokens"


def test_model_without_a_known_context_takes_any_prompt() -> None:
    assert fit_prompt([1] * 100, 100, None, "error") == [1] * 100
