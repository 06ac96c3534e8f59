"""The lanes of a model that guesses: how far it has read each row's text, and how it catches up.

Knows nothing about how guesses are chosen or judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx

from workers.engines.batching.lanes import CannotBatch, Lanes
from workers.engines.batching.seams import Draws

#: Prompt tokens, padding included, that one forward reads.
PREFILL_TOKENS = 512

#: Most prompts that are read together, and how long the shortest must be beside the longest.
PREFILL_ROWS, PREFILL_LIKENESS = 8, 0.75

#: Columns of a forward that only catches up with rows; a row that lacks fewer than this catches up while it writes.
CATCH_UP_COLUMNS, WRITE_COLUMNS = 64, 8


class Text:
    """What a row read and said, the pending token included, and how much of it its lane holds.

    Attributes:
        draws: how the row draws the token behind what it had when it began; None takes the best.
        drafted: guesses that the lane holds behind the text.
    """

    __slots__ = ("_start", "drafted", "draws", "read", "tokens")

    def __init__(self, tokens: Sequence[int], draws: Draws | None) -> None:
        self.tokens = list(tokens)
        self.draws = draws
        self._start = len(self.tokens)
        self.read = 0
        self.drafted: list[int] = []

    def draws_at(self, ahead: int) -> Draws | None:
        """How the row would draw the token behind ``ahead`` guesses."""
        if self.draws is None:
            return None
        return self.draws._replace(position=self.draws.position + len(self.tokens) - self._start + ahead)

    def grow(self, tokens: Sequence[int]) -> None:
        """The row said these; guesses that came true stay read."""
        for guess, token in zip(self.drafted, tokens, strict=False):
            if guess != token:
                break
            self.read += 1
        self.drafted = []
        self.tokens += tokens
        self.read = min(self.read, len(self.tokens) - 1)


class DraftLanes:
    """One lane for each row that was guessed for, in the order of ``_rows``.

    Args:
        most_tokens: most tokens that are guessed at once.
        counts: ``forwards`` and ``tokens_read`` are added to.
    """

    def __init__(self, model: Any, most_tokens: int, counts: Counter[str]) -> None:
        self._model = model
        self._lanes = Lanes(model, spare=CATCH_UP_COLUMNS + most_tokens)
        self._rows: list[int] = []
        self._counts = counts

    @property
    def nbytes(self) -> int:
        return self._lanes.nbytes

    @property
    def arrays(self) -> list[mx.array]:
        return self._lanes.arrays

    def lane(self, row: int) -> int:
        return self._rows.index(row)

    def drop(self, row: int) -> None:
        """A row that is gone; the last lane takes its place."""
        if row not in self._rows:
            return
        lane = self.lane(row)
        self._lanes.drop(lane)
        self._rows[lane] = self._rows[-1]
        self._rows.pop()

    def catch_up(self, asked: Mapping[int, Text], texts: Mapping[int, Text]) -> None:
        """Bring the asked rows so far that their rest fits into one narrow forward; ``texts`` are of all rows."""
        self._open({row: text for row, text in asked.items() if row not in self._rows})
        reads = [texts[row].read for row in self._rows]
        self._lanes.advance([read - length for read, length in zip(reads, self._lanes.lengths, strict=True)])
        while True:
            rest = {row: text.tokens[text.read : -1] for row, text in asked.items()}
            if max(map(len, rest.values())) < WRITE_COLUMNS:
                return
            pieces = {row: tokens[:CATCH_UP_COLUMNS] for row, tokens in rest.items()}
            self.forward(pieces)
            mx.eval(self.arrays)
            for row, piece in pieces.items():
                asked[row].read += len(piece)

    def forward(self, pieces: Mapping[int, Sequence[int]]) -> mx.array:
        """Read a piece of each row; (lanes, V) logits behind it. Rows without one stay where they are."""
        inputs = [pieces.get(row, ()) for row in self._rows]
        counts = [len(tokens) for tokens in inputs]
        self._count(counts)
        logits = self._lanes.forward(inputs)
        self._lanes.advance(counts)
        return logits[mx.arange(len(inputs)), mx.array([max(0, count - 1) for count in counts])]

    def _open(self, asked: Mapping[int, Text]) -> None:
        """Read the texts of rows that have no lane, but for their last tokens. Equal texts are read once."""
        waiting: dict[tuple[int, ...], list[int]] = {}
        for row, text in asked.items():
            waiting.setdefault(tuple(text.tokens[:-1]), []).append(row)
        for group in _alike(sorted(waiting, key=len, reverse=True)):
            lanes = self._read(group)
            for lane, tokens in enumerate(group):
                for row in waiting[tokens]:
                    self._lanes.adopt(lanes, lane)
                    self._rows.append(row)
                    asked[row].read = len(tokens)
            mx.eval(self.arrays)

    def _read(self, group: Sequence[Sequence[int]]) -> Lanes:
        lanes = Lanes(self._model)
        lanes.open(len(group))
        step = max(1, PREFILL_TOKENS // len(group))
        for start in range(0, len(group[0]), step):
            pieces = [tokens[start : start + step] for tokens in group]
            lanes.forward(pieces)
            mx.eval(lanes.arrays)
            lanes.advance([len(tokens) for tokens in pieces])
            self._count([len(tokens) for tokens in pieces])
        return lanes

    def _count(self, tokens: Sequence[int]) -> None:
        self._counts["forwards"] += 1
        self._counts["tokens_read"] += sum(tokens)


def can_rewind(model: Any) -> bool:
    """Whether the model's caches can take a guess back."""
    try:
        return Lanes(model).can_rewind
    except CannotBatch:
        return False


def _alike(texts: Sequence[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Groups of texts that are read together; the longest come first."""
    group: list[tuple[int, ...]] = []
    for text in texts:
        if group and (len(group) == PREFILL_ROWS or len(text) < PREFILL_LIKENESS * len(group[0])):
            yield group
            group = []
        group.append(text)
    if group:
        yield group
