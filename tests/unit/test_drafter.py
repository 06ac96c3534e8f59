"""A second model guesses: the same answers whatever it says, its cache's rule, and how often it is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from mlx_lm.models import mamba2

from tests.fixtures.drafting import VOCABULARY, make_machine, make_rows, random_llama, run_rows, with_noise
from workers.engines.batching.drafter import MOST_FAILURES, FullModelDrafter
from workers.engines.batching.guessing import Guesser
from workers.engines.batching.machine import Machine
from workers.engines.batching.rows import Row
from workers.engines.batching.scheduler import Scheduler
from workers.engines.batching.seams import Draws, Proposer
from workers.engines.requests import Sampling
from workers.engines.tally import Tally

GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.8, top_p=0.95, top_k=40)
ROWS = 6


@pytest.fixture(scope="module")
def machine() -> Machine:
    return make_machine(random_llama(0))


@pytest.fixture(scope="module")
def drafters(machine: Machine) -> dict[str, Any]:
    return {
        "same": with_noise(random_llama(0), machine.model, 0, 0.0),
        "noisy": with_noise(random_llama(0), machine.model, 5, 0.03),
        "other": random_llama(99),
    }


@pytest.fixture(scope="module")
def plain(machine: Machine) -> dict[Sampling, list[list[int]]]:
    return {sampling: run_rows(machine, make_rows(ROWS, sampling=sampling), 1).tokens for sampling in (GREEDY, SAMPLED)}


def drafter_of(model: Any, **options: Any) -> FullModelDrafter:
    given = {"vocabulary": VOCABULARY, "most_tokens": 4, "end_tokens": frozenset({0}), **options}
    return FullModelDrafter(model, **given)


@pytest.mark.parametrize("width", [1, 4, 8])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["same", "noisy", "other"])
def test_answers_are_those_of_plain_decoding(
    machine: Machine,
    drafters: dict[str, Any],
    plain: dict[Sampling, list[list[int]]],
    name: str,
    sampling: Sampling,
    width: int,
) -> None:
    result = run_rows(machine, make_rows(ROWS, sampling=sampling), width, drafter_of(drafters[name]))

    assert result.tokens == plain[sampling]
    assert result.counts["draft_proposed"] > 0
    assert "draft_failures" not in result.counts


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_model_itself_is_always_right(
    machine: Machine, drafters: dict[str, Any], plain: dict[Sampling, list[list[int]]], sampling: Sampling
) -> None:
    rows = make_rows(ROWS, sampling=sampling)
    alone = run_rows(machine, make_rows(ROWS, sampling=sampling), 4)
    result = run_rows(machine, rows, 4, drafter_of(drafters["same"]))

    assert result.counts["draft_accepted"] == result.counts["draft_proposed"] > 0
    assert result.counts["decode_steps"] < 0.6 * alone.counts["decode_steps"]
    assert sum(row.accepted for row in rows if row.guessed_by == "draft") == result.counts["draft_accepted"]


def test_the_drafter_reads_no_token_twice(machine: Machine, drafters: dict[str, Any]) -> None:
    """The rule of its cache: after a round it lacks the pending token and, where all was taken, its last guess."""
    rows = make_rows(5, max_tokens=30)
    result = run_rows(machine, rows, 5, drafter_of(drafters["same"], end_tokens=frozenset()))

    said = sum(len(row.so_far) for row in rows)
    assert said - 5 * 2 <= result.counts["draft_tokens_read"] < said


def test_acceptance_falls_with_the_distance_of_the_models(machine: Machine, drafters: dict[str, Any]) -> None:
    shares = []
    for name in ("other", "noisy", "same"):
        counts = run_rows(machine, make_rows(ROWS, max_tokens=24), 4, drafter_of(drafters[name])).counts
        shares.append(counts.get("draft_accepted", 0) / counts["draft_positions_tested"])

    assert shares[0] < 0.2 < shares[1] < 0.98
    assert shares[2] == 1.0


def test_shared_noise_makes_sampled_guesses_come_true_more_often(machine: Machine, drafters: dict[str, Any]) -> None:
    """Against the best token, and against a draw with noise of its own."""

    class Unlike(FullModelDrafter):
        def begin(self, row: int, prompt: Sequence[int], draws: Draws | None = None) -> None:
            assert draws is not None
            super().begin(row, prompt, draws._replace(seed=draws.seed + 1_000_000))

    class Best(FullModelDrafter):
        def begin(self, row: int, prompt: Sequence[int], draws: Draws | None = None) -> None:
            super().begin(row, prompt)

    def share(kind: type[FullModelDrafter]) -> float:
        drafter = kind(drafters["noisy"], vocabulary=VOCABULARY, most_tokens=4)
        rows = make_rows(16, sampling=Sampling(temperature=1.5), max_tokens=24)
        counts = run_rows(machine, rows, 16, drafter).counts
        return counts["draft_accepted"] / counts["draft_positions_tested"]

    shared, best, unlike = share(FullModelDrafter), share(Best), share(Unlike)
    assert shared > best + 0.1
    assert shared > unlike + 0.1


def test_rows_that_come_late_and_leave_early_change_nothing(
    machine: Machine, drafters: dict[str, Any], plain: dict[Sampling, list[list[int]]]
) -> None:
    """Rows join a running batch, one is discarded, and all begin again once."""
    rows = make_rows(ROWS)
    guesser = Guesser([(drafter_of(drafters["noisy"]), 4)], None, VOCABULARY)
    scheduler = Scheduler(machine, width=4, tally=Tally("decode"), guesser=guesser, shares_prefixes=False)
    scheduler.add(rows[:5])
    gone: Row | None = None
    for step in range(10_000):
        if step == 6:
            scheduler.restart()
        if step == 9:
            scheduler.add(rows[5:])
        if step >= 14 and gone is None:
            gone = next((row for row in rows if row.reason is None and row.tokens), None)
            scheduler.discard([gone] if gone else [])
        if scheduler.is_idle:
            break
        scheduler.step()

    expected = plain[GREEDY]
    assert gone is not None
    assert [row.tokens for row in rows if row is not gone] == [expected[row.item] for row in rows if row is not gone]
    assert guesser.counters()["draft_accepted"] > 0
    assert guesser.nbytes == 0


def test_a_row_that_went_on_without_it_is_caught_up_with(machine: Machine, drafters: dict[str, Any]) -> None:
    """Asked in a few steps only, far apart, it guesses as well as if it had been asked always."""

    class Seldom(FullModelDrafter):
        asked = 0

        def propose(self, limits: Mapping[int, int]) -> Mapping[int, Sequence[int]]:
            self.asked += 1
            return super().propose(limits) if self.asked % 90 in (1, 2) else {}

    rows = make_rows(3, max_tokens=400)
    drafter = Seldom(drafters["same"], vocabulary=VOCABULARY, most_tokens=4)
    result = run_rows(make_machine(machine.model, ends=()), rows, 3, drafter)

    assert result.counts["draft_accepted"] == result.counts["draft_proposed"] >= 3 * 4 * 8


def test_a_short_context_of_the_drafter_ends_its_guesses(machine: Machine, drafters: dict[str, Any]) -> None:
    rows = make_rows(4, max_tokens=40)
    free = run_rows(make_machine(machine.model, ends=()), rows, 4).tokens
    rows = make_rows(4, max_tokens=40)
    drafter = drafter_of(drafters["same"], context_length=50)
    result = run_rows(make_machine(machine.model, ends=()), rows, 4, drafter)

    assert result.tokens == free
    assert result.counts["draft_refused_rows"] == sum(len(row.so_far) > 52 for row in rows) > 0


def test_a_drafter_that_cannot_go_back_refuses_every_row(
    machine: Machine, plain: dict[Sampling, list[list[int]]]
) -> None:
    args = mamba2.ModelArgs(
        model_type="mamba2",
        num_heads=4,
        head_dim=16,
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        state_size=8,
        num_hidden_layers=2,
        layer_norm_epsilon=1e-5,
        conv_kernel=4,
        n_groups=1,
        use_bias=False,
        use_conv_bias=True,
        tie_word_embeddings=True,
        time_step_limit=(0.001, 0.1),
        time_step_rank=4,
    )
    result = run_rows(machine, make_rows(ROWS), 4, drafter_of(mamba2.Model(args)))

    assert result.tokens == plain[GREEDY]
    assert result.counts["draft_refused_rows"] == ROWS
    assert "draft_proposed" not in result.counts


class Failing:
    """A model that breaks at some of its calls."""

    def __init__(self, model: Any, breaks: Sequence[int]) -> None:
        self._model, self._breaks, self._calls = model, breaks, 0
        self.layers, self.args = model.layers, model.args

    def __call__(self, *args: Any, **options: Any) -> Any:
        self._calls += 1
        if self._calls in self._breaks:
            raise RuntimeError("out of memory")
        return self._model(*args, **options)


def test_a_failure_of_the_model_costs_guesses_of_the_rows_there(
    machine: Machine, drafters: dict[str, Any], plain: dict[Sampling, list[list[int]]]
) -> None:
    result = run_rows(machine, make_rows(ROWS), 2, drafter_of(Failing(drafters["same"], [9])))

    assert result.tokens == plain[GREEDY]
    assert result.counts["draft_failures"] == 1
    assert result.counts["draft_accepted"] == result.counts["draft_proposed"] > 0


def test_a_drafter_that_goes_on_failing_is_given_up(
    machine: Machine, drafters: dict[str, Any], plain: dict[Sampling, list[list[int]]]
) -> None:
    result = run_rows(machine, make_rows(ROWS), 1, drafter_of(Failing(drafters["same"], range(1000))))

    assert result.tokens == plain[GREEDY]
    assert result.counts["draft_failures"] == MOST_FAILURES
    assert result.counts["draft_given_up"] == 1
    assert result.guesser is not None
    assert result.guesser.failures == {"draft": "RuntimeError: out of memory"}


class Liar:
    """Says what it was made to say."""

    name = "draft"
    nbytes = 0
    reading_s = 0.0

    def __init__(self, says: Any) -> None:
        self._says = says

    def begin(self, row: int, prompt: Sequence[int], draws: Draws | None = None) -> None:
        pass

    def propose(self, limits: Mapping[int, int]) -> Mapping[int, Sequence[int]]:
        if isinstance(self._says, Exception):
            raise self._says
        return dict.fromkeys(limits, self._says)

    def advance(self, row: int, tokens: Sequence[int], *, proposed: int, accepted: int) -> None:
        if self._says == []:
            raise KeyError(row)

    def end(self, row: int) -> None:
        pass

    def counters(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("says", "proposed", "given_up"),
    [
        ([1, 2, 3], True, False),
        ([5] * 1000, True, False),
        ([-1, 3], False, False),
        ([4, VOCABULARY, 2], True, False),
        ([4, 10**12], True, False),
        ("text", False, False),
        ([1.5], False, False),
        (None, False, True),
        (RuntimeError("no"), False, True),
        ([], False, True),
    ],
    ids=["wrong", "too long", "negative", "beyond", "huge", "text", "no number", "none", "raises", "raises later"],
)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_liar_changes_nothing(
    machine: Machine,
    plain: dict[Sampling, list[list[int]]],
    sampling: Sampling,
    says: Any,
    proposed: bool,
    given_up: bool,
) -> None:
    liar: Proposer = Liar(says)
    result = run_rows(machine, make_rows(ROWS, sampling=sampling), 4, liar)

    assert result.tokens == plain[sampling]
    assert (result.counts.get("draft_proposed", 0) > 0) is proposed
    assert ("draft_given_up" in result.counts) is given_up


def test_reading_a_text_is_charged_to_the_rounds_that_follow() -> None:
    guesser = Guesser([(Liar([1]), 1)], None, VOCABULARY)
    charged = [guesser._charge(1.1, 1.0), *(guesser._charge(0.1, 0.0) for _ in range(200))]

    assert charged[0] == pytest.approx(0.1 + 1 / 16)
    assert charged == sorted(charged, reverse=True)
    assert sum(charged) == pytest.approx(201 * 0.1 + 1.0, rel=1e-4)


def test_noise_of_the_drafter_is_the_rows_own(machine: Machine, drafters: dict[str, Any]) -> None:
    """A row that is shed goes on at its own place in its noise."""
    sampling = Sampling(temperature=1.5)
    rows = make_rows(4, sampling=sampling, max_tokens=20)
    guesser = Guesser([(drafter_of(drafters["same"], end_tokens=frozenset()), 4)], None, VOCABULARY)
    scheduler = Scheduler(
        make_machine(machine.model, ends=()), width=4, tally=Tally("decode"), guesser=guesser, shares_prefixes=False
    )
    scheduler.add(rows)
    for _ in range(3):
        scheduler.step()
    scheduler._shed()
    while not scheduler.is_idle:
        scheduler.step()

    counters = guesser.counters()
    assert counters["draft_accepted"] == counters["draft_proposed"] > 0
    assert np.mean([len(row.tokens) for row in rows]) == 20
