"""What a generation item may ask for, and how a refusal names it."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import ItemError
from pipeline.ports import JsonObject, WorkItem
from pipeline.specs.generate import SamplingDefaults
from workers.engines.requests import GenerationRequest, Role, Sampling, parse_request

DEFAULTS = SamplingDefaults(max_tokens=99, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1)
HELLO = [{"role": "user", "content": "hello"}]


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


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = parse({"messages": [{"role": "user", "content": parts}]})
    assert request.messages == ({"role": "user", "content": "ab"},)


def test_completion_takes_a_prompt() -> None:
    assert parse({"prompt": "once"}, "completion").prompt == "once"


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"tools": []}, "tools"),
        ({"logprobs": True}, "logprobs"),
        ({"frequency_penalty": 0}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temprature": 1}, "temprature"),
        ({"prompt": "x"}, "prompt"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"messages": [{"role": "user", "content": "x", "name": "Ann"}]}, "messages[0].name"),
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
    ],
)
def test_wrong_values_err_with_intakes_codes(parameters: JsonObject, code: str, param: str) -> None:
    with pytest.raises(ItemError) as caught:
        chat(**parameters)
    assert (caught.value.item_code, caught.value.param) == (code, param)
