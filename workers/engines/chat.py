"""From a checked request to prompt tokens, and from answer tokens to text. Knows nothing about batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools

from pipeline.errors import InvalidValue, UnsupportedParameter
from pipeline.ports import JsonObject
from workers.engines.call_grammars import call_grammar
from workers.engines.overflow import Overflow, fit_prompt
from workers.engines.requests import GenerationRequest
from workers.engines.structured import GrammarRule, Grammars, Thought
from workers.engines.tool_calls import parse_calls
from workers.engines.turns import FINAL_CHANNEL, Markers, Turn, has_channels
from workers.engines.vocabulary import Vocabulary


class Dialogue:
    """A model's tokenizer and chat template, with the model's limits."""

    def __init__(self, tokenizer: TokenizerWrapper, *, context_length: int | None) -> None:
        self._tokenizer: Any = tokenizer  # has no types
        self.context_length = context_length
        self.vocabulary = Vocabulary(tokenizer)
        self.grammars = Grammars(self.vocabulary)

    @property
    def has_template(self) -> bool:
        return bool(self._tokenizer.has_chat_template)

    @property
    def has_thinking(self) -> bool:
        """Whether the model marks what it thinks before it answers."""
        return self._plain_markers.has_reasoning

    @property
    def has_tools(self) -> bool:
        return bool(self._tokenizer.has_tool_calling)

    @property
    def end_tokens(self) -> list[int]:
        """Tokens that end an answer."""
        return sorted(self._tokenizer.eos_token_ids)

    def encode(self, request: GenerationRequest, overflow: Overflow = "error") -> list[int]:
        """Prompt tokens, at least one; what they lost to the context is :meth:`read` less this."""
        return self.fit(self.read(request), request, overflow)

    def read(self, request: GenerationRequest) -> list[int]:
        """Prompt tokens, however many, at least one.

        Raises:
            InvalidValue: no tokens, or the chat template refuses the messages.
            UnsupportedParameter: tools, and the model knows none.
        """
        if request.tools and not self.has_tools:
            raise UnsupportedParameter("this model's tokenizer knows no tool calls", param="tools")
        if request.messages is not None:
            tokens = self._encode_messages(request.messages, request.tools)
        else:
            tokens = self._encode_text(request.prompt or "")
        if not tokens:
            raise InvalidValue("the prompt has no tokens", param="prompt" if request.messages is None else "messages")
        return tokens

    def fit(self, prompt: list[int], request: GenerationRequest, overflow: Overflow) -> list[int]:
        """See :func:`workers.engines.overflow.fit_prompt`."""
        return fit_prompt(prompt, request.max_tokens, self.context_length, overflow)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of answer tokens, without the special ones; bytes that make no character become U+FFFD.

        Raises:
            ItemError: ``decode_failed``.
        """
        return self.vocabulary.decode(tokens, special=False)

    # --- what a chat model marks in its answers ----------------------------------------------------------------------

    @cached_property
    def _plain_markers(self) -> Markers:
        return Markers(self._tokenizer, self.vocabulary, tools=False)

    @cached_property
    def _tool_markers(self) -> Markers:
        return Markers(self._tokenizer, self.vocabulary, tools=True)

    def turn(self, request: GenerationRequest, prompt: Sequence[int]) -> Turn | None:
        """What tells an answer's parts apart; None where an answer has one part only."""
        markers = self._tool_markers if request.tools else self._plain_markers
        if request.messages is None or markers.is_plain:
            return None
        return Turn(markers, thinking=self._opens_thought(prompt))

    def thought(self, prompt: Sequence[int]) -> Thought | None:
        """The reasoning that may come before an answer; None where the model has none.

        Raises:
            UnsupportedParameter: where the answer proper begins cannot be said in tokens.
        """
        if not self.has_thinking:
            return None
        if has_channels(self._tokenizer):
            header = self._tokenizer.encode(FINAL_CHANNEL, add_special_tokens=False)
            return Thought(tuple(header[:1]), tuple(header), is_open=False)
        if not self._tokenizer.has_thinking:
            message = "this model's answers have headers that no grammar here knows"
            raise UnsupportedParameter(message, param="response_format")
        start, end = self._tokenizer.think_start_tokens, self._tokenizer.think_end_tokens
        return Thought(tuple(start), tuple(end), is_open=self._opens_thought(prompt))

    def _opens_thought(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt ends in a reasoning block that has only just begun.

        Nothing but white space may follow the marker: a message that speaks of the marker opens nothing.
        """
        if not self._tokenizer.has_thinking:
            return False
        place = self._tokenizer.rfind_think_start(list(prompt))
        behind = place + len(self._tokenizer.think_start_tokens)
        return place >= 0 and not self.vocabulary.decode(prompt[behind:], special=True).strip()

    def parse_calls(self, text: str, tools: Sequence[JsonObject]) -> list[JsonObject] | None:
        """See :func:`workers.engines.tool_calls.parse_calls`."""
        return parse_calls(text, self._tokenizer.tool_parser, tools)

    def call_rule(self, request: GenerationRequest, prompt: Sequence[int]) -> GrammarRule:
        """The rule of a row that must call one of the request's tools.

        Raises:
            UnsupportedParameter: there is no grammar for the way this model writes its calls.
            InvalidValue: a tool's parameters cannot be followed.
        """
        if self._tokenizer.tool_parser is not json_tools.parse_tool_call:
            raise UnsupportedParameter("this model's tokenizer can be made to call no tool", param="tool_choice")
        functions = [tool["function"] for tool in request.tools if tool["function"]["name"] in request.must_call]
        start, end = map(self.vocabulary.terminal, (self._tokenizer.tool_call_start, self._tokenizer.tool_call_end))
        grammar = call_grammar(functions, start, end, parallel=request.parallel_tool_calls)
        return self.grammars.lark_rule(grammar, self.thought(prompt), "tools")

    def mark_call(self, text: str, *, closed: bool) -> str:
        """``text`` between the tool markers it stood in."""
        return f"{self._tokenizer.tool_call_start}{text}{self._tokenizer.tool_call_end if closed else ''}"

    # --- texts to tokens ---------------------------------------------------------------------------------------------

    def _encode_messages(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> list[int]:
        options = {"tools": list(tools)} if tools else {}
        try:
            return list(self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, **options))
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
