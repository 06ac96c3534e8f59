"""The plain path's word on a finished row: what the canonical pass would have chosen at each of its places."""

from __future__ import annotations

from pipeline.errors import ItemError
from workers.engines.batching.choosing import choose
from workers.engines.batching.machine import Machine
from workers.engines.batching.rows import Row


def shadow_tokens(machine: Machine, row: Row) -> list[int]:
    """The row's tokens up to the first that the canonical pass would not have chosen, and then the one it would have.

    One pass reads all of the answer at once, since each place is judged by the tokens before it. Where choices are not
    made canonically, a place that rounding may decide is taken as it is. Where the plain path errs its tokens end.
    """
    tokens: list[int] = []
    start = len(row.prompt) - 1
    for place, logits in machine.canonical.walk(row.so_far[:-1], start):
        bound = 0.0 if machine.is_exact else machine.bounds.bound(place + 1)
        try:
            ruled = logits if row.rule is None else row.rule.apply(logits, tokens)
            choice = choose(ruled, row.sampling, row.seed, row.choice, place - start, bound)
        except (FloatingPointError, ItemError):
            return tokens
        said = row.tokens[place - start]
        if choice.token != said and (machine.is_exact or choice.settled):
            return [*tokens, choice.token]
        tokens.append(said)
    return tokens
