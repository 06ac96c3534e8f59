"""Stop texts in a text that grows from tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engines.stopping import GrowingText, StopScanner, cut_at_stop


def decode_bytes(tokens: Sequence[int]) -> str:
    """One token per byte, as byte-level tokenizers do for what they have no word for."""
    return bytes(tokens).decode("utf-8", errors="replace")


def feed(scanner: StopScanner, text: str) -> int | None:
    """How many bytes went in before the scanner stopped."""
    for place, byte in enumerate(text.encode(), start=1):
        if scanner.add(byte):
            return place
    return None


@pytest.mark.parametrize(
    ("text", "stops", "after"),
    [
        ("one two three", ["two"], 7),
        ("one two three", ["three", "ne"], 3),
        ("one two three", ["four"], None),
        ("aaab", ["aab"], 4),
        ("no end.\n\n", ["\n\n"], 9),
        ("naïve café", ["é"], 12),
        ("emoji 🦊 here", ["🦊"], 10),
        ("x", ["x"], 1),
    ],
)
def test_scanner_stops_with_the_token_that_completes_a_stop(text: str, stops: list[str], after: int | None) -> None:
    assert feed(StopScanner(stops, decode_bytes), text) == after


@given(text=st.text(max_size=40), stops=st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=4))
def test_scanner_stops_if_and_only_if_the_text_holds_a_stop(text: str, stops: list[str]) -> None:
    # A character that says "incomplete" itself is held back until the next one; the final cut sees it.
    if "\N{REPLACEMENT CHARACTER}" in text:
        return
    assert (feed(StopScanner(stops, decode_bytes), text) is not None) == any(stop in text for stop in stops)


@given(text=st.text(max_size=60))
def test_growing_text_is_the_whole_text_without_an_unfinished_end(text: str) -> None:
    growing = GrowingText(decode_bytes)
    parts = [growing.add(byte) for byte in text.encode()]
    assert "".join(parts) == growing.text
    assert text.startswith(growing.text)
    if not text.endswith("\N{REPLACEMENT CHARACTER}"):
        assert growing.text == text


def test_growing_text_decodes_a_bounded_window() -> None:
    longest = 0

    def decode(tokens: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return decode_bytes(tokens)

    growing = GrowingText(decode)
    for byte in ("héllo wörld " * 50).encode():
        growing.add(byte)
    assert longest <= 4


def test_growing_text_keeps_the_blank_that_a_decoder_strips_at_the_start() -> None:
    words = ["▁Hello", "▁world", "▁again"]

    def decode(tokens: Sequence[int]) -> str:
        return "".join(words[token] for token in tokens).replace("▁", " ").removeprefix(" ")

    growing = GrowingText(decode)
    assert [growing.add(token) for token in range(3)] == ["Hello", " world", " again"]


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("abc", ["c", "b"], "a"),
        ("abc", ["bc", "b"], "a"),
        ("abc", ["d"], "abc"),
        ("abc", [], "abc"),
        ("abc", ["a"], ""),
    ],
)
def test_cut_keeps_what_stands_before_the_earliest_stop(text: str, stops: list[str], kept: str) -> None:
    assert cut_at_stop(text, stops) == kept
