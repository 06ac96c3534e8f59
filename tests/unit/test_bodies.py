"""Bodies of the four endpoints: what passes, in which form, and what is refused with which code."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.formats.bodies import normalise_body
from pipeline.formats.parameters import PARAMETERS, REQUIRED
from pipeline.formats.problems import LineRefused
from pipeline.specs.base import Endpoint

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
MINIMAL: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"messages": [USER]},
    Endpoint.COMPLETIONS: {"prompt": "hello"},
    Endpoint.EMBEDDINGS: {"input": "hello"},
    Endpoint.RERANK: {"query": "q", "documents": ["d"]},
}


def refusal(endpoint: Endpoint, body: dict[str, Any]) -> LineRefused:
    with pytest.raises(LineRefused) as caught:
        normalise_body(endpoint, body)
    return caught.value


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"max_tokens": 0}, "invalid_value"),
        ({"max_tokens": -1}, "invalid_value"),
        ({"max_tokens": 1.5}, "invalid_type"),
        ({"max_tokens": "5"}, "invalid_type"),
        ({"max_tokens": True}, "invalid_type"),
        ({"max_tokens": 10**30 / 1}, "invalid_type"),
        ({"max_completion_tokens": 0}, "invalid_value"),
        ({"temperature": -0.1}, "invalid_value"),
        ({"temperature": 2.01}, "invalid_value"),
        ({"temperature": "0"}, "invalid_type"),
        ({"temperature": False}, "invalid_type"),
        ({"top_p": 0}, "invalid_value"),
        ({"top_p": 1.1}, "invalid_value"),
        ({"top_k": -1}, "invalid_value"),
        ({"min_p": 1.5}, "invalid_value"),
        ({"seed": 2**63}, "invalid_value"),
        ({"seed": 1.0}, "invalid_type"),
        ({"stop": ""}, "invalid_value"),
        ({"stop": ["a", ""]}, "invalid_value"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "invalid_value"),
        ({"stop": [1]}, "invalid_type"),
        ({"stop": 1}, "invalid_type"),
        ({"n": 0}, "invalid_value"),
        ({"stream": "false"}, "invalid_type"),
        ({"user": 7}, "invalid_type"),
        ({"frequency_penalty": 3}, "invalid_value"),
        ({"repetition_penalty": 0}, "invalid_value"),
        ({"repetition_penalty": 2.1}, "invalid_value"),
        ({"logit_bias": [1]}, "invalid_type"),
        ({"logit_bias": {"one": 1}}, "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "invalid_value"),
        ({"max_token": 5}, "unknown_parameter"),
        ({"temprature": 0}, "unknown_parameter"),
    ],
)
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
def test_sampling_parameter_is_refused(endpoint: Endpoint, parameters: dict[str, Any], code: str) -> None:
    if endpoint is Endpoint.COMPLETIONS and "max_completion_tokens" in parameters:
        code = "unknown_parameter"
    refused = refusal(endpoint, MINIMAL[endpoint] | parameters)
    assert (refused.code, refused.param) == (code, next(iter(parameters)))


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_tokens": 1},
        {"max_completion_tokens": 7, "max_tokens": 7},
        {"temperature": 0},
        {"temperature": 2},
        {"temperature": 0.7},
        {"top_p": 1},
        {"top_k": 0},
        {"min_p": 0.05},
        {"seed": -(2**63)},
        {"stop": "\n"},
        {"stop": ["a", "b"]},
        {"stream": False},
        {"user": "u", "metadata": {"a": "b"}, "store": True},
        # What no engine here honours is known all the same: the item errs at run time.
        {"tools": [], "tool_choice": "auto", "logprobs": True, "top_logprobs": 3, "n": 2},
        {"response_format": {"type": "json_object"}, "logit_bias": {"1": -100}, "presence_penalty": -2},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}},
        {"tools": [{"type": "web_search"}, TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"repetition_penalty": 2, "parallel_tool_calls": False, "tools": [TOOL], "tool_choice": "required"},
    ],
)
def test_known_parameter_passes_as_it_is(parameters: dict[str, Any]) -> None:
    body = MINIMAL[Endpoint.CHAT] | parameters
    assert normalise_body(Endpoint.CHAT, body) == body


@pytest.mark.parametrize(
    ("parameters", "code", "param"),
    [
        ({"logit_bias": {"1": 101}}, "invalid_value", "logit_bias.1"),
        ({"logit_bias": {"1": None}}, "invalid_type", "logit_bias.1"),
        ({"top_logprobs": 2}, "conflicting_fields", "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "conflicting_fields", "top_logprobs"),
        ({"response_format": "json"}, "invalid_type", "response_format"),
        ({"response_format": {}}, "missing_field", "response_format.type"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "missing_field", "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "missing_field",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": 1}}},
            "invalid_type",
            "response_format.json_schema.strict",
        ),
        ({"tools": {}}, "invalid_type", "tools"),
        ({"tools": ["f"]}, "invalid_type", "tools[0]"),
        ({"tools": [{}]}, "missing_field", "tools[0].type"),
        ({"tools": [TOOL, {"type": "function"}]}, "missing_field", "tools[1].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "missing_field", "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "invalid_value", "tools[0].function.name"),
        ({"tool_choice": "always"}, "invalid_value", "tool_choice"),
        ({"tool_choice": 1}, "invalid_type", "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "missing_field", "tool_choice.function"),
    ],
)
def test_structure_of_a_chat_parameter_is_refused(parameters: dict[str, Any], code: str, param: str) -> None:
    refused = refusal(Endpoint.CHAT, {"messages": [USER]} | parameters)
    assert (refused.code, refused.param) == (code, param)


def test_unknown_parameter_names_the_nearest_known_one() -> None:
    assert "did you mean max_tokens?" in refusal(Endpoint.CHAT, {"messages": [USER], "max_token": 5}).message


def test_unknown_parameter_of_any_length_and_content_is_shown_short_and_printable() -> None:
    refused = refusal(Endpoint.CHAT, {"messages": [USER], "\0" + "x" * 1_000_000: 5})
    assert len(refused.message) < 200
    assert "\0" not in refused.message + str(refused.param)


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_body_leaves_out_model_and_nulls(endpoint: Endpoint) -> None:
    optional = dict.fromkeys(PARAMETERS[endpoint].keys() - set(REQUIRED[endpoint]))
    assert normalise_body(endpoint, MINIMAL[endpoint] | optional | {"model": "m"}) == MINIMAL[endpoint]


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_body_without_a_required_field_is_refused(endpoint: Endpoint) -> None:
    for name in REQUIRED[endpoint]:
        for body in ({**MINIMAL[endpoint], name: None}, {k: v for k, v in MINIMAL[endpoint].items() if k != name}):
            refused = refusal(endpoint, body)
            assert (refused.code, refused.param) == ("missing_field", name)


def test_two_limits_that_differ_are_refused() -> None:
    refused = refusal(Endpoint.CHAT, {"messages": [USER], "max_tokens": 1, "max_completion_tokens": 2})
    assert refused.code == "conflicting_fields"


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        ([], "invalid_value", "messages"),
        ("hello", "invalid_type", "messages"),
        (["hello"], "invalid_type", "messages[0]"),
        ([USER, {"content": "x"}], "missing_field", "messages[1].role"),
        ([{"role": 1, "content": "x"}], "invalid_type", "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "invalid_type", "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "invalid_value", "messages[0].role"),
        ([{"role": "user"}], "missing_field", "messages[0].content"),
        ([{"role": "user", "content": None}], "missing_field", "messages[0].content"),
        ([{"role": "user", "content": 5}], "invalid_type", "messages[0].content"),
        ([{"role": "user", "content": []}], "invalid_value", "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "invalid_type", "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "invalid_type", "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "tex", "text": "x"}]}], "invalid_value", "messages[0].content[0].type"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "unsupported_content",
            "messages[0].content[0]",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "input_audio"}]}],
            "unsupported_content",
            "messages[0].content[1]",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x", "txt": 1}]}],
            "unknown_parameter",
            "messages[0].content[0].txt",
        ),
        ([{"role": "user", "content": "x", "nam": "y"}], "unknown_parameter", "messages[0].nam"),
        ([{"role": "user", "content": "x", "name": 5}], "invalid_type", "messages[0].name"),
        ([{"role": "assistant", "tool_calls": {}}], "invalid_type", "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "missing_field", "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}],
            "missing_field",
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}],
            "invalid_type",
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_messages_are_refused(messages: Any, code: str, param: str) -> None:
    refused = refusal(Endpoint.CHAT, {"messages": messages})
    assert (refused.code, refused.param) == (code, param)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_messages_of_every_role_pass(role: str) -> None:
    message = {"role": role, "content": "", "name": "n"}
    assert normalise_body(Endpoint.CHAT, {"messages": [message]}) == {"messages": [message]}


def test_text_parts_become_one_string() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    body = normalise_body(Endpoint.CHAT, {"messages": [USER, {"role": "user", "content": parts}]})
    assert body["messages"] == [USER, {"role": "user", "content": "one two"}]


def test_an_assistant_may_call_tools_without_saying_anything() -> None:
    made = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    call = {"role": "assistant", "content": None, "tool_calls": [made]}
    assert normalise_body(Endpoint.CHAT, {"messages": [call]}) == {"messages": [call]}


@pytest.mark.parametrize(
    ("prompt", "code"),
    [("", "invalid_value"), (5, "invalid_type"), ([1, 2], "unsupported_input"), (["a", "b"], "unsupported_input")],
)
def test_prompt_is_refused(prompt: Any, code: str) -> None:
    assert refusal(Endpoint.COMPLETIONS, {"prompt": prompt}).code == code


@pytest.mark.parametrize("text", ["", " ", "\n", "\U0001f600", "a", "x" * 100_000])
def test_any_text_is_an_input_to_embed(text: str) -> None:
    for value in (text, [text], ["other", text]):
        assert normalise_body(Endpoint.EMBEDDINGS, {"input": value}) == {"input": value}


@pytest.mark.parametrize(
    ("value", "code", "param"),
    [
        ([], "invalid_value", "input"),
        (["x"] * 2049, "invalid_value", "input"),
        ([1, 2, 3], "unsupported_input", "input"),
        ([[1, 2], [3]], "unsupported_input", "input"),
        (["x", 1], "unsupported_input", "input"),
        (["x", None], "invalid_type", "input[1]"),
        ([True], "invalid_type", "input[0]"),
        ({"text": "x"}, "invalid_type", "input"),
        (5, "invalid_type", "input"),
    ],
)
def test_input_is_refused(value: Any, code: str, param: str) -> None:
    refused = refusal(Endpoint.EMBEDDINGS, {"input": value})
    assert (refused.code, refused.param) == (code, param)


def test_input_takes_2048_texts() -> None:
    assert len(normalise_body(Endpoint.EMBEDDINGS, {"input": ["x"] * 2048})["input"]) == 2048


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"query": ""}, "invalid_value", "query"),
        ({"query": ["q"]}, "invalid_type", "query"),
        ({"documents": []}, "invalid_value", "documents"),
        ({"documents": "d"}, "invalid_type", "documents"),
        ({"documents": ["d", 1]}, "invalid_type", "documents[1]"),
        ({"documents": [{"txt": "d"}]}, "invalid_type", "documents[0]"),
        ({"documents": [{"text": "d", "id": 1}]}, "unknown_parameter", "documents[0]"),
        ({"top_n": 0}, "invalid_value", "top_n"),
        ({"top_n": 1.5}, "invalid_type", "top_n"),
        ({"return_documents": 1}, "invalid_type", "return_documents"),
        ({"topn": 1}, "unknown_parameter", "topn"),
    ],
)
def test_rerank_body_is_refused(change: dict[str, Any], code: str, param: str) -> None:
    refused = refusal(Endpoint.RERANK, MINIMAL[Endpoint.RERANK] | change)
    assert (refused.code, refused.param) == (code, param)


def test_documents_become_strings() -> None:
    body = {"query": "q", "documents": ["a", {"text": "b"}, ""], "top_n": 2, "return_documents": True}
    assert normalise_body(Endpoint.RERANK, body) == body | {"documents": ["a", "b", ""]}
