"""An answer's tokens told apart: what was thought, what is said, and what calls a tool.

Markers are looked for in the text and not among the tokens, because a tokenizer may join the end of a marker with what
follows it. Knows nothing about requests; finds its markers in the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlx_lm.generate import TextStateMachine
from mlx_lm.tokenizer_utils import TokenizerWrapper

from workers.engines.stopping import GrowingText
from workers.engines.vocabulary import Vocabulary

#: ``normal`` is content; a tokenizer may bring states of its own, whose text is nobody's (a channel's header).
State = Literal["normal", "reasoning", "tool"] | str

Transitions = dict[str, list[tuple[str, str]]]

#: What stands before the answer proper of a model that writes in channels.
FINAL_CHANNEL = "<|channel|>final<|message|>"

_MACHINE: Any = TextStateMachine  # has no types


@dataclass(slots=True)
class Segment:
    """A stretch of one state; ``closed`` once its end marker came."""

    state: State
    text: str
    closed: bool = False


class Markers:
    """The markers of one tokenizer, as a machine over text."""

    def __init__(self, tokenizer: TokenizerWrapper, vocabulary: Vocabulary, *, tools: bool) -> None:
        self._vocabulary = vocabulary
        own: Any = tokenizer  # has no types
        transitions = read_transitions(tokenizer, tools=tools)
        self.machine = _MACHINE(transitions)
        self.initial: State = own.response_initial_state or "normal"
        self.is_plain = not transitions
        self.has_reasoning = "reasoning" in transitions
        texts = [text for edges in transitions.values() for text, _ in edges]
        special = {token: str(added) for token, added in own.added_tokens_decoder.items() if added.special}
        #: Special tokens that are no part of a marker: no text, except inside a tool call, whose parser reads them.
        self.silent = frozenset(token for token, name in special.items() if not any(name in text for text in texts))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text with its special tokens; raises ItemError ``decode_failed``."""
        return self._vocabulary.decode(tokens, special=True)


def has_channels(tokenizer: TokenizerWrapper) -> bool:
    """Whether the model writes in channels, as gpt-oss does; mlx-lm knows no markers of those."""
    return not tokenizer.has_thinking and {"<|start|>", "<|channel|>", "<|message|>"} <= tokenizer.get_vocab().keys()


def read_transitions(tokenizer: TokenizerWrapper, *, tools: bool) -> Transitions:
    """From which state a text leads to which other; without ``tools`` a call is content like any other."""
    edges: Transitions = {}

    def lead(source: State, marker: str, target: State) -> None:
        edges.setdefault(source, []).append((marker, target))

    own: Transitions = tokenizer.response_transitions
    if has_channels(tokenizer):
        lead("normal", "<|channel|>analysis<|message|>", "reasoning")
        lead("reasoning", "<|end|>", "normal")
        for header in ("<|channel|>commentary<|message|>", FINAL_CHANNEL, "<|start|>assistant", "<|end|>"):
            lead("normal", header, "normal")
    if tokenizer.has_thinking:
        lead("normal", tokenizer.think_start, "reasoning")
        lead("reasoning", tokenizer.think_end, "normal")
    if tools and tokenizer.has_tool_calling:
        if not any(target == "tool" for others in own.values() for _, target in others):
            lead("normal", tokenizer.tool_call_start, "tool")
        if tokenizer.has_thinking:
            lead("reasoning", tokenizer.tool_call_start, "tool")
        if tokenizer.tool_call_end:
            lead("tool", tokenizer.tool_call_end, "normal")
    for marker in tokenizer.structural_markers:
        lead("normal", marker, "normal")
    for source, others in own.items():
        for marker, target in others:
            if tools or target != "tool":
                lead(source, marker, target)
    return edges


class Turn:
    """Grows token by token into segments."""

    def __init__(self, markers: Markers, *, thinking: bool) -> None:
        """``thinking``: the prompt has opened a reasoning block."""
        self._markers = markers
        self._initial = "reasoning" if thinking else markers.initial
        self.restart()

    def restart(self) -> None:
        """Begin again, with no text."""
        self._state: Any = self._markers.machine.make_state(self._initial)
        self._growing = GrowingText(self._markers.decode)
        self.segments = [Segment(self._initial, "")]
        self.reasoning_tokens = 0

    def add(self, token: int) -> None:
        before = self.segments[-1].state
        if token not in self._markers.silent or before == "tool":
            self._take(self._growing.add(token))
        if "reasoning" in (before, self.segments[-1].state):
            self.reasoning_tokens += 1

    def finish(self) -> None:
        """No more tokens come: what was held back as the beginning of a marker is text."""
        self._take(self._growing.rest())
        self._state, held_back, _ = _MACHINE.flush(self._state)
        self.segments[-1].text += held_back

    @property
    def reasoning(self) -> str:
        """What was thought."""
        return "".join(segment.text for segment in self.segments if segment.state == "reasoning")

    @property
    def content(self) -> str:
        """What is said. White space that follows reasoning belongs to its marker."""
        said = "".join(segment.text for segment in self.segments if segment.state == "normal")
        return said if self.segments[0].state == "normal" and len(self.segments) == 1 else said.lstrip()

    def _take(self, text: str) -> None:
        if not text:
            return
        self._state, parts = _MACHINE.split(self._state, text)
        for place, (state, part) in enumerate(parts):
            if place == 0:
                self.segments[-1].text += part
            else:
                self.segments[-1].closed = True
                self.segments.append(Segment(state, part))


class TurnScanner:
    """Says when a turn is over before its end token: a stop text in the content, or one call where one is allowed."""

    def __init__(self, turn: Turn, stops: Sequence[str], *, one_call: bool) -> None:
        self._turn = turn
        self._stops = stops
        self._one_call = one_call
        self._longest = max(map(len, stops), default=0)
        self.restart()

    def restart(self) -> None:
        """Begin again, with no text."""
        self._turn.restart()
        self._seen = 0

    def add(self, token: int) -> bool:
        """Append a token; true once the turn is over."""
        self._turn.add(token)
        if self._one_call and any(part.state == "tool" and part.closed for part in self._turn.segments):
            return True
        if not self._stops:
            return False
        content = self._turn.content
        tail = content[max(0, self._seen - self._longest + 1) :]
        self._seen = len(content)
        return any(stop in tail for stop in self._stops)
