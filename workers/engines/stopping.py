"""Text as it grows from tokens, and where a stop text ends it. Pure: knows nothing about models or batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Decode = Callable[[Sequence[int]], str]

#: What a decoder puts where bytes do not make a character yet.
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Scanner(Protocol):
    """Watches one answer for what ends it before its end token."""

    def add(self, token: int) -> bool:
        """Append a token; true once the answer is over."""
        ...

    def restart(self) -> None:
        """Begin again, with no text."""
        ...


class GrowingText:
    """Decodes token by token, at a cost that does not grow with the text.

    Only a window since the last settled character is decoded. The token before the window's new ones is decoded with
    them, because some tokenizers write a token differently at the start of a text.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._settled = 0
        self.text = ""

    def add(self, token: int) -> str:
        """Append a token; returns the text that became certain, "" while a character is incomplete."""
        self._window.append(token)
        before = self._decode(self._window[: self._settled])
        after = self._decode(self._window)
        if after.endswith(_INCOMPLETE) or len(after) <= len(before):
            return ""
        new = after[len(before) :]
        self._window = self._window[self._settled :]
        self._settled = len(self._window)
        self.text += new
        return new

    def rest(self) -> str:
        """Text of the tokens that make no whole character yet."""
        return self._decode(self._window)[len(self._decode(self._window[: self._settled])) :]


class StopScanner:
    """Looks for stop texts in a growing text, across token boundaries."""

    def __init__(self, stops: Sequence[str], decode: Decode) -> None:
        """``stops`` must not be empty, nor any of them."""
        self._stops = stops
        self._longest = max(map(len, stops))
        self._decode = decode
        self.restart()

    def restart(self) -> None:
        """Begin again, with no text."""
        self._growing = GrowingText(self._decode)

    def add(self, token: int) -> bool:
        """Append a token; true once a stop text stands in the text."""
        new = self._growing.add(token)
        if not new:
            return False
        tail = self._growing.text[-(len(new) + self._longest - 1) :]
        return any(stop in tail for stop in self._stops)

    def cut(self, text: str) -> str:
        """``text`` up to its earliest stop text."""
        return cut_at_stop(text, self._stops)


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """``text`` up to the earliest of ``stops``; all of it where none occurs."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text
