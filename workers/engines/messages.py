"""A finished row as an assistant's message: what is said, what was thought, which tools are called, and why it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipeline.ports import JsonObject
from workers.engines.batching.rows import Row
from workers.engines.chat import Dialogue
from workers.engines.logprobs import offsets
from workers.engines.requests import GenerationRequest
from workers.engines.stopping import cut_at_stop
from workers.engines.tool_calls import openai_call
from workers.engines.turns import Turn


@dataclass(slots=True)
class Message:
    """One choice in words.

    Attributes:
        text_tokens: how many of the row's tokens are its text: no end token, nothing behind a stop text.
        unparsed: texts between tool markers that are no calls; they stay in the content.
        dropped: calls after the first where only one was allowed.
    """

    content: str
    reason: Literal["stop", "length", "tool_calls"]
    text_tokens: int
    reasoning: str = ""
    calls: list[JsonObject] = field(default_factory=list)
    reasoning_tokens: int = 0
    unparsed: int = 0
    dropped: int = 0

    def body(self) -> JsonObject:
        """OpenAI's ``message``; ``reasoning_content`` and ``tool_calls`` stand in it where there are any."""
        body: JsonObject = {"role": "assistant", "content": self.content}
        if self.reasoning:
            body["reasoning_content"] = self.reasoning
        if self.calls:
            body["content"] = self.content or None
            body["tool_calls"] = self.calls
        return body


def read_message(row: Row, request: GenerationRequest, dialogue: Dialogue, seed: int) -> Message:
    """The message of a finished row.

    Args:
        seed: the item's own; ids of calls follow from it.

    Raises:
        ItemError: ``decode_failed``.
    """
    if row.reason is None:
        raise ValueError("the row is not finished")
    tokens = row.tokens[:-1] if row.ended else row.tokens
    turn = dialogue.turn(request, row.prompt)
    if turn is None:
        text = dialogue.decode(tokens)
        message = Message(text, row.reason, len(tokens))
    else:
        for token in tokens:
            turn.add(token)
        turn.finish()
        message = _read_turn(turn, Message("", row.reason, len(tokens)), request, dialogue, seed, row.choice)
    kept = cut_at_stop(message.content, request.stop)
    if len(kept) < len(message.content):
        message.content, message.reason = kept, "stop"
        if turn is None:
            message.text_tokens = sum(place < len(kept) for place in offsets(tokens, dialogue.decode))
    if message.calls and message.reason == "stop":
        message.reason = "tool_calls"
    return message


def _read_turn(
    turn: Turn, message: Message, request: GenerationRequest, dialogue: Dialogue, seed: int, choice: int
) -> Message:
    calls: list[JsonObject] = []
    for segment in turn.segments:
        if segment.state != "tool":
            continue
        parsed = dialogue.parse_calls(segment.text, request.tools)
        if parsed is None:
            message.unparsed += 1
            segment.state = "normal"
            segment.text = dialogue.mark_call(segment.text, closed=segment.closed)
        else:
            calls += parsed
    if calls and not request.parallel_tool_calls:
        message.dropped = len(calls) - 1
        calls = calls[:1]
    message.calls = [openai_call(call, seed, choice, place) for place, call in enumerate(calls)]
    message.reasoning = turn.reasoning.strip()
    message.reasoning_tokens = turn.reasoning_tokens
    message.content = turn.content.rstrip() if calls else turn.content
    return message
