"""From texts to token rows that a model takes: special tokens, prompts, and what happens to a text that is too long.

A *passage* is a piece of an item's text that becomes one vector. Long texts are cut at word starts where there is
one, and a passage is tokenized by itself: its vector is that of its text alone, so equal passages have equal vectors
wherever they stand. Knows nothing about models or batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from pipeline.errors import ContextLengthExceeded, InvalidValue, ItemError, JobError, ModelUnsupported
from pipeline.specs import Overflow


@dataclass(frozen=True, slots=True)
class Passage:
    """One row for the model, and where in the text it comes from.

    Attributes:
        ids: token ids with prompt and special tokens.
        start: first character of the text that was read.
        end: one past the last character that was read.
        truncated: the text went on, and no other passage holds the rest.
        text_hash: sha256 (hex, of UTF-8) of the passage's text; of the whole text where it was truncated.
    """

    ids: tuple[int, ...]
    start: int
    end: int
    truncated: bool
    text_hash: str


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read `tokenizer.json` without the truncation and padding baked into it; raises ModelUnsupported."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ModelUnsupported(f"{folder} has no tokenizer.json", hint="save the tokenizer in its fast form")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class PassageCutter:
    """Cuts texts into passages under one policy."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        overflow: Overflow,
        overlap: int = 0,
        prompt: str = "",
    ) -> None:
        """``max_length`` and ``overlap`` are tokens, the former with special tokens.

        Raises JobError when the prompt or the overlap leaves no room for text.
        """
        self.max_length = max_length
        self._tokenizer = tokenizer
        self._overflow = overflow
        self._overlap = overlap
        self._prompt = prompt
        self._prefix, self._suffix = _special_ids(tokenizer)
        self._room = max_length - len(self._prefix) - len(self._suffix)
        window = self._room - len(self._encode(prompt).ids)
        if window < 1:
            raise JobError(f"the prompt leaves no room for text in {max_length} tokens")
        if overflow is Overflow.CHUNK and overlap >= window:
            raise JobError(
                f"chunk_overlap is {overlap} tokens, a passage holds {window}",
                hint=f"use a chunk_overlap under {window}",
            )
        self._window = window

    def cut(self, texts: Sequence[str]) -> list[list[Passage] | ItemError]:
        """The passages of each text, at least one; or why it has none."""
        results: list[list[Passage] | ItemError] = []
        readable = [_is_encodable(text) for text in texts]
        whole = iter(
            self._tokenizer.encode_batch(
                [self._prompt + text for text, is_readable in zip(texts, readable, strict=True) if is_readable],
                add_special_tokens=False,
            )
        )
        for text, is_readable in zip(texts, readable, strict=True):
            if not is_readable:
                results.append(InvalidValue("the text holds a lone surrogate and is not Unicode text", param="input"))
                continue
            encoding = next(whole)
            if len(encoding.ids) <= self._room:
                results.append([self._passage(encoding.ids, text, 0, len(text))])
            elif self._overflow is Overflow.TRUNCATE:
                results.append([self._truncated(encoding, text)])
            elif self._overflow is Overflow.CHUNK:
                results.append(self._chunks(text))
            else:
                results.append(self._too_long(len(encoding.ids)))
        return results

    def _encode(self, text: str) -> Encoding:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _passage(self, ids: Sequence[int], text: str, start: int, end: int, *, truncated: bool = False) -> Passage:
        content = text if truncated else text[start:end]
        row = (*self._prefix, *ids, *self._suffix)
        return Passage(row, start, end, truncated, hashlib.sha256(content.encode()).hexdigest())

    def _truncated(self, encoding: Encoding, text: str) -> Passage:
        end = max(0, encoding.offsets[self._room - 1][1] - len(self._prompt))
        return self._passage(encoding.ids[: self._room], text, 0, end, truncated=True)

    def _too_long(self, tokens: int) -> ContextLengthExceeded:
        count = tokens + len(self._prefix) + len(self._suffix)
        return ContextLengthExceeded(f"the text has {count} tokens, the model takes {self.max_length}", param="input")

    def _chunks(self, text: str) -> list[Passage] | ItemError:
        encoding = self._encode(text)
        count = len(encoding.ids)
        passages: list[Passage] = []
        first = 0
        while first < count:
            last = min(first + self._window, count)
            if last < count:
                last = _word_start_before(encoding.word_ids, last, floor=first + self._window // 2)
            while True:
                start, end = encoding.offsets[first][0], encoding.offsets[last - 1][1]
                ids = self._encode(self._prompt + text[start:end]).ids
                excess = len(ids) - self._room
                if excess <= 0:
                    break
                if last == first + 1:
                    return self._too_long(len(ids))
                # A cut inside a word can be tokenized into more pieces than it had as a part of the word.
                last = max(first + 1, last - excess)
            passages.append(self._passage(ids, text, start, end))
            if last == count:
                break
            following = _word_start_after(encoding.word_ids, last - self._overlap, ceiling=last)
            first = following if following > first else last
        return passages


def _special_ids(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer's template puts before and after a single text."""
    encoding = tokenizer.encode("a")
    mask = encoding.special_tokens_mask
    body = [place for place, is_special in enumerate(mask) if not is_special]
    if not body:
        raise ModelUnsupported("the tokenizer makes nothing of the letter a")
    return tuple(encoding.ids[: body[0]]), tuple(encoding.ids[body[-1] + 1 :])


def _word_start_before(words: Sequence[int | None], place: int, *, floor: int) -> int:
    """The nearest word start at or before ``place`` and above ``floor``; ``place`` itself where there is none."""
    for candidate in range(place, floor, -1):
        if words[candidate] != words[candidate - 1]:
            return candidate
    return place


def _word_start_after(words: Sequence[int | None], place: int, *, ceiling: int) -> int:
    """The nearest word start at or after ``place``, at most ``ceiling``."""
    for candidate in range(max(place, 1), ceiling):
        if words[candidate] != words[candidate - 1]:
            return candidate
    return ceiling


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
