"""Whatever helps a row, it says what it says alone: the scheduler against mlx-lm's single-row loop, and against itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest

from pipeline.specs.generate import LookupOptions
from tests.fixtures.knowing import Knowing
from tests.fixtures.tiny_machines import counters, finish, row, text, tiny_machine
from tests.fixtures.tiny_models import RECURRENT, plain_tokens
from workers.engines.batching.budget import LaneCost, MemoryBudget
from workers.engines.batching.governor import Governor
from workers.engines.batching.guessing import Guesser
from workers.engines.batching.lookup import PromptLookup
from workers.engines.batching.machine import Machine
from workers.engines.batching.rows import Row
from workers.engines.batching.scheduler import Scheduler
from workers.engines.batching.shadow import shadow_tokens
from workers.engines.memory import held_bytes
from workers.engines.requests import Sampling
from workers.engines.tally import Tally

NAMES = ["llama", "qwen3", "gemma3_text", "qwen3_moe", "gpt_oss", "qwen3_5"]
REWINDING = [name for name in NAMES if name not in RECURRENT]
COUNT = 10
ALL = slice(None)

#: Of every kind: short and long, past a window, as long as a chunk of the canonical pass, with a beginning in common,
#: and such as repeat themselves.
PROMPTS = [
    *(text(length, length) for length in (5, 40, 1, 17, 9, 100, 2, 64, 65)),
    *([*text(70, 99), *text(3 + end, end)] for end in range(4)),
    *([*text(70, 99), *text(20, 98), *text(2 + end, 50 + end)] for end in range(2)),
    *([*text(70, 97), *text(3 + end, 60 + end)] for end in range(2)),
    *((text(4, seed) * 8)[: 20 + seed] for seed in range(3)),
]

HOT = Sampling(0.9, top_p=0.95, top_k=40)


@cache
def machine(name: str) -> Machine:
    return tiny_machine(name)


@cache
def plain(name: str, item: int) -> list[int]:
    return plain_tokens(machine(name).model, PROMPTS[item], COUNT)


def alone(name: str, part: slice = ALL) -> list[list[int]]:
    return [plain(name, item) for item in range(len(PROMPTS))[part]]


@pytest.fixture(params=[1, 4, 16])
def asked(request: pytest.FixtureRequest, full_counts: bool) -> tuple[int, slice]:
    """Rows at once, and which prompts: one row takes its time, so that it does a part of them."""
    width: int = request.param
    if width == 4 and not full_counts:
        pytest.skip("part of the full counts; other tests here take a width of 4")
    return width, ALL if width > 1 or full_counts else slice(8, None, 2)


def lookup(*, governed: bool = False) -> Guesser:
    proposer = PromptLookup(LookupOptions(ngram_min=1), adaptive=False)
    return Guesser([(proposer, 7)], Governor() if governed else None)


def run(
    name: str, asked: tuple[int, slice], *, guesser: Guesser | None = None, shares_prefixes: bool = False
) -> dict[str, int]:
    """Answer the prompts and compare; what was counted."""
    machine(name).prefixes.clear()
    width, part = asked
    tally = Tally("decode")
    scheduler = Scheduler(machine(name), width=width, tally=tally, guesser=guesser, shares_prefixes=shares_prefixes)
    rows = [row(prompt, COUNT, item=item) for item, prompt in enumerate(PROMPTS[part])]
    finish(scheduler, rows)
    scheduler.tell(tally)
    assert scheduler.guess_failures == {}
    assert [each.tokens for each in rows] == alone(name, part)
    return counters(tally)


@pytest.mark.parametrize("name", NAMES)
def test_batches_say_what_rows_say_alone(name: str, asked: tuple[int, slice]) -> None:
    seen = run(name, asked)
    assert seen["decode_steps"] < seen["decode_rows"] / 2 or asked[0] == 1


@pytest.mark.parametrize("name", NAMES)
def test_rows_from_shared_prefixes_say_what_rows_say_alone(name: str, asked: tuple[int, slice]) -> None:
    seen = run(name, asked, shares_prefixes=True)
    if name in RECURRENT:
        assert seen["prefixes_refused"] == 1 and "prefix_tokens" not in seen
    else:
        assert seen["prefixes_computed"] >= 1
        assert seen["prefix_tokens"] >= 2 * 64
        assert seen["prompt_tokens_read"] + seen["prefix_tokens"] == sum(len(each) - 1 for each in PROMPTS[asked[1]])


@pytest.mark.parametrize("name", REWINDING)
def test_rows_guessed_for_say_what_rows_say_alone(name: str, asked: tuple[int, slice]) -> None:
    seen = run(name, asked, guesser=lookup())
    assert seen["lookup_proposed"] > seen.get("lookup_accepted", 0)
    assert seen.get("lookup_accepted", 0) > 0 or asked[0] == 1


@pytest.mark.parametrize("name", REWINDING)
def test_auto_says_what_rows_say_alone(name: str, asked: tuple[int, slice]) -> None:
    seen = run(name, asked, guesser=lookup(governed=True), shares_prefixes=True)
    assert seen["governor_plain"] > 0
    assert seen["prefix_tokens"] > 0


@pytest.mark.parametrize("name", REWINDING)
def test_guesses_that_hold_up_to_any_place_save_steps_and_change_nothing(name: str) -> None:
    answers = {tuple(prompt): tokens for prompt, tokens in zip(PROMPTS, alone(name), strict=True)}
    knowing = Knowing(answers, truth=0.8)
    seen = run(name, (4, ALL), guesser=Guesser([(knowing, 7)], None))
    assert seen["lookup_accepted"] > seen["lookup_proposed"] / 3
    # Each round says one token more than it guessed right, but for one that ends with a right guess.
    said = len(PROMPTS) * COUNT
    assert said <= seen["decode_rows"] + seen["lookup_accepted"] <= said + len(PROMPTS)
    assert seen["decode_steps"] < 0.8 * said / 4
    assert knowing.ended == len(PROMPTS)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_state_that_cannot_go_back_is_not_guessed_for(name: str) -> None:
    seen = run(name, (4, slice(8, None, 3)), guesser=lookup())
    assert seen["guessing_refused"] == 1
    assert "lookup_proposed" not in seen


# --- drawn tokens ----------------------------------------------------------------------------------------------------


def drawn_rows() -> list[Row]:
    return [
        row(prompt, COUNT, HOT, seed=item, item=item, choice=choice)
        for item, prompt in enumerate(PROMPTS[:7])
        for choice in range(2)
    ]


@cache
def drawn_alone(name: str) -> list[list[int]]:
    """Each row in a run of its own."""
    rows = drawn_rows()
    for each in rows:
        finish(Scheduler(machine(name), width=1, tally=Tally("decode")), [each])
    return [each.tokens for each in rows]


def run_drawn(name: str, schedule: Callable[[Scheduler, list[Row]], object], *, width: int = 16) -> list[list[int]]:
    machine(name).prefixes.clear()
    rows = drawn_rows()
    schedule(Scheduler(machine(name), width=width, tally=Tally("decode")), rows)
    return [each.tokens for each in rows]


SAMPLED = ["llama", "gemma3_text", "qwen3_moe", "lfm2"]


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_depend_on_seed_and_choice(name: str) -> None:
    said = drawn_alone(name)
    assert len({tuple(tokens) for tokens in said}) == len(said)
    assert all(len(tokens) == COUNT for tokens in said)


@pytest.mark.parametrize("width", [2, 7, 16])
@pytest.mark.parametrize("name", SAMPLED)
def test_draws_are_the_same_in_any_batch_and_order(name: str, width: int, full_counts: bool) -> None:
    if width != 7 and not full_counts:
        pytest.skip("part of the full counts, as other widths are")

    def permuted(scheduler: Scheduler, rows: list[Row]) -> None:
        finish(scheduler, random.Random(width).sample(rows, len(rows)))

    assert run_drawn(name, permuted, width=width) == drawn_alone(name)


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_are_the_same_beside_rows_that_come_late_and_that_are_discarded(name: str) -> None:
    def crowded(scheduler: Scheduler, rows: list[Row]) -> None:
        others = [row(text(length, length), 30, HOT, seed=length) for length in (3, 30, 12, 12, 90)]
        waiting = rows[5:]

        def disturb(step: int) -> None:
            if step % 2 and waiting:
                scheduler.add([waiting.pop()])
            if step in (3, 5, 9):
                scheduler.discard(others[: step // 2])

        finish(scheduler, [*others, *rows[:5]], on_step=disturb)
        assert not waiting

    assert run_drawn(name, crowded, width=6) == drawn_alone(name)


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_are_the_same_after_rows_were_shed_and_begun_again(name: str) -> None:
    machine(name).prefixes.clear()
    rows, expected, tally = drawn_rows()[::2], drawn_alone(name)[::2], Tally("decode")
    answers = {tuple(each.prompt): tokens for each, tokens in zip(rows, expected, strict=True)}
    guesser = None if name in RECURRENT else Guesser([(Knowing(answers, 0.2), 7)], None)
    budget = MemoryBudget(held_bytes(), 0, LaneCost(), 0)  # memory is short from the first look on
    scheduler = Scheduler(machine(name), width=16, tally=tally, budget=budget, guesser=guesser)
    finish(scheduler, rows, on_step=lambda step: scheduler.restart() if step == 11 else None)
    assert counters(tally)["rows_shed"] > 0
    assert [each.tokens for each in rows] == expected
    assert scheduler.guess_failures == {}


@pytest.mark.parametrize("truth", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_moe"])
def test_draws_are_the_same_when_they_were_guessed(name: str, truth: float) -> None:
    rows, expected = drawn_rows()[::2], drawn_alone(name)[::2]  # one choice of each item, so that prompts differ
    answers = {tuple(each.prompt): tokens for each, tokens in zip(rows, expected, strict=True)}
    guesser = Guesser([(Knowing(answers, truth), 7)], None)
    finish(Scheduler(machine(name), width=5, tally=Tally("decode"), guesser=guesser), rows)
    assert [each.tokens for each in rows] == expected
    seen = guesser.counters()
    accepted = seen["lookup_accepted"] / seen["lookup_proposed"]
    assert accepted < 0.1 if truth == 0.0 else accepted > 0.4


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "mamba2"])
def test_a_row_that_was_taken_back_says_the_same_again(name: str) -> None:
    rows = drawn_rows()[:4]
    scheduler = Scheduler(machine(name), width=4, tally=Tally("decode"))
    finish(scheduler, rows)
    first = [list(each.tokens) for each in rows]
    scheduler.take_back(rows[2])
    assert rows[2].tokens == []
    finish(scheduler)
    assert [each.tokens for each in rows] == first
    assert [shadow_tokens(machine(name), each) for each in rows] == first
