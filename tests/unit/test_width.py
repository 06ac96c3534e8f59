"""The gauge of widths as what it is: a function of the steps that it was told."""

from __future__ import annotations

from workers.engines.batching.width import CLEARLY, LEAST_STEPS, NEWEST_STEPS, TRY_AGAIN, WidthGauge


def gauge(seconds: dict[int, float], steps: int = LEAST_STEPS) -> WidthGauge:
    found = WidthGauge()
    for _ in range(steps):
        for rows, each in seconds.items():
            found.see(rows, each)
    return found


def test_it_goes_as_wide_as_it_may_until_it_knows_better() -> None:
    assert WidthGauge().best(16) == 16
    assert gauge({16: 100.0, 4: 1.0}, steps=LEAST_STEPS - 1).best(16) == 16
    assert gauge({4: 1.0}).best(16) == 16


def test_fewer_rows_are_taken_where_they_are_clearly_faster() -> None:
    assert gauge({16: 16.0, 8: 4.0, 4: 3.0}).best(16) == 8
    assert gauge({16: 8.0, 8: 4.0}).best(16) == 16
    nearly = {16: 16.0, 8: 8.0 / (CLEARLY - 0.01)}
    assert gauge(nearly).best(16) == 16
    assert gauge(nearly | {8: 8.0 / (CLEARLY + 0.01)}).best(16) == 8


def test_it_never_answers_more_than_it_was_asked() -> None:
    seen = gauge({16: 1.0, 4: 4.0, 2: 0.1})
    assert seen.best(4) == 2
    assert seen.best(1) == 1


def test_one_slow_step_changes_nothing() -> None:
    seen = gauge({16: 1.0, 8: 1.0})
    seen.see(16, 1000.0)
    assert seen.best(16) == 16


def test_a_wider_batch_is_measured_again_after_a_while_and_what_is_old_is_forgotten() -> None:
    seen = gauge({16: 160.0, 8: 1.0})
    answers = [seen.best(16) for _ in range(TRY_AGAIN + 1)]
    assert set(answers[:TRY_AGAIN]) == {8} and answers[-1] == 16
    for _ in range(NEWEST_STEPS):
        assert seen.best(16) == 16 or len(seen._seconds[16]) >= LEAST_STEPS
        seen.see(16, 1.0)
    assert seen.best(16) == 16
