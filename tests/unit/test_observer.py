"""Stale is what stood still for the observer's own seconds, and nothing else."""

from __future__ import annotations

from pipeline.jobs.leases import Observer


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def watch(observer: Observer, clock: Clock, seconds: float, mark: tuple[int, int]) -> bool:
    """Look once a second; the last verdict."""
    stale = False
    for _ in range(int(seconds)):
        clock.now += 1.0
        observer.tick()
        stale = observer.is_stale("shard", mark)
    return stale


def test_counter_that_stands_still_becomes_stale() -> None:
    clock = Clock()
    observer = Observer(10.0, clock=clock)
    assert not watch(observer, clock, 10, (1, 0))
    assert watch(observer, clock, 2, (1, 0))


def test_counter_that_moves_stays_fresh() -> None:
    clock = Clock()
    observer = Observer(10.0, clock=clock)
    assert not watch(observer, clock, 9, (1, 0))
    assert not watch(observer, clock, 9, (1, 1))
    assert not watch(observer, clock, 9, (2, 1))


def test_gap_in_the_observers_own_ticks_starts_the_count_again() -> None:
    """A lid that was closed for an hour says nothing about who renewed in that hour."""
    clock = Clock()
    observer = Observer(10.0, clock=clock)
    watch(observer, clock, 9, (1, 0))
    clock.now += 3600.0
    assert not watch(observer, clock, 9, (1, 0))
    assert watch(observer, clock, 3, (1, 0))


def test_forgotten_keys_are_counted_anew() -> None:
    clock = Clock()
    observer = Observer(10.0, clock=clock)
    watch(observer, clock, 9, (1, 0))
    observer.forget_except([])
    assert not watch(observer, clock, 9, (1, 0))
