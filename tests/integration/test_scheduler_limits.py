"""Ceilings of memory, and what can go wrong with one row: all others are answered as if nothing had been."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pipeline.errors import CeilingExceeded, ItemError, JobError
from pipeline.specs.generate import LookupOptions
from tests.fixtures.knowing import Knowing
from tests.fixtures.tiny_machines import counters, finish, row, text, tiny_machine
from tests.fixtures.tiny_models import VOCABULARY, plain_tokens, tiny_model
from workers.engines.batching.budget import LaneCost, Load, MemoryBudget
from workers.engines.batching.guessing import Guesser
from workers.engines.batching.lookup import PromptLookup
from workers.engines.batching.machine import Machine
from workers.engines.batching.rows import Row
from workers.engines.batching.scheduler import Scheduler
from workers.engines.batching.seams import Logits
from workers.engines.memory import held_bytes
from workers.engines.requests import Sampling
from workers.engines.stopping import StopScanner
from workers.engines.tally import Tally

COUNT = 10
PROMPTS = [
    *(text(length, length) for length in (5, 200, 30, 31, 32, 1, 9)),
    *([*text(70, 99), *text(3 + end, end)] for end in range(3)),
]


@cache
def machine(name: str) -> Machine:
    return tiny_machine(name)


@cache
def alone(name: str) -> list[list[int]]:
    return [plain_tokens(machine(name).model, prompt, COUNT) for prompt in PROMPTS]


def rows() -> list[Row]:
    return [row(prompt, COUNT, item=item) for item, prompt in enumerate(PROMPTS)]


def knowing(name: str) -> Guesser:
    answers = {tuple(prompt): tokens for prompt, tokens in zip(PROMPTS, alone(name), strict=True)}
    return Guesser([(Knowing(answers, truth=1.0), 7)], None)


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guesses", [False, True])
@pytest.mark.parametrize("fits", [1, 2, 3, 6])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_moe", "lfm2"])
def test_a_ceiling_of_keys_and_values_holds_and_all_rows_are_answered(
    name: str, fits: int, guesses: bool, full_counts: bool
) -> None:
    if fits in (2, 6) and not full_counts:
        pytest.skip("part of the full counts, as other ceilings are")
    of_machine = machine(name).budget
    longest = max(map(len, PROMPTS)) + COUNT + 8
    ceiling = of_machine.cache_bytes(Load(fits, longest, reading=1, reading_tokens=longest))
    machine(name).prefixes.clear()
    scheduler = Scheduler(
        machine(name),
        width=16,
        tally=Tally("decode"),
        budget=of_machine.of_job(None, ceiling, LaneCost()),
        guesser=Guesser([(PromptLookup(LookupOptions(ngram_min=1)), 7)], None) if guesses else None,
    )
    asked = rows()
    finish(scheduler, asked)
    assert [each.tokens for each in asked] == alone(name)
    assert 0 < scheduler.most_cache_bytes <= ceiling
    assert scheduler.most_rows >= fits - 1  # a prefix may have taken the place of a row


def test_a_low_ceiling_lets_fewer_rows_in() -> None:
    most = {}
    for fits in (1, 2, 4, 16):
        budget = MemoryBudget(None, 0, LaneCost(per_token=100), 0)
        budget.kv_limit_bytes = budget.cache_bytes(Load(fits, 250, reading=1, reading_tokens=250))
        scheduler = Scheduler(machine("llama"), width=16, tally=Tally("decode"), budget=budget, shares_prefixes=False)
        finish(scheduler, [row(text(200, seed), 3) for seed in range(8)])
        most[fits] = scheduler.most_rows
    assert most == {1: 1, 2: 2, 4: 4, 16: 8}


def test_an_expected_size_near_the_memory_ceiling_lets_fewer_rows_in() -> None:
    held, cost = held_bytes(), LaneCost(per_token=1 << 20)  # rows that would take 256 MiB each
    budget = MemoryBudget(held + (6 << 28), held, cost, 0)
    scheduler = Scheduler(machine("llama"), width=16, tally=Tally("decode"), budget=budget, shares_prefixes=False)
    asked = rows()
    finish(scheduler, asked)
    assert scheduler.most_rows <= 5
    assert [each.tokens for each in asked] == alone("llama")


@pytest.mark.parametrize(
    ("budget", "place"),
    [
        (MemoryBudget(1 << 20, 1 << 21, LaneCost(per_token=100), 0), "the memory ceiling of 1,048,576 bytes"),
        (MemoryBudget(1 << 40, 0, LaneCost(), 0, attention_bytes=1 << 40), "the memory ceiling of"),
        (
            MemoryBudget(None, 0, LaneCost(per_token=100), 0, kv_limit_bytes=9999),
            "the ceiling of keys and values of 9,999",
        ),
    ],
)
def test_a_ceiling_too_small_for_one_row_ends_the_job(budget: MemoryBudget, place: str) -> None:
    scheduler = Scheduler(machine("llama"), width=4, tally=Tally("decode"), budget=budget)
    with pytest.raises(CeilingExceeded, match=place) as caught:
        finish(scheduler, rows())
    assert isinstance(caught.value, JobError)
    assert caught.value.code == "ceiling_exceeded"
    assert caught.value.hint is not None and "raise the ceiling" in caught.value.hint


def test_prefixes_make_room_for_rows() -> None:
    """What an earlier job left takes all that a later one with a low ceiling would need."""
    of_machine = machine("llama")
    of_machine.prefixes.clear()
    finish(Scheduler(of_machine, width=4, tally=Tally("decode")), rows())
    assert of_machine.prefixes.nbytes > 0
    ceiling = of_machine.budget.cache_bytes(Load(1, 220, reading=1, reading_tokens=220))
    budget = of_machine.budget.of_job(None, ceiling, LaneCost())
    scheduler = Scheduler(of_machine, width=4, tally=Tally("decode"), budget=budget)
    asked = rows()
    finish(scheduler, asked)
    assert [each.tokens for each in asked] == alone("llama")
    assert scheduler.most_cache_bytes <= ceiling
    # A job with more room shares prefixes again.
    tally = Tally("decode")
    finish(Scheduler(of_machine, width=4, tally=tally), rows())
    assert counters(tally)["prefix_tokens"] > 0


# --- one bad row -----------------------------------------------------------------------------------------------------


class Raising:
    """A rule that fails after so many tokens."""

    stretch = 1.0

    def __init__(self, error: Exception, after: int) -> None:
        self._error = error
        self._after = after

    def apply(self, logits: Logits, tokens: Sequence[int]) -> Logits:
        if len(tokens) == self._after:
            raise self._error
        return logits


@pytest.mark.parametrize("guesses", [False, True])
@pytest.mark.parametrize(
    ("error", "code"),
    [(ItemError("no way on", code="grammar_failed"), "grammar_failed"), (KeyError(3), "decode_failed")],
)
def test_a_rule_that_fails_ends_its_row_alone(error: Exception, code: str, guesses: bool) -> None:
    asked = rows()
    for item, after in ((0, 0), (4, 3), (9, COUNT - 1)):
        asked[item].rule = Raising(error, after)
    guesser = knowing("llama") if guesses else None
    over = finish(Scheduler(machine("llama"), width=5, tally=Tally("decode"), guesser=guesser), asked)
    failed = {advance.row.item: advance.error for advance in over if advance.error is not None}
    assert set(failed) == {0, 4, 9}
    assert {error.item_code for error in failed.values()} == {code}
    for item, each in enumerate(asked):
        assert item in failed or each.tokens == alone("llama")[item]
    assert len(over) == len(asked)


class Poisoned:
    """What a model says behind this token is not a number."""

    def __init__(self, model: Any, token: int) -> None:
        plain = type(model)

        class Poisonous(plain):  # type: ignore[valid-type, misc]
            def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
                out: mx.array = super().__call__(x, *args, **kwargs)
                return mx.where((x == token)[..., None], mx.array(np.nan), out)

        model.__class__ = Poisonous
        self.model = model


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, top_p=0.9)])
def test_a_row_whose_logits_are_no_numbers_errs_alone(sampling: Sampling) -> None:
    token = VOCABULARY - 1
    model = tiny_model("llama")
    model.model.embed_tokens.weight[token] = 0.01 * model.model.embed_tokens.weight[token]  # never said by itself
    sick = tiny_machine("llama", model=model)
    finish(Scheduler(sick, width=4, tally=Tally("decode")), healthy := _rows(sampling))
    Poisoned(model, token)
    asked = _rows(sampling)
    asked[1].prompt = [*asked[1].prompt[:-1], token]
    over = finish(Scheduler(sick, width=4, tally=Tally("decode")), asked)
    assert {each.row.item: each.error.item_code for each in over if each.error} == {3: "non_finite_logits"}
    assert asked[1].tokens == []
    assert [each.tokens for each in asked if each.item != 3] == [each.tokens for each in healthy if each.item != 3]


def _rows(sampling: Sampling) -> list[Row]:
    return [row(text(length, length), COUNT, sampling, seed=length, item=length) for length in range(2, 8)]


# --- where rows end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guesses", [False, True])
def test_rows_end_at_their_own_lengths(guesses: bool) -> None:
    asked = rows()
    for item, each in enumerate(asked):
        each.max_tokens = 1 + item
    guesser = knowing("llama") if guesses else None
    over = finish(Scheduler(machine("llama"), width=4, tally=Tally("decode"), guesser=guesser), asked)
    assert [each.tokens for each in asked] == [tokens[: 1 + item] for item, tokens in enumerate(alone("llama"))]
    assert {each.reason for each in asked} == {"length"}
    assert len(over) == len(asked)


@pytest.mark.parametrize("guesses", [False, True])
def test_what_was_guessed_right_behind_a_stop_is_dropped(guesses: bool) -> None:
    def decode(tokens: Sequence[int]) -> str:
        return "".join(f"{token:03d}" for token in tokens)

    expected = []
    asked = rows()
    for item, tokens in enumerate(alone("qwen3")):
        written = decode(tokens)
        stop = written[14:16] if item % 2 else written[15:17]  # across the end of the fifth token, or inside the sixth
        asked[item].scanner = StopScanner([stop], decode)
        place = written.index(stop) + 2
        expected.append(tokens[: -(-place // 3)])
    tally = Tally("decode")
    guesser = knowing("qwen3") if guesses else None
    finish(scheduler := Scheduler(machine("qwen3"), width=4, tally=tally, guesser=guesser), asked)
    assert [each.tokens for each in asked] == expected
    assert {each.reason for each in asked} == {"stop"}
    scheduler.tell(tally)
    if guesses:
        assert counters(tally)["lookup_accepted"] > 0
        assert all(each.accepted < len(each.tokens) + 1 for each in asked)


@pytest.mark.parametrize("guesses", [False, True])
def test_an_end_token_ends_its_row_and_counts(guesses: bool) -> None:
    ends = {tokens[3] for tokens in alone("qwen3")}
    ending = tiny_machine("qwen3", end_tokens=ends)
    asked = rows()
    finish(Scheduler(ending, width=4, tally=Tally("decode"), guesser=knowing("qwen3") if guesses else None), asked)
    for each, tokens in zip(asked, alone("qwen3"), strict=True):
        first = next(place for place, token in enumerate(tokens) if token in ends)
        assert each.tokens == tokens[: first + 1]
        assert each.ended and each.reason == "stop"


def test_an_empty_run_is_idle() -> None:
    scheduler = Scheduler(machine("llama"), width=4, tally=Tally("decode"))
    assert scheduler.is_idle
    assert finish(scheduler, []) == []
    assert scheduler.in_flight == scheduler.most_cache_bytes == 0


def test_rows_that_are_discarded_while_they_are_read_leave_the_others_whole() -> None:
    long = [text(300, seed) for seed in range(3)]
    asked = [row(prompt, COUNT, item=item) for item, prompt in enumerate([*long, *PROMPTS])]
    started: list[int] = []
    scheduler = Scheduler(
        machine("llama"),
        width=4,
        tally=Tally("decode"),
        shares_prefixes=False,
        on_start=lambda rows: started.extend(each.item for each in rows),
    )
    scheduler.add(asked)
    scheduler.step()  # the first piece of the three long ones
    assert sorted(started) == [0, 1, 2]
    scheduler.discard([asked[started[0]], asked[5]])
    finish(scheduler)
    gone = {started[0], 5}
    for item, each in enumerate(asked):
        expected = plain_tokens(machine("llama").model, each.prompt, COUNT) if item < 3 else alone("llama")[item - 3]
        assert each.tokens == ([] if item in gone else expected)
    assert set(started) == set(range(len(asked))) - {5}


def test_a_restart_while_prompts_are_read_asks_for_nothing_twice() -> None:
    asked = [row(text(700, 1), COUNT, item=99), *rows()]
    scheduler = Scheduler(machine("llama"), width=4, tally=Tally("decode"), shares_prefixes=False)
    over = finish(scheduler, asked, on_step=lambda step: scheduler.restart() if step in (1, 7) else None)
    assert [each.tokens for each in asked[1:]] == alone("llama")
    assert len(over) == len(asked)
