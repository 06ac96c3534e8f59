"""One answer in the making: one choice of one item. Knows nothing about the batch it is decoded in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from workers.engines.batching.seams import Draws, LogitsRule
from workers.engines.requests import Sampling
from workers.engines.stopping import Scanner

FinishReason = Literal["stop", "length"]


class TokenLogprob(NamedTuple):
    """Log probability (natural) of a chosen token before temperature, and of the likeliest tokens, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True, eq=False)
class Row:
    """Tokens of one choice; times are seconds of CLOCK_MONOTONIC, 0 until they happen.

    Attributes:
        item: index of the item in its shard.
        choice: which of the item's ``n`` answers.
        rule: what the request does to the logits; None leaves them as the model gives them.
        top_logprobs: how many of the likeliest tokens to note beside the chosen one; None notes nothing.
        tokens: answer tokens so far, the end token included.
        reason: why it is finished, None while it is not.
        ended: the last token is an end token, which counts but is not text.
        cached_tokens: prompt tokens whose keys and values came from a shared prefix.
        accepted: tokens that were guessed ahead, by ``guessed_by``.
        admitted_at: when its prompt began to be read; its time to first token counts from here.
    """

    item: int
    choice: int
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    seed: int
    rule: LogitsRule | None = None
    scanner: Scanner | None = None
    top_logprobs: int | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason | None = None
    ended: bool = False
    cached_tokens: int = 0
    accepted: int = 0
    guessed_by: str | None = None
    admitted_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def most_tokens(self) -> int:
        """Most tokens this row can cost."""
        return len(self.prompt) + self.max_tokens

    @property
    def so_far(self) -> list[int]:
        """Prompt and answer."""
        return [*self.prompt, *self.tokens]

    @property
    def draws(self) -> Draws | None:
        """How its next token is drawn; None where the best is taken."""
        if self.sampling.is_greedy:
            return None
        return Draws(self.sampling, self.seed, self.choice, len(self.tokens))

    @property
    def helped_by(self) -> str | None:
        """The mechanism that this row owes tokens to; None for one that was read and decoded in full."""
        if self.accepted:
            return self.guessed_by
        return "prefix_cache" if self.cached_tokens else None

    def restart(self) -> None:
        """Forget the answer."""
        self.tokens.clear()
        self.logprobs.clear()
        self.reason, self.ended, self.accepted, self.guessed_by = None, False, 0, None
        if self.scanner is not None:
            self.scanner.restart()

    def add(self, token: int, now: float, *, is_end: bool) -> bool:
        """Append a token; true when that finishes the row."""
        self.tokens.append(token)
        self.last_at = now
        if len(self.tokens) == 1:
            self.first_at = now
        if is_end:
            self.ended, self.reason = True, "stop"
        elif self.scanner is not None and self.scanner.add(token):
            self.reason = "stop"
        elif len(self.tokens) >= self.max_tokens:
            self.reason = "length"
        return self.reason is not None
