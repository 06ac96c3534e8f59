"""A model's tokens as texts and bytes, read once per model. Knows nothing about requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from llguidance import LLTokenizer
from llguidance.hf import from_tokenizer
from mlx_lm.tokenizer_utils import TokenizerWrapper

from pipeline.errors import ItemError


class Vocabulary:
    """What answers, grammars and log probabilities need of a tokenizer."""

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        self._tokenizer: Any = tokenizer  # has no types

    @cached_property
    def size(self) -> int:
        """One more than the highest token id."""
        return int(max(self._tokenizer.get_vocab().values())) + 1

    @cached_property
    def end_tokens(self) -> list[int]:
        """Tokens that end an answer, those that exist."""
        return [token for token in sorted(self._tokenizer.eos_token_ids) if 0 <= token < self.size]

    @cached_property
    def compiled(self) -> LLTokenizer | None:
        """llguidance's form of it: 0.3 s for 50,000 tokens. None for a tokenizer whose tokens it cannot read."""
        try:
            # The wrapper hides the tokenizer that the library looks for, and no public name gives it back.
            inner = self._tokenizer._tokenizer
            return from_tokenizer(inner, n_vocab=self.size, eos_token=self.end_tokens or None)
        except Exception:  # noqa: BLE001 - slow tokenizers and the Rust side raise many kinds
            return None

    def decode(self, tokens: Sequence[int], *, special: bool) -> str:
        """Text, with or without its special tokens; bytes that make no character become U+FFFD.

        Raises:
            ItemError: ``decode_failed``.
        """
        try:
            return str(
                self._tokenizer.decode(
                    list(tokens), skip_special_tokens=not special, clean_up_tokenization_spaces=False
                )
            )
        except Exception as error:  # tokenizers raise plain exceptions
            raise ItemError(f"the answer cannot be decoded: {error}", code="decode_failed") from error

    def terminal(self, text: str) -> str:
        """``text`` as a terminal of a grammar; a token of its own is named by its number."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        if len(tokens) == 1 and self.compiled is not None and self.compiled.is_special_token(tokens[0]):
            return f"<[{tokens[0]}]>"
        return json.dumps(text)

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to a text; a part of a character where a character takes several tokens."""
        if self.compiled is not None and token < self.compiled.vocab_size:
            return self.compiled.decode_bytes([token])
        return str(self._tokenizer.decode([token])).encode("utf-8", "replace")
