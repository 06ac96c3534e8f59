"""What becomes of a prompt that leaves too little room for its answer. Works on tokens, knows nothing about texts."""

from __future__ import annotations

from typing import Literal, cast, get_args

from pipeline.errors import ContextLengthExceeded

Overflow = Literal["error", "truncate_left", "truncate_middle"]


def read_overflow(policy: str) -> Overflow:
    """The policy of that name; raises ValueError for another."""
    if policy not in get_args(Overflow):
        raise ValueError(f"no overflow policy is called {policy!r}")
    return cast(Overflow, policy)


def fit_prompt(prompt: list[int], max_tokens: int, context_length: int | None, overflow: Overflow) -> list[int]:
    """The prompt, cut so that ``max_tokens`` more fit into the context; at least one token of it stays.

    ``truncate_left`` drops the oldest tokens, ``truncate_middle`` keeps as many at the head as at the tail (one more
    at the tail where the room is odd).

    Raises:
        ContextLengthExceeded: too long and the policy is ``error``, or the answer alone leaves no room. Says both counts.
    """
    if context_length is None or len(prompt) + max_tokens <= context_length:
        return prompt
    room = context_length - max_tokens
    if overflow == "error" or room < 1:
        raise ContextLengthExceeded(
            f"the model's context is {context_length} tokens; this item asks for "
            f"{len(prompt) + max_tokens}: {len(prompt)} in the prompt and {max_tokens} for the answer",
            param="max_tokens" if room < 1 or len(prompt) < context_length else None,
        )
    head = 0 if overflow == "truncate_left" else room // 2
    return prompt[:head] + prompt[len(prompt) - (room - head) :]
