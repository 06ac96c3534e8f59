"""The governor in replays of recorded runs, and its parts: costs, trials, the record of decisions."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.replays import GB10, M4_PRO, WIDTHS, WORKLOADS, measured_costs, published_costs, traced_rows
from workers.engines.batching.costs import StepCosts
from workers.engines.batching.decisions import KEPT, DecisionLog
from workers.engines.batching.governor import Decision, Governor, Observation, Situation
from workers.engines.batching.replay import Drafter, Fixed, StepSeconds, StepTable, TracedRow, replay

#: What `auto` must reach of the best fixed choice.
BAR = 0.98

SURE = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)


def line(slope: float, plain_s: float = 0.03) -> StepSeconds:
    """A step that costs ``slope`` of a plain one for each further column, at any width."""
    return lambda width, columns, context: plain_s * (1.0 + slope * (columns - 1))


def drive(governor: Governor, situation: Situation, costs: StepSeconds, hits: Iterator[int], steps: int) -> Outcomes:
    """Steps in one situation; of each guess the next count in ``hits`` is accepted."""
    done = Outcomes()
    for _ in range(steps):
        decision = governor.decide(situation)
        guessed = decision.columns - 1
        rows = len(situation.outlook) or situation.width
        outcomes = [(guessed, min(guessed, next(hits))) for _ in range(rows)] if guessed else []
        forward_s = costs(situation.width, decision.columns, situation.context)
        governor.record(
            Observation(
                decision.mechanism, situation.width, decision.columns, situation.context, forward_s, outcomes=outcomes
            )
        )
        done.add(decision, forward_s, situation.width + sum(accepted for _, accepted in outcomes))
    return done


class Outcomes:
    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.seconds = 0.0
        self.tokens = 0

    def add(self, decision: Decision, seconds: float, tokens: int) -> None:
        self.decisions.append(decision)
        self.seconds += seconds
        self.tokens += tokens

    def mechanisms(self, since: int = 0) -> Counter[str]:
        return Counter(decision.mechanism for decision in self.decisions[since:])


def always(hits: int) -> Iterator[int]:
    while True:
        yield hits


def by_chance(chance: float) -> Iterator[int]:
    dice = random.Random(5)
    while True:
        count = 0
        while count < 8 and dice.random() < chance:
            count += 1
        yield count


@pytest.mark.parametrize(
    "costs",
    [measured_costs(), published_costs(GB10), published_costs(M4_PRO)],
    ids=["measured on a CPU", "GB10", "M4 Pro"],
)
def test_auto_reaches_the_best_fixed_choice(costs: StepSeconds) -> None:
    reached = {}
    for workload in WORKLOADS:
        rows = traced_rows(workload, times=4)
        for width in WIDTHS:
            fixed = [
                replay(rows, Fixed("plain"), costs, width=width),
                replay(rows, Fixed("lookup", 8), costs, width=width, adaptive=True),
                replay(rows, Fixed("lookup", 8), costs, width=width),
            ]
            auto = replay(rows, Governor(), costs, width=width)
            reached[workload, width] = auto.tokens_per_s / max(outcome.tokens_per_s for outcome in fixed)
    assert {key: round(share, 3) for key, share in reached.items() if share < BAR} == {}


def drafted_rows(chance: float, count: int = 48) -> list[TracedRow]:
    dice = random.Random(3)
    return [
        TracedRow([1, 2, 3], list(range(1000 * row, 1000 * row + 80)), 80, [dice.random() < chance for _ in range(80)])
        for row in range(count)
    ]


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("chance", [0.9, 0.7, 0.2])
def test_auto_reaches_the_best_fixed_width_of_a_drafter(chance: float, width: int) -> None:
    rows, drafter = drafted_rows(chance), Drafter(limit=5, token_s=0.004)
    fixed = [
        replay(rows, Fixed("draft" if columns > 1 else "plain", columns), line(0.15), width=width, drafter=drafter)
        for columns in range(1, 7)
    ]
    auto = replay(rows, Governor(), line(0.15), width=width, drafter=drafter)
    assert auto.tokens_per_s >= BAR * max(outcome.tokens_per_s for outcome in fixed)


def test_the_same_run_is_decided_in_the_same_way() -> None:
    rows = traced_rows("chat")
    records = []
    for _ in range(2):
        governor = Governor()
        replay(rows, governor, measured_costs(), width=4)
        records.append(json.dumps(governor.as_json()))
    assert records[0] == records[1]


@given(
    st.integers(1, 40),
    st.integers(1, 5000),
    st.lists(st.lists(st.floats(0.0, 1.0), max_size=7), max_size=5),
    st.integers(0, 6),
    st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=12),
)
def test_whatever_it_sees_it_asks_for_no_more_than_there_is(
    width: int, context: int, chances: list[list[float]], limit: int, seconds: Sequence[float]
) -> None:
    outlook = [sorted(row, reverse=True) for row in chances[:width]]
    governor = Governor()
    most = {"plain": 1, "lookup": 1 + max(map(len, outlook), default=0), "draft": 1 + limit}
    for took in seconds:
        decision = governor.decide(Situation(width, context, outlook, limit))
        assert (decision.columns > 1) == (decision.mechanism != "plain")
        assert decision.columns <= most[decision.mechanism]
        governor.record(Observation(decision.mechanism, width, decision.columns, context, took))
    json.dumps(governor.as_json())


@pytest.mark.parametrize("mechanism", ["lookup", "draft"])
@pytest.mark.parametrize("slope", [0.3, 1.0, 3.0])
def test_guesses_that_promise_much_and_hold_nothing_cost_two_percent_at_most(mechanism: str, slope: float) -> None:
    situation = Situation(4, 300, [SURE] * 4) if mechanism == "lookup" else Situation(4, 300, draft_limit=5)
    done = drive(Governor(), situation, line(slope), always(0), 1000)
    assert done.seconds * BAR <= 1000 * 0.03


def test_what_became_cheap_is_found_and_what_became_dear_is_left() -> None:
    governor = Governor()
    situation = Situation(1, 300, [(0.4, 0.16, 0.06)])
    dear = drive(governor, situation, line(0.5), by_chance(0.4), 300)
    assert dear.mechanisms(100)["plain"] > 180
    cheap = drive(governor, situation, line(0.15), by_chance(0.4), 1500)
    assert cheap.mechanisms(1000)["lookup"] > 450
    dear = drive(governor, situation, line(2.0), by_chance(0.4), 300)
    assert dear.mechanisms(50)["plain"] > 230


def test_what_pays_at_one_row_may_not_pay_at_sixteen() -> None:
    """A device that computes as much as it can at 16 rows."""
    governor = Governor()

    def costs(width: int, columns: int, context: int) -> float:
        return 0.03 * max(1.0, width * columns / 16)

    wide = drive(governor, Situation(16, 300, [SURE] * 8), costs, by_chance(0.9), 300)
    thin = drive(governor, Situation(1, 300, [SURE]), costs, by_chance(0.9), 100)
    wide_again = drive(governor, Situation(16, 300, [SURE] * 8), costs, by_chance(0.9), 100)
    assert wide.mechanisms(50)["plain"] > 240
    assert thin.mechanisms(10)["lookup"] > 80
    assert wide_again.mechanisms()["plain"] > 95


def test_the_last_rows_wait_for_their_slowest() -> None:
    """One of four rows can guess: worth it while others wait for its place, and not once nobody does."""
    outlook = [SURE]
    governor = Governor()
    busy = drive(governor, Situation(4, 300, outlook), line(0.1), by_chance(0.9), 200)
    assert busy.mechanisms(50)["lookup"] > 140
    last = Situation(4, 300, outlook, is_last=True)
    assert drive(governor, last, line(0.3), by_chance(0.9), 200).mechanisms(100)["plain"] > 95


def test_costs_of_a_probe_spare_the_trials() -> None:
    governor = Governor()
    for columns in range(1, 9):
        for _ in range(3):
            governor.measured(width=1, columns=columns, context=300, forward_s=0.03 * (1 + 0.05 * (columns - 1)))
    assert governor.decide(Situation(1, 300, [SURE])) == Decision("lookup", 8)


def test_decisions_are_on_record_with_their_reasons() -> None:
    governor = Governor()
    drive(governor, Situation(1, 300, [SURE]), line(0.05), by_chance(0.9), 100)
    drive(governor, Situation(1, 300), line(0.05), always(0), 100)
    record = governor.as_json()
    assert record["changes"] == {"lookup to plain": 1, "plain to lookup": 1}
    first, second = record["decisions"]
    assert (first["from"], first["to"], first["width"], first["context"]) == ("plain", "lookup", 1, 300)
    assert "plain steps" in first["why"]
    assert second["to"] == "plain" and second["step"] >= 100
    assert sum(record["steps"].values()) == 200
    assert record["costs"][0]["width"] == 1
    assert record["costs"][0]["plain_s"] == 0.03


def test_the_record_stays_small() -> None:
    log = DecisionLog()
    for step in range(10 * KEPT):
        log.note(step, 1, 100, "plain", "lookup", "because")
    assert len(log.as_json()["decisions"]) == KEPT
    assert log.as_json()["changes"] == {"plain to lookup": 10 * KEPT}


def learned(*steps: tuple[int, int, int, float]) -> StepCosts:
    costs = StepCosts()
    for width, columns, context, seconds in steps:
        costs.add(1, width=width, columns=columns, context=context, seconds=seconds)
    return costs


def test_costs_between_measured_columns_lie_on_a_line_and_farther_ones_are_no_cheaper() -> None:
    costs = learned((1, 1, 100, 0.1), (1, 3, 100, 0.2))
    assert costs.estimate(1, width=1, columns=2, context=100).ratio == pytest.approx(1.5)
    assert costs.estimate(1, width=1, columns=5, context=100).ratio == pytest.approx(3.0)


def test_an_unknown_width_borrows_from_the_likest() -> None:
    costs = learned((1, 1, 100, 0.1), (1, 3, 100, 0.11), (16, 1, 100, 0.2), (16, 3, 100, 0.6))
    assert costs.estimate(1, width=14, columns=3, context=100).ratio == pytest.approx(3.0)
    assert costs.estimate(1, width=1, columns=3, context=4000).ratio == pytest.approx(1.1)


def test_one_outlier_is_no_cost_and_the_first_step_of_a_shape_may_be_a_warm_up() -> None:
    costs = learned((1, 1, 100, 0.1), (1, 2, 100, 5.0), (1, 2, 100, 0.12))
    assert costs.estimate(1, width=1, columns=2, context=100).ratio == pytest.approx(1.2)
    for seconds in (0.12, 0.13, 0.9):
        costs.add(1, width=1, columns=2, context=100, seconds=seconds)
    assert costs.estimate(1, width=1, columns=2, context=100).ratio == pytest.approx(1.3)


def test_doubt_falls_with_measurements_and_grows_with_age() -> None:
    costs = learned((1, 1, 100, 0.1))
    doubts = [costs.estimate(1, width=1, columns=2, context=100).doubt]
    for _ in range(3):
        costs.add(1, width=1, columns=2, context=100, seconds=0.12)
        doubts.append(costs.estimate(1, width=1, columns=2, context=100).doubt)
    assert doubts == sorted(doubts, reverse=True) and doubts[-1] == 0
    assert costs.estimate(1000, width=1, columns=2, context=100).doubt > 0


def test_a_table_of_steps_is_linear_between_its_points_and_flat_outside() -> None:
    table = StepTable([(1, 1, 100, 1.0), (1, 3, 100, 2.0), (5, 1, 100, 2.0), (5, 3, 100, 6.0)])
    assert table(1, 2, 100) == 1.5
    assert table(3, 2, 100) == 2.75
    assert table(9, 4, 999) == 6.0


def test_a_replay_counts_what_really_would_have_been_said() -> None:
    """A row that repeats its prompt: the first token is said plainly, two steps of guesses say the rest."""
    text = list(range(50, 60))
    row = TracedRow([*text, 1, 2], [1, 2, *text], max_tokens=12)
    outcome = replay([row], Fixed("lookup", 8), line(0.0), width=1)
    plain = replay([row], Fixed("plain"), line(0.0), width=1)
    assert (plain.tokens, plain.steps) == (12, 12)
    assert outcome.tokens == 12 and outcome.steps < 9
    assert replay([TracedRow([1], [], max_tokens=4), row], Fixed("plain"), line(0.0), width=2).tokens == 12
