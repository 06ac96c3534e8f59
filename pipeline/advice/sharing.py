"""What prompts have in common and how far a text repeats itself: arithmetic over token ids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pipeline.advice.facts import SharedPrefixes, Spread

Tokens = Sequence[int]

#: A shorter common beginning is cheaper to read again than to keep.
LEAST_SHARED = 16


def spread(values: Sequence[int]) -> Spread:
    """Of at least one value; by nearest rank."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return Spread(ordered[0], ordered[last // 2], ordered[-(-last * 95 // 100)], ordered[last])


def shared_prefixes(prompts: Sequence[Tokens]) -> SharedPrefixes:
    """Of prompts in any order; the last token of a prompt always has to be read."""
    ordered = sorted(list(prompt[:-1]) for prompt in prompts)
    common = [_common(one, two) for one, two in itertools.pairwise(ordered)]
    counted = [length if length >= LEAST_SHARED else 0 for length in common]
    kept = sum(max(0, length - before) for before, length in zip([0, *counted], counted, strict=False))
    whole = _common(ordered[0], ordered[-1]) if len(ordered) > 1 else 0
    return SharedPrefixes(sum(map(len, prompts)), sum(counted), kept, whole)


def repeated_share(tokens: Tokens, run: int = 3) -> float:
    """Share of runs of so many tokens that stood earlier in the same text."""
    runs = [tuple(tokens[place : place + run]) for place in range(len(tokens) - run + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def lookup_forwards(prompt: Tokens, answer: Tokens, *, ngram_min: int, ngram_max: int, max_draft: int) -> int:
    """Forwards that an answer takes when each first guesses what followed the same last tokens before.

    The longest run that was seen decides, at its newest place; a forward gives the guesses that come true and one
    token more. Always guesses all it may: a worker that pauses on misses takes a little longer.
    """
    text, at = [*prompt], 0
    index: dict[tuple[int, ...], int] = {}
    known = 0
    forwards = 0
    while at < len(answer):
        known = _learn(index, text, known, ngram_min, ngram_max)
        guess = _guess(index, text, ngram_min, ngram_max, min(max_draft, len(answer) - at - 1))
        right = 0
        while right < len(guess) and guess[right] == answer[at + right]:
            right += 1
        text.extend(answer[at : at + right + 1])
        at += right + 1
        forwards += 1
    return forwards


def _learn(index: dict[tuple[int, ...], int], text: list[int], known: int, shortest: int, longest: int) -> int:
    """Note the place behind every run that has a token behind it; returns up to where."""
    for end in range(max(known, shortest), len(text)):
        for run in range(shortest, min(longest, end) + 1):
            index[tuple(text[end - run : end])] = end
    return len(text)


def _guess(index: dict[tuple[int, ...], int], text: list[int], shortest: int, longest: int, most: int) -> list[int]:
    for run in range(min(longest, len(text)), shortest - 1, -1):
        place = index.get(tuple(text[-run:]))
        if place is not None:
            return text[place : place + most]
    return []


def _common(one: Tokens, two: Tokens) -> int:
    """Tokens that both begin with."""
    length = 0
    for left, right in zip(one, two, strict=False):
        if left != right:
            break
        length += 1
    return length
