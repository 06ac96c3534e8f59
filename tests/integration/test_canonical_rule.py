"""The canonical rule at work: forwards whose rounding shows, choices that hang on it, and tokens that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.fixtures.knowing import Knowing
from tests.fixtures.shaky import shake, tie
from tests.fixtures.tiny_machines import GREEDY, counters, finish, row, text, tiny_machine
from tests.fixtures.tiny_models import VOCABULARY, tiny_model
from workers.engines.batching.guessing import Guesser
from workers.engines.batching.machine import Machine
from workers.engines.batching.rows import Row
from workers.engines.batching.scheduler import Scheduler
from workers.engines.batching.shadow import shadow_tokens
from workers.engines.requests import Sampling
from workers.engines.tally import Tally

COUNT = 8
PROMPTS = [text(length, length) for length in (5, 40, 1, 17, 64, 65)]
PROMPTS += [[*text(70, 99), *text(3, seed)] for seed in range(2)]


def twins() -> Any:
    """Half of the vocabulary is the other half's twin: two best tokens are equal but for rounding."""
    model = tiny_model("qwen3")
    for token in range(VOCABULARY // 2):
        tie(model.model.embed_tokens, token, token + VOCABULARY // 2)
    shake(model, 1e-4)
    return model


def at_the_cut() -> Any:
    """Says the same everywhere: two tokens hold three quarters, and whether a third stays at 0.75 hangs on rounding."""
    model = tiny_model("llama")
    head = np.full(VOCABULARY, -30.0, np.float32)
    head[10:14] = np.log([0.5, 0.25, 0.2, 0.05])
    shake(model, 1e-3, head=mx.array(head))
    return model


def tied_experts() -> Any:
    """Two experts of a layer are equally good for all that is read, and say very different things."""
    model = tiny_model("qwen3_moe")
    experts = model.layers[1].mlp
    experts.gate.weight[2] = experts.gate.weight[1]
    shake(experts.gate, 1e-4)
    experts.switch_mlp.down_proj.weight = 4 * experts.switch_mlp.down_proj.weight
    return model


def answer(
    machine: Machine, width: int, sampling: Sampling = GREEDY, *, guesser: Guesser | None = None, count: int = COUNT
) -> tuple[list[Row], dict[str, int]]:
    machine.prefixes.clear()
    tally = Tally("decode")
    scheduler = Scheduler(machine, width=width, tally=tally, guesser=guesser)
    prompts = PROMPTS if count == COUNT else PROMPTS[:6]
    rows = [row(prompt, count, sampling, seed=item, item=item) for item, prompt in enumerate(prompts)]
    finish(scheduler, rows)
    scheduler.tell(tally)
    assert scheduler.guess_failures == {}
    return rows, counters(tally)


CASES = [
    pytest.param("qwen3", twins, GREEDY, "canonical_choices", id="tied best tokens"),
    pytest.param("llama", at_the_cut, Sampling(1.0, top_p=0.75), "canonical_choices", id="cut of top_p"),
    pytest.param("llama", at_the_cut, Sampling(1.0, min_p=0.4), "canonical_choices", id="cut of min_p"),
    pytest.param("llama", at_the_cut, Sampling(1.0, top_k=3), None, id="no cut near"),
    pytest.param("qwen3_moe", tied_experts, GREEDY, "canonical_mends", id="tied experts"),
]


@pytest.mark.parametrize(("name", "make", "sampling", "counter"), CASES)
def test_tokens_hang_on_rounding_without_the_rule_and_not_with_it(
    name: str, make: Callable[[], Any], sampling: Sampling, counter: str | None
) -> None:
    machine = tiny_machine(name, model=make())
    count = 20 if name == "qwen3_moe" else COUNT  # a wrong expert shows in what follows

    machine.is_exact = False
    without = [[each.tokens for each in answer(machine, width, sampling, count=count)[0]] for width in (1, 4, 16)]
    assert any(tokens != without[0] for tokens in without) == (counter is not None)

    machine.is_exact = True
    results = [answer(machine, width, sampling, count=count) for width in (1, 16)]
    answers = {tuple(each.prompt): each.tokens for each in results[0][0]}
    guesser = Guesser([(Knowing(answers, truth=0.9), 7)], None)
    results.append(answer(machine, 4, sampling, guesser=guesser, count=count))
    tokens = [[each.tokens for each in rows] for rows, _ in results]
    assert tokens == [tokens[0]] * 3
    assert results[2][1]["lookup_accepted"] > count
    # And they are the plain path's.
    rows, _ = results[1]
    assert [shadow_tokens(machine, each) for each in rows] == tokens[1]
    for _, seen in results:
        if counter is None:
            assert seen.get("canonical_choices", 0) < seen["choices"] / 10  # but for draws that are close by chance
        else:
            assert seen[counter] > 0
            assert seen["canonical_tokens"] >= seen[counter]


def test_a_shadow_tells_where_rounding_decided() -> None:
    machine = tiny_machine("qwen3", model=twins())
    machine.is_exact = False
    rows, _ = answer(machine, 16)
    # It does not hold against a row what rounding may decide where nothing is promised.
    assert [shadow_tokens(machine, each) for each in rows] == [each.tokens for each in rows]
    machine.is_exact = True
    shadows = [shadow_tokens(machine, each) for each in rows]
    assert any(shadow != each.tokens for shadow, each in zip(shadows, rows, strict=True))


def test_a_shadow_ends_where_a_row_said_what_it_would_not() -> None:
    machine = tiny_machine("qwen3")
    [said, *_], _ = answer(machine, 4)
    true = list(said.tokens)
    said.tokens[5] = (true[5] + 1) % VOCABULARY
    assert shadow_tokens(machine, said) == true[:6]


def test_bounds_grow_with_what_the_rule_sees() -> None:
    """Rounding that shows only behind a probe that saw none."""
    machine = tiny_machine("qwen3", model=twins_without_noise())
    machine.is_exact = True
    before = machine.bounds.bound(100)
    shake(machine.model, 1e-4)
    answer(machine, 4)
    assert machine.bounds.bound(100) > before
    deviations = [value for value in machine.bounds.seen.values() if value > 0]
    assert 1e-4 < max(deviations) < 1e-3


def twins_without_noise() -> Any:
    model = tiny_model("qwen3")
    for token in range(VOCABULARY // 2):
        tie(model.model.embed_tokens, token, token + VOCABULARY // 2)
    return model
