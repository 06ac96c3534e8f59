"""What a generation item may ask for, and how a refusal names it."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import ItemError
from pipeline.ports import JsonObject, WorkItem
from pipeline.specs.generate import SamplingDefaults
from workers.engines.penalties import PenaltyOptions
from workers.engines.requests import GenerationRequest, Role, Sampling, parse_request

DEFAULTS = SamplingDefaults(max_tokens=99, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1)
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def parse(body: JsonObject, role: Role = "chat") -> GenerationRequest:
    return parse_request(WorkItem(0, "id", body, seed=42), role, DEFAULTS)


def chat(**parameters: Any) -> GenerationRequest:
    return parse({"messages": [dict(message) for message in HELLO], **parameters})


def test_defaults_of_the_job_stand_where_an_item_is_silent() -> None:
    request = chat()
    assert request == GenerationRequest(
        messages=({"role": "user", "content": "hello"},),
        prompt=None,
        max_tokens=99,
        sampling=Sampling(0.5, 0.9, 7, 0.1),
        stop=(),
        seed=42,
    )


def test_item_values_win_over_the_defaults() -> None:
    request = chat(max_tokens=3, temperature=0, top_p=0.2, top_k=0, min_p=0, seed=-5, stop=["a", "b"])
    assert request.sampling == Sampling(0.0, 0.2, 0, 0.0)
    assert request.sampling.is_greedy
    assert (request.max_tokens, request.seed, request.stop) == (3, -5, ("a", "b"))


def test_null_asks_for_nothing() -> None:
    assert chat(temperature=None, stop=None, max_tokens=None, tools=None, seed=None) == chat()


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_of_the_limit_counts(name: str) -> None:
    assert chat(**{name: 5}).max_tokens == 5


def test_one_stop_text_needs_no_list() -> None:
    assert chat(stop="\n").stop == ("\n",)


def test_what_only_a_client_needs_passes() -> None:
    assert chat(user="me", metadata={"a": "b"}, store=True, stream=False, n=1, model="m") == chat()


def test_what_changes_nothing_asks_for_nothing() -> None:
    idle = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "tools": []}
    assert chat(**idle, logprobs=False, response_format={"type": "text"}, tool_choice="auto") == chat()


def test_penalties_and_biases_are_read() -> None:
    request = chat(repetition_penalty=1.5, presence_penalty=-1, frequency_penalty=2, logit_bias={"7": -100, "1": 0.5})
    assert request.penalties == PenaltyOptions(1.5, -1.0, 2.0)
    assert request.logit_bias == {7: -100.0, 1: 0.5}


def test_penalties_of_the_job_stand_where_an_item_is_silent() -> None:
    defaults = SamplingDefaults(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.25)
    item = WorkItem(0, "id", {"messages": HELLO, "presence_penalty": 0})
    assert parse_request(item, "chat", defaults).penalties == PenaltyOptions(1.1, 0.0, 0.25)


@pytest.mark.parametrize(
    ("role", "parameters", "told"),
    [
        ("chat", {}, None),
        ("chat", {"logprobs": False}, None),
        ("chat", {"logprobs": True}, 0),
        ("chat", {"logprobs": True, "top_logprobs": 20}, 20),
        ("completion", {}, None),
        ("completion", {"logprobs": 0}, 0),
        ("completion", {"logprobs": 5}, 5),
    ],
)
def test_logprobs_are_asked_for_in_two_ways(role: Role, parameters: JsonObject, told: int | None) -> None:
    content = {"messages": HELLO} if role == "chat" else {"prompt": "x"}
    assert parse({**content, **parameters}, role).top_logprobs == told


def test_response_format_says_what_json_is_wanted() -> None:
    schema = {"type": "object"}
    assert chat(response_format={"type": "json_object"}).wants_json
    request = chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
    assert (request.wants_json, request.schema) == (True, schema)


def test_tool_choice_says_which_tools_must_be_called() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    named = {"type": "function", "function": {"name": "g"}}
    assert chat(tools=[TOOL, other]).must_call == ()
    assert chat(tools=[TOOL, other], tool_choice="required").must_call == ("f", "g")
    assert chat(tools=[TOOL, other], tool_choice=named).must_call == ("g",)
    assert chat(tools=[TOOL, other], tool_choice="none").tools == ()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "g"}}])
def test_tool_choice_without_such_a_tool_is_an_error(choice: Any) -> None:
    for tools in ([], [TOOL] if choice != "required" else []):
        with pytest.raises(ItemError) as caught:
            chat(tools=tools, tool_choice=choice)
        assert (caught.value.item_code, caught.value.param) == ("invalid_value", "tool_choice")


def test_arguments_of_calls_become_objects_and_absent_texts_empty() -> None:
    made = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    request = parse({"messages": [*HELLO, {"role": "assistant", "tool_calls": [made]}]})
    assert request.messages is not None
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert request.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert made["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = parse({"messages": [{"role": "user", "content": parts}]})
    assert request.messages == ({"role": "user", "content": "ab"},)


def test_completion_takes_a_prompt() -> None:
    assert parse({"prompt": "once"}, "completion").prompt == "once"


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"functions": []}, "functions"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"temprature": 1}, "temprature"),
        ({"prompt": "x"}, "prompt"),
        ({"stream": True}, "stream"),
        ({"best_of": 2}, "best_of"),
        ({"messages": [{"role": "assistant", "content": "x", "refusal": "no"}]}, "messages[0].refusal"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(parameters: JsonObject, param: str) -> None:
    with pytest.raises(ItemError) as caught:
        chat(**parameters)
    assert (caught.value.item_code, caught.value.param) == ("unsupported_parameter", param)


@pytest.mark.parametrize(
    ("parameters", "code", "param"),
    [
        ({"temperature": 2.5}, "invalid_value", "temperature"),
        ({"temperature": "hot"}, "invalid_type", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": True}, "invalid_type", "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "conflicting_fields", "max_completion_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "invalid_value", "stop"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
        ({"top_logprobs": 2}, "conflicting_fields", "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
    ],
)
def test_wrong_values_err_with_intakes_codes(parameters: JsonObject, code: str, param: str) -> None:
    with pytest.raises(ItemError) as caught:
        chat(**parameters)
    assert (caught.value.item_code, caught.value.param) == (code, param)
