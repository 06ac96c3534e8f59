"""What items ask for, through the whole engine: each row is answered as if it were alone, whoever is beside it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.ports import Answer, EngineEvent, EngineRequest, JsonObject, RunStats, WorkItem
from tests.fixtures.dialogues import MARKERS, TOOL_TEMPLATE
from tests.fixtures.models import write_tiny_llama
from workers.engines.generation import GenerationEngine

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "maxLength": 5}, "odd": {"type": "boolean"}},
    "required": ["word", "odd"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}
ASKED: list[JsonObject] = [
    {},
    {"repetition_penalty": 1.8},
    {"presence_penalty": 1.5, "frequency_penalty": 1.0},
    {"logit_bias": {"40": 100}},
    {"logprobs": True, "top_logprobs": 3},
    {"temperature": 1.2, "n": 3},
    {"temperature": 1.2, "n": 2, "repetition_penalty": 1.5, "logprobs": True, "seed": 9},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, "max_tokens": 300},
    {"response_format": {"type": "json_object"}, "temperature": 1.0, "max_tokens": 12},
    # Without its think marker: a random model that begins to reason does not end it.
    {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "logit_bias": {"300": -100}},
    {"stop": ["e", "o"], "temperature": 1.0},
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> GenerationEngine:
    folder = tmp_path_factory.mktemp("parameters") / "llama"
    path: Path = write_tiny_llama(folder, chat_template=TOOL_TEMPLATE, words=MARKERS)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
    engine = GenerationEngine()
    engine.load(EngineRequest("generate", str(path), "digest", "auto", {"endpoint": CHAT}))
    return engine


def run(
    engine: GenerationEngine, asked: Sequence[tuple[int, JsonObject]], **options: Any
) -> tuple[dict[int, Answer], RunStats]:
    """Answers by number; each item's id, and so its noise, goes with its number and not with its place."""
    items = [
        WorkItem(
            place, f"item-{number}", {"messages": [{"role": "user", "content": f"hello {number}"}], **body}, number
        )
        for place, (number, body) in enumerate(asked)
    ]
    events: list[EngineEvent] = []
    spec = {"endpoint": CHAT, "model_name": "tiny", "sampling": {"max_tokens": 80}, **options}
    stats = engine.run(items, spec, done=frozenset(), emit=events.append, should_stop=lambda: False)
    answers = [event for event in events if isinstance(event, Answer)]
    assert len(answers) == len(items)
    return {asked[answer.index][0]: answer for answer in answers}, stats


def said(answer: Answer) -> JsonObject:
    """The body with log probabilities to four digits: the last ones depend on the batch."""
    assert answer.body is not None, answer.error
    rounded: JsonObject = json.loads(json.dumps(answer.body), parse_float=lambda text: round(float(text), 4))
    return rounded


@pytest.fixture(scope="module")
def alone(engine: GenerationEngine) -> dict[int, JsonObject]:
    return {number: said(run(engine, [(number, body)])[0][number]) for number, body in enumerate(ASKED)}


@pytest.mark.parametrize(("width", "accelerate"), [(1, "off"), (4, "off"), (16, "off"), (4, "lookup")])
def test_every_item_is_answered_as_if_it_were_alone(
    engine: GenerationEngine, alone: dict[int, JsonObject], width: int, accelerate: str
) -> None:
    numbered = list(enumerate(ASKED))
    random.Random(width).shuffle(numbered)
    answers, _ = run(engine, numbered, width=width, accelerate=accelerate)
    assert {number: said(answer) for number, answer in answers.items()} == alone


def test_each_parameter_does_what_it_says(alone: dict[int, JsonObject]) -> None:
    choices = [body["choices"] for body in alone.values()]
    contents = [choice[0]["message"]["content"] for choice in choices]
    assert len(set(contents[:4])) == 4
    assert len(set(contents[3][20:])) == 1
    assert len({choice["message"]["content"] for choice in choices[5]}) == 3
    assert sorted(json.loads(contents[7])) == ["odd", "word"]
    assert choices[8][0]["finish_reason"] == "length" or type(json.loads(contents[8])) is dict
    (call,) = choices[9][0]["message"]["tool_calls"]
    assert sorted(json.loads(call["function"]["arguments"])) == ["odd", "word"]
    assert choices[9][0]["finish_reason"] == "tool_calls"
    assert not {"e", "o"} & set(contents[10])


def test_logprobs_are_of_the_distribution_before_temperature(alone: dict[int, JsonObject]) -> None:
    (choice,) = alone[4]["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == alone[4]["usage"]["completion_tokens"]
    for entry in entries:
        best = entry["top_logprobs"]
        assert entry["logprob"] == best[0]["logprob"] == max(one["logprob"] for one in best)
        assert sum(math.exp(one["logprob"]) for one in best) <= 1.001
    sampled = [entry["logprob"] for one in alone[6]["choices"] for entry in one["logprobs"]["content"]]
    assert np.isfinite(sampled).all()


def test_item_that_cannot_be_answered_leaves_the_others_alone(
    engine: GenerationEngine, alone: dict[int, JsonObject]
) -> None:
    broken = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"not": {}}}}}
    answers, _ = run(engine, [(0, ASKED[0]), (77, broken), (7, ASKED[7]), (78, {"logit_bias": {"999999": 1}})])
    assert [said(answers[number]) for number in (0, 7)] == [alone[0], alone[7]]
    errors = [answers[number].error for number in (77, 78)]
    assert [error and error["code"] for error in errors] == ["invalid_value", "invalid_value"]
    assert [error and error["param"] for error in errors] == ["response_format.json_schema.schema", "logit_bias"]


def test_cut_prompts_are_counted(engine: GenerationEngine) -> None:
    long = {"messages": [{"role": "user", "content": "y" * 5000}], "max_tokens": 4}
    for policy in ("truncate_left", "truncate_middle"):
        answers, stats = run(engine, [(0, long), (1, {"max_tokens": 4})], overflow=policy)
        assert all(answer.succeeded for answer in answers.values())
        assert answers[0].usage["prompt_tokens"] == 1024 - 4
        assert stats.counters["truncated"] == 1
        assert stats.counters["truncated_tokens"] > 3900
