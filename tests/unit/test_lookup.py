"""Prompt lookup against a slow reference, its estimates, its pauses, and the counters of guessing."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.specs.generate import LookupOptions
from workers.engines.batching.lookup import LONGEST_PAUSE, MISSES, PAUSE, PromptLookup
from workers.engines.batching.seams import Proposer
from workers.engines.batching.speculation import SpeculationStats

few_tokens = st.lists(st.integers(0, 3), max_size=40)
options = st.builds(
    lambda low, more, most: LookupOptions(ngram_min=low, ngram_max=low + more, max_draft=most),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 8),
)


def reference(text: Sequence[int], asked: LookupOptions, limit: int) -> list[int]:
    """The longest n-gram that ends the text, its latest earlier place, and what follows, guesses being text too."""
    for n in range(asked.ngram_max, asked.ngram_min - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if list(text[start : start + n]) == list(text[-n:]):
                grown = list(text)
                for step in range(min(limit, asked.max_draft)):
                    grown.append(grown[start + n + step])
                return grown[len(text) :]
    return []


def rigid(asked: LookupOptions, prompt: Sequence[int]) -> PromptLookup:
    lookup = PromptLookup(asked, adaptive=False)
    lookup.begin(0, prompt)
    return lookup


@given(few_tokens, st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=12), options, st.data())
def test_guess_is_what_followed_the_latest_place_of_the_longest_ngram(
    prompt: list[int], said: list[list[int]], asked: LookupOptions, data: st.DataObject
) -> None:
    lookup = rigid(asked, prompt)
    text = list(prompt)
    for tokens in [[], *said]:
        if tokens:
            lookup.advance(0, tokens, proposed=0, accepted=0)
            text += tokens
        limit = data.draw(st.integers(0, 9))
        assert lookup.propose({0: limit}).get(0, []) == reference(text, asked, limit)


@given(few_tokens, st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 9))
def test_an_adaptive_guess_is_the_beginning_of_the_full_one_and_asking_changes_nothing(
    prompt: list[int], said: list[int], limit: int
) -> None:
    asked = LookupOptions(ngram_min=1)
    lookup = PromptLookup(asked)
    lookup.begin(0, prompt)
    for end, token in enumerate(said):
        guess = lookup.propose({0: limit}).get(0, [])
        full = reference([*prompt, *said[:end]], asked, limit)
        assert guess == full[: len(guess)]
        assert lookup.propose({0: limit}).get(0, []) == guess
        assert len(lookup.outlook({0: limit}).get(0, ())) in {0, len(full)}
        lookup.advance(0, [token], proposed=0, accepted=0)


@given(few_tokens, few_tokens)
def test_chances_fall_with_each_token_and_stay_chances(prompt: list[int], said: list[int]) -> None:
    lookup = rigid(LookupOptions(ngram_min=1), prompt)
    for token in said:
        lookup.advance(0, [token], proposed=0, accepted=0)
        chances = lookup.outlook({0: 7}).get(0, ())
        assert list(chances) == sorted(chances, reverse=True)
        assert all(0 < chance < 1 for chance in chances)


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_the_same_rows_get_the_same_guesses_every_time(seed: int) -> None:
    def run() -> list[dict[int, list[int]]]:
        dice = random.Random(seed)
        lookup = PromptLookup(LookupOptions(ngram_min=1))
        for row in range(3):
            lookup.begin(row, [dice.randrange(4) for _ in range(20)])
        guesses = []
        for _ in range(20):
            guesses.append(lookup.propose(dict.fromkeys(range(3), 5)))
            for row in range(3):
                lookup.advance(row, [dice.randrange(4)], proposed=len(guesses[-1].get(row, [])), accepted=0)
        return guesses

    assert run() == run()


def test_a_row_in_a_loop_is_guessed_to_go_on_in_it() -> None:
    lookup = rigid(LookupOptions(ngram_max=2, max_draft=7), [9, 1, 2, 3, 1, 2])
    assert lookup.propose({0: 7}) == {0: [3, 1, 2, 3, 1, 2, 3]}


def test_rows_know_nothing_of_each_other_and_end() -> None:
    lookup: Proposer = PromptLookup(LookupOptions(), adaptive=False)
    lookup.begin(0, [1, 2, 3, 4, 1, 2])
    lookup.begin(1, [5, 6, 7, 8])
    assert lookup.propose({0: 2, 1: 2}) == {0: [3, 4]}
    lookup.end(0)
    lookup.end(0)
    lookup.advance(1, [5, 6], proposed=0, accepted=0)
    assert lookup.propose({1: 2}) == {1: [7, 8]}


def test_guesses_that_come_true_are_trusted_and_those_that_fail_are_not() -> None:
    copied = list(range(100, 160))
    lookup = PromptLookup(LookupOptions())
    lookup.begin(0, [*copied, 1, 2, 100, 101])
    shy = len(lookup.propose({0: 7})[0])
    lookup.advance(0, copied[2:20], proposed=0, accepted=0)
    assert len(lookup.propose({0: 7})[0]) == 7 > shy
    before = lookup.outlook({0: 1})[0]
    for turn in range(12):
        lookup.advance(0, [1000 + turn, copied[5], copied[6]], proposed=0, accepted=0)
    assert lookup.outlook({0: 1}).get(0, (0.0,)) < before
    assert len(lookup.propose({0: 7}).get(0, [])) < 7


def fail(lookup: PromptLookup, times: int) -> None:
    """Rounds whose guesses are refused, each ending where the row was seen before."""
    for _ in range(times):
        lookup.advance(0, [77, 1, 2, 3], proposed=2, accepted=0)


def test_a_row_that_keeps_failing_pauses_longer_and_longer_and_a_hit_forgives() -> None:
    lookup = PromptLookup(LookupOptions())
    lookup.begin(0, [1, 2, 3, 4, 5, 1, 2, 3])
    pauses = []
    for _ in range(5):
        fail(lookup, MISSES)
        rounds = 0
        while not lookup.outlook({0: 2}):
            lookup.advance(0, [88 + rounds, 1, 2, 3], proposed=0, accepted=0)
            rounds += 1
        pauses.append(rounds)
    assert pauses == [PAUSE, 2 * PAUSE, 4 * PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert lookup.stats.paused_rounds == sum(pauses)
    lookup.advance(0, [4], proposed=2, accepted=1)
    fail(lookup, MISSES)
    assert not lookup.outlook({0: 2})
    for turn in range(PAUSE):
        lookup.advance(0, [300 + turn, 1, 2, 3], proposed=0, accepted=0)
    assert lookup.outlook({0: 2})


def test_a_pause_ends_when_what_would_have_been_guessed_comes_true() -> None:
    lookup = PromptLookup(LookupOptions())
    lookup.begin(0, [1, 2, 3, 4, 5, 1, 2, 3])
    fail(lookup, MISSES)
    for token in (77, 1):  # as the last time after 1, 2, 3
        assert not lookup.outlook({0: 2})
        lookup.advance(0, [token], proposed=0, accepted=0)
    assert lookup.outlook({0: 2})


def test_the_index_grows_in_step_with_the_text() -> None:
    dice = random.Random(1)

    def bytes_for(count: int) -> int:
        prompt = [dice.randrange(50_000) for _ in range(count)]
        tracemalloc.start()
        lookup = rigid(LookupOptions(), prompt)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        lookup.end(0)
        return held

    assert bytes_for(16_384) < 8 * bytes_for(4_096)  # linear is 4, and a dict grows in leaps; quadratic is 16


def test_counters_say_what_was_tested() -> None:
    stats = SpeculationStats()
    stats.add(1, 0, 0)
    stats.add(3, 4, 2)
    stats.add(5, 4, 4)
    stats.add(1, 2, 0)
    assert stats.as_counters("lookup") == {
        "lookup_rounds": 4,
        "lookup_drafted_rounds": 3,
        "lookup_paused_rounds": 0,
        "lookup_emitted": 10,
        "lookup_proposed": 10,
        "lookup_positions_tested": 8,
        "lookup_accepted": 6,
        "lookup_refused_rows": 0,
    }
    assert stats.position_acceptance == 6 / 8
    assert stats.mean_accepted == 2
    assert stats.tokens_per_forward == 2.5
    assert SpeculationStats().tokens_per_forward == SpeculationStats().position_acceptance == 0


@pytest.mark.parametrize(("emitted", "proposed", "accepted"), [(1, 0, 1), (1, 3, 2), (2, 1, -1)])
def test_impossible_counts_are_refused(emitted: int, proposed: int, accepted: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        SpeculationStats().add(emitted, proposed, accepted)
