"""From a checked request to prompt tokens, and from answer tokens to text. Knows nothing about batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from pipeline.errors import ContextLengthExceeded, InvalidValue
from workers.engines.requests import GenerationRequest


class Dialogue:
    """A model's tokenizer and chat template, with the model's limits."""

    def __init__(self, tokenizer: TokenizerWrapper, *, context_length: int | None) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length

    @property
    def has_template(self) -> bool:
        return bool(self._tokenizer.has_chat_template)

    @property
    def end_tokens(self) -> list[int]:
        """Tokens that end an answer."""
        return sorted(self._tokenizer.eos_token_ids)

    def encode(self, request: GenerationRequest) -> list[int]:
        """Prompt tokens, at least one.

        Raises:
            ContextLengthExceeded: prompt and answer together are over the model's context; says both counts.
            InvalidValue: no tokens, or the chat template refuses the messages.
        """
        if request.messages is not None:
            tokens = self._encode_messages(request.messages)
        else:
            tokens = self._encode_text(request.prompt or "")
        if not tokens:
            raise InvalidValue("the prompt has no tokens", param="prompt" if request.messages is None else "messages")
        if self._context_length is not None and len(tokens) + request.max_tokens > self._context_length:
            raise ContextLengthExceeded(
                f"the model's context is {self._context_length} tokens; this item asks for "
                f"{len(tokens) + request.max_tokens}: {len(tokens)} in the prompt and {request.max_tokens} for the answer",
                param="max_tokens" if len(tokens) < self._context_length else None,
            )
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of answer tokens, without the special ones; bytes that make no character become U+FFFD."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _encode_messages(self, messages: Sequence[dict[str, str]]) -> list[int]:
        try:
            tokenizer: Any = self._tokenizer  # has no types
            return list(tokenizer.apply_chat_template(list(messages), add_generation_prompt=True))
        except Exception as error:  # a template refuses by raising whatever Jinja raises
            raise InvalidValue(f"the chat template refuses the messages: {error}", param="messages") from error

    def _encode_text(self, text: str) -> list[int]:
        """As mlx-lm does: a text that starts with the beginning-of-sequence text does not get it twice."""
        start = self._tokenizer.bos_token
        special = start is None or not text.startswith(start)
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=special))
        except Exception as error:  # the Rust side raises plain exceptions, for a lone surrogate for one
            raise InvalidValue(f"the prompt cannot be tokenized: {error}", param="prompt") from error
