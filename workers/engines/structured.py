"""Answers that follow a grammar, of a JSON schema mostly: it says at each place which tokens may come. Built on llguidance.

A grammar is compiled once per model; each row has a matcher of its own. Knows nothing about requests or batches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from pipeline.errors import InvalidValue, ItemError, UnsupportedParameter
from pipeline.ports import JsonObject
from workers.engines.batching.seams import Logits
from workers.engines.history import History
from workers.engines.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # exists for type checkers only

#: Compiled grammars that are kept; a job has one or a few.
_KEPT = 64

#: Keywords that cannot be enforced are refused, whatever the schema says of itself. White space between JSON's tokens
#: is a blank, or a new line with its indentation: a model that begins to repeat it would fill its whole limit with it.
COMPILE: JsonCompileOptions = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_pattern": r" |\n {0,32}|\n\t{1,8}",
}

_SCHEMA_PARAM = "response_format.json_schema.schema"


@dataclass(frozen=True, slots=True)
class Thought:
    """Tokens that begin and end a reasoning block, and whether the prompt has begun one.

    Inside a block everything but the end of the answer is allowed; the grammar holds from its end on.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    is_open: bool

    def place_of_answer(self, tokens: Sequence[int]) -> int | None:
        """How many tokens the reasoning takes; None while it goes on."""
        if not self.is_open and (not tokens or tokens[0] != self.start[0]):
            return 0
        place = 0
        while True:
            try:
                place = tokens.index(self.end[0], place)
            except ValueError:
                return None
            if tuple(tokens[place : place + len(self.end)]) == self.end:
                return place + len(self.end)
            place += 1


class Grammars:
    """The compiled grammars of one model."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def json_rule(self, schema: JsonObject | None, thought: Thought | None) -> GrammarRule:
        """A new row's rule; ``schema`` None allows any JSON object.

        Raises:
            InvalidValue: the schema is no schema, cannot be fulfilled, or holds what cannot be enforced.
            UnsupportedParameter: the model's tokenizer cannot be read.
        """
        whole = {"type": "object"} if schema is None else schema
        grammar = LLMatcher.grammar_from_json_schema(whole, overrides=COMPILE)
        return self._rule(grammar, thought, _SCHEMA_PARAM)

    def lark_rule(self, grammar: str, thought: Thought | None, param: str) -> GrammarRule:
        """The same for a grammar in Lark's words; ``param`` is where it comes from."""
        return self._rule(LLMatcher.grammar_from_lark(grammar), thought, param)

    def _rule(self, grammar: str, thought: Thought | None, param: str) -> GrammarRule:
        matcher = self._compiled.get(grammar) or self._compile(grammar, param)
        self._compiled[grammar] = matcher
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > _KEPT:
            self._compiled.popitem(last=False)
        return GrammarRule(matcher.deep_copy(), self._vocabulary, thought)

    def _compile(self, grammar: str, param: str) -> LLMatcher:
        if self._vocabulary.compiled is None:
            message = "no grammar can be made for this model's tokenizer"
            raise UnsupportedParameter(message, param=param.split(".")[0])
        matcher = LLMatcher(self._vocabulary.compiled, grammar, log_level=0)
        if matcher.is_error():
            raise InvalidValue(f"the schema cannot be followed: {_first_line(matcher.get_error())}", param=param)
        return matcher


class GrammarRule:
    """Excludes what the grammar does not allow. End tokens are allowed exactly where the text is complete."""

    stretch = 1.0

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, thought: Thought | None) -> None:
        self._matcher = matcher
        self._vocabulary_size = vocabulary.size
        self._end_tokens = vocabulary.end_tokens
        self._thought = thought
        self._history = History()
        #: Tokens the matcher has read: fewer than the history's where that left the grammar.
        self._read = 0

    def apply(self, logits: Logits, tokens: Sequence[int]) -> Logits:
        """Raises ItemError ``grammar_failed``, where the grammar is too large to go on, where no token can, and after a
        continuation that the grammar does not allow: no such guess is ever taken, so nobody asks what follows it.
        """
        begin = 0 if self._thought is None else self._thought.place_of_answer(tokens)
        if begin is None:
            changed = logits.copy()
            changed[self._end_tokens] = -np.inf
            return changed
        if not self._follow(tokens[begin:]):
            raise _failed("it does not allow what it allowed before")
        allowed = self._allowed(len(logits))
        if self._thought is not None and not self._thought.is_open and not tokens:
            allowed[self._thought.start[0]] = True
        return np.where(allowed, logits, np.float32(-np.inf))

    def _follow(self, tokens: Sequence[int]) -> bool:
        _, added = self._history.follow(tokens)
        kept = len(tokens) - len(added)
        if self._read > kept:
            self._matcher.rollback(self._read - kept)
            self._read = kept
        if self._read == kept and added:
            self._read += self._matcher.try_consume_tokens(added)
        self._check()
        return self._read == len(tokens)

    def _allowed(self, vocabulary: int) -> npt.NDArray[np.bool_]:
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        bits = np.unpackbits(packed, bitorder="little")
        allowed = np.zeros(vocabulary, dtype=np.bool_)
        allowed[: len(bits)] = bits[:vocabulary]
        allowed[self._end_tokens] = False
        if np.count_nonzero(allowed) == 1 and not self._matcher.validate_tokens([int(allowed.argmax())]):
            self._spell_out(allowed)
        allowed[self._end_tokens] = self._matcher.is_accepting()
        if not allowed.any():
            raise _failed("no token of the model can go on")
        return allowed

    def _spell_out(self, allowed: npt.NDArray[np.bool_]) -> None:
        """Where only one text can come and that reads like a special token, the library allows that token and then
        refuses it: what really can come is asked for token by token.
        """
        for token in range(min(self._vocabulary_size, len(allowed))):
            allowed[token] = self._matcher.validate_tokens([token]) == 1

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _failed(self._matcher.get_error())


def _failed(reason: str) -> ItemError:
    return ItemError(f"the grammar gave up: {_first_line(reason)}", code="grammar_failed")


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[0]
