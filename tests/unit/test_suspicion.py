"""Law 5's reasoning alone: who is suspect, who is cleared, who is condemned."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.db.suspicion import CONDEMNING_DEATHS, CONDEMNING_ENDS, SUSPICIOUS_LOSSES, Suspicion

NONE: frozenset[int] = frozenset()


def items(*values: int) -> frozenset[int]:
    return frozenset(values)


def test_who_was_inside_is_suspect_and_who_was_not_is_not() -> None:
    after = Suspicion().feeding(items(1, 2, 3, 4)).after_death(items(2, 3))
    assert after == Suspicion(suspects=items(2, 3))


def test_one_death_alone_condemns_nobody_and_two_do() -> None:
    now = Suspicion(suspects=items(2, 3))
    for _ in range(CONDEMNING_DEATHS):
        assert now.condemned is None
        now = now.feeding(items(2)).after_death(items(2)).at_rest(NONE)
    assert now.condemned == 2


def test_a_suspect_that_does_no_harm_takes_its_deaths_with_it() -> None:
    now = Suspicion(suspects=items(2, 3)).feeding(items(2)).after_death(items(2))
    assert now.feeding(items(2)).after_clearing(2) == Suspicion(suspects=items(3), cleared=items(2))


def test_a_lost_lease_is_weaker_evidence() -> None:
    """Lids are closed, hosts restarted: it takes three ends where a loss is among them."""
    now = Suspicion(suspects=items(2)).feeding(items(2)).after_loss(3)
    now = now.at_rest(NONE).feeding(items(2)).after_death(items(2))
    assert now.condemned is None
    now = now.feeding(items(2)).after_loss(4)
    assert now.alone_deaths + now.alone_losses == CONDEMNING_ENDS
    assert now.condemned == 2


def test_a_first_lost_lease_makes_nobody_suspect() -> None:
    fed = Suspicion().feeding(items(1, 2))
    assert fed.after_loss(SUSPICIOUS_LOSSES - 1) == Suspicion()
    assert fed.after_loss(SUSPICIOUS_LOSSES) == Suspicion(suspects=items(1, 2))


def test_a_lease_lost_before_anything_was_fed_makes_nobody_suspect() -> None:
    assert Suspicion(suspects=items(4), alone_deaths=1).after_loss(9) == Suspicion(suspects=items(4), alone_deaths=1)


def test_what_was_answered_is_no_suspect_and_its_deaths_are_nobody_elses() -> None:
    now = Suspicion(suspects=items(2, 3), alone_deaths=1)
    assert now.at_rest(items(2)) == Suspicion(suspects=items(3))
    assert now.at_rest(items(3)) == Suspicion(suspects=items(2), alone_deaths=1)


@given(st.frozensets(st.integers(0, 30), min_size=1), st.data())
def test_trials_come_to_an_end_and_condemn_exactly_the_poison(everything: frozenset[int], data: st.DataObject) -> None:
    """A shard whose engine dies at the poison items, in company and alone; nobody else is condemned."""
    poison = data.draw(st.frozensets(st.sampled_from(sorted(everything))))
    now, answered, condemned = Suspicion(), NONE, NONE
    for _ in range(3 * len(everything) + 1):
        now = now.at_rest(answered)
        if now.condemned is not None:
            condemned |= {now.condemned}
            answered |= {now.condemned}
            now = now.at_rest(answered)
        company = everything - answered - now.suspects
        if company & poison:
            now = now.feeding(company).after_death(data.draw(st.just(company)))
            continue
        answered |= company
        if not now.suspects:
            break
        first = min(now.suspects)
        now = now.feeding(items(first))
        if first in poison:
            now = now.after_death(items(first))
        else:
            answered |= {first}
            now = now.after_clearing(first)
    assert answered == everything and condemned == poison
