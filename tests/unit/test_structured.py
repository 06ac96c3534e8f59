"""Answers under a grammar: whatever the logits say, what comes out parses and fits its schema.

The model is played by random logits, which no model is worse than.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from mlx_lm.utils import load_tokenizer
from pydantic import BaseModel, ConfigDict, Field

from pipeline.errors import ItemError
from tests.fixtures.dialogues import MARKERS, OPENING_TEMPLATE, TOOL_TEMPLATE, ask, write_dialogue
from workers.engines.batching.rows import Row
from workers.engines.chat import Dialogue

#: Indentation may be 32 characters wide wherever it may be, and random logits use that.
CONTEXT = 3000


class Colour(Enum):
    RED = "red"
    GREEN = "grün"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)
    name: Annotated[str, Field(max_length=6)]
    share: Annotated[int, Field(ge=0, le=100)]


class Thing(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)
    colour: Colour
    parts: Annotated[list[Part], Field(min_length=1, max_length=2)]
    note: Annotated[str, Field(max_length=4)] | None
    whole: bool


SCHEMA = {"type": "json_schema", "json_schema": {"name": "thing", "schema": Thing.model_json_schema(), "strict": True}}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dialogue, Any]:
    return write_dialogue(tmp_path_factory.mktemp("structured") / "tiny", None, context_length=CONTEXT)


def play(row: Row, dialogue: Dialogue, *, random: np.random.Generator, limit: int | None = None) -> None:
    """Decode with random logits until the row is finished."""
    vocabulary = dialogue.vocabulary.size + 3  # models pad their output beyond the tokenizer
    while row.reason is None and (limit is None or len(row.tokens) < limit):
        assert row.rule is not None
        logits = row.rule.apply(random.normal(0, 3, vocabulary).astype(np.float32), row.tokens)
        token = int(logits.argmax())
        row.add(token, 1.0, is_end=token in dialogue.end_tokens)


def content_of(reply: Any, dialogue: Dialogue) -> list[str]:
    answer = reply.answer(dialogue, "chat", "m", report_cache=False)
    return [choice["message"]["content"] for choice in answer.body["choices"]]


@pytest.mark.parametrize("seed", range(8))
def test_random_logits_give_an_answer_that_fits(tiny: tuple[Dialogue, Any], seed: int) -> None:
    dialogue, _ = tiny
    reply = ask(dialogue, response_format=SCHEMA, max_tokens=1500, n=2)
    for row in reply.rows:
        play(row, dialogue, random=np.random.default_rng([seed, row.choice]))
        assert row.reason == "stop"
    contents = content_of(reply, dialogue)
    for text in contents:
        Thing.model_validate_json(text)
    assert contents[0] != contents[1]


def test_smollm2s_tokenizer_gives_an_answer_that_fits(smollm2_path: Path) -> None:
    load: Any = load_tokenizer
    dialogue = Dialogue(load(smollm2_path), context_length=8192)
    for seed in range(4):
        reply = ask(dialogue, response_format=SCHEMA, max_tokens=400)
        play(reply.rows[0], dialogue, random=np.random.default_rng(seed))
        assert reply.rows[0].reason == "stop"
        Thing.model_validate_json(content_of(reply, dialogue)[0])


def test_any_object_is_an_object_until_it_is_cut(tiny: tuple[Dialogue, Any]) -> None:
    dialogue, _ = tiny
    ends = set()
    for seed in range(12):
        reply = ask(dialogue, response_format={"type": "json_object"}, max_tokens=12)
        play(reply.rows[0], dialogue, random=np.random.default_rng(seed))
        (text,) = content_of(reply, dialogue)
        ends.add(reply.rows[0].reason)
        if reply.rows[0].reason == "stop":
            assert type(json.loads(text)) is dict
        else:
            assert text.startswith("{")
    assert "length" in ends


def test_end_token_is_allowed_exactly_where_the_json_is_complete(tiny: tuple[Dialogue, Any]) -> None:
    dialogue, tokenizer = tiny
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1, 12]}}}
    rule = ask(dialogue, response_format=schema).rows[0].rule
    assert rule is not None

    def allowed(text: str) -> str:
        logits = rule.apply(np.zeros(dialogue.vocabulary.size, np.float32), tokenizer.encode(text))
        return "".join(sorted(tokenizer.decode([token]) for token in np.flatnonzero(np.isfinite(logits))))

    assert [allowed(""), allowed("1"), allowed("12"), allowed("1")] == ["1", "2<|end|>", "<|end|>", "2<|end|>"]


def test_rule_is_a_function_of_its_arguments_whatever_was_guessed_before(tiny: tuple[Dialogue, Any]) -> None:
    dialogue, _ = tiny
    random = np.random.default_rng(3)
    row = ask(dialogue, response_format=SCHEMA).rows[0]
    play(row, dialogue, random=random)
    used, logits = row.rule, np.zeros(dialogue.vocabulary.size, np.float32)
    assert used is not None
    refused = 0
    for _ in range(60):
        kept = int(random.integers(0, len(row.tokens) + 1))
        guess = random.integers(0, dialogue.vocabulary.size, int(random.integers(0, 4))).tolist()
        tokens = row.tokens[:kept] + guess
        fresh = ask(dialogue, response_format=SCHEMA).rows[0].rule
        assert fresh is not None
        try:
            expected = fresh.apply(logits, tokens)
        except ItemError as error:
            refused += 1
            with pytest.raises(ItemError, match=re.escape(str(error))):
                used.apply(logits, tokens)
        else:
            np.testing.assert_array_equal(used.apply(logits, tokens), expected)
    assert not logits.any()
    assert 0 < refused < 60


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "thing"},
        {"not": {"type": "string"}},
        {"type": "array", "uniqueItems": True},
        {"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True},
        {"$ref": "https://example.com/schema"},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "integer", "minimum": 5, "maximum": 3},
    ],
)
def test_schema_that_cannot_be_followed_is_an_error_of_the_item(tiny: tuple[Dialogue, Any], schema: Any) -> None:
    with pytest.raises(ItemError) as caught:
        ask(tiny[0], response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
    assert (caught.value.item_code, caught.value.param) == ("invalid_value", "response_format.json_schema.schema")


@pytest.mark.parametrize("text", ["<think>", "a</think>b", "<tool_call>"])
def test_text_that_reads_like_a_marker_can_be_forced(tmp_path: Path, text: str) -> None:
    dialogue, _ = write_dialogue(tmp_path / "marked", TOOL_TEMPLATE, MARKERS)
    schema = {
        "type": "object",
        "properties": {text: {"const": text}},
        "required": [text],
        "additionalProperties": False,
    }
    row = ask(dialogue).rows[0]
    row.rule = dialogue.grammars.json_rule(schema, None)
    play(row, dialogue, random=np.random.default_rng(0))
    written = dialogue.vocabulary.decode(row.tokens[:-1], special=True)
    assert json.loads(written) == {text: text}


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "paint"}}])
def test_tool_that_must_be_called_is_called_with_fitting_arguments(tmp_path: Path, choice: Any, parallel: bool) -> None:
    dialogue, tokenizer = write_dialogue(tmp_path / "marked", TOOL_TEMPLATE, MARKERS, context_length=CONTEXT)
    (think,) = tokenizer.encode("<think>")
    other = {"type": "function", "function": {"name": "wait"}}
    tool = {"type": "function", "function": {"name": "paint", "parameters": Thing.model_json_schema()}}
    seen = set()
    for seed in range(6):
        asked: dict[str, Any] = {"tools": [tool, other], "tool_choice": choice, "parallel_tool_calls": parallel}
        asked["logit_bias"] = {str(think): -100}  # random logits that begin to reason do not end it
        reply = ask(dialogue, **asked, max_tokens=1500)
        row = reply.rows[0]
        play(row, dialogue, random=np.random.default_rng(seed))
        body = reply.answer(dialogue, "chat", "m", report_cache=False).body
        assert body is not None
        (only,) = body["choices"]
        assert only["finish_reason"] == "tool_calls"
        calls = [call["function"] for call in only["message"]["tool_calls"]]
        assert parallel or len(calls) == 1
        for call in calls:
            seen.add(call["name"])
            if call["name"] == "paint":
                Thing.model_validate_json(call["arguments"])
    assert seen == ({"paint", "wait"} if choice == "required" else {"paint"})


def test_grammar_beside_penalties_has_the_last_word(tiny: tuple[Dialogue, Any]) -> None:
    dialogue, tokenizer = tiny
    (letter,) = tokenizer.encode("x")
    reply = ask(dialogue, response_format=SCHEMA, logit_bias={str(letter): 100}, presence_penalty=2, max_tokens=1500)
    play(reply.rows[0], dialogue, random=np.random.default_rng(0))
    Thing.model_validate_json(content_of(reply, dialogue)[0])


def test_reasoning_comes_before_the_grammar(tmp_path: Path) -> None:
    for name, template, opened in (("plain", TOOL_TEMPLATE, False), ("opening", OPENING_TEMPLATE, True)):
        dialogue, tokenizer = write_dialogue(tmp_path / name, template, MARKERS, context_length=CONTEXT)
        (think,), (thought,) = tokenizer.encode("<think>"), tokenizer.encode("</think>")
        reply = ask(dialogue, response_format=SCHEMA, max_tokens=1500)
        row = reply.rows[0]
        assert row.rule is not None
        first = row.rule.apply(np.zeros(dialogue.vocabulary.size, np.float32), [])
        assert np.isfinite(first[think])
        for token in [*([] if opened else [think]), *tokenizer.encode("a {"), thought]:
            row.add(token, 1.0, is_end=False)
            if token != thought:
                inside = row.rule.apply(np.zeros(dialogue.vocabulary.size, np.float32), row.tokens)
                assert np.flatnonzero(~np.isfinite(inside)).tolist() == dialogue.end_tokens
        play(row, dialogue, random=np.random.default_rng(1))
        answer = reply.answer(dialogue, "chat", "m", report_cache=False)
        assert answer.body is not None
        message = answer.body["choices"][0]["message"]
        assert message["reasoning_content"] == "a {"
        Thing.model_validate_json(message["content"])
