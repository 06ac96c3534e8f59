"""What one generation request asks for, as a value.

Types and ranges are intake's (:mod:`pipeline.formats.bodies`); added here is what this engine honours. Any other
parameter is refused by name, never ignored; a null asks for nothing. Knows nothing about tokens or models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.errors import InvalidValue, ItemError, UnsupportedParameter
from pipeline.formats.bodies import normalise_body
from pipeline.formats.problems import LineRefused
from pipeline.ports import JsonObject, WorkItem
from pipeline.specs.base import Endpoint
from pipeline.specs.generate import SamplingDefaults
from workers.engines.penalties import PenaltyOptions

Role = Literal["chat", "completion"]

ROLES: Mapping[Endpoint, Role] = {Endpoint.CHAT: "chat", Endpoint.COMPLETIONS: "completion"}

_ENDPOINTS = {role: endpoint for endpoint, role in ROLES.items()}
_CONTENT: Mapping[Role, str] = {"chat": "messages", "completion": "prompt"}
_HONOURED = frozenset(
    {
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "response_format",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "stop",
        "seed",
        "stream",
        "n",
    }
)
#: Change nothing in the answer: which model the job says, and what a client notes for itself.
_PASSED = frozenset({"model", "user", "metadata", "store"})

#: Keys of a message that go to the chat template.
_MESSAGE_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; ``temperature`` 0 takes the best, ``top_k`` 0 keeps all."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One checked request. Exactly one of ``messages`` and ``prompt`` is set.

    Attributes:
        logit_bias: what is added to the logits of tokens.
        top_logprobs: how many of the likeliest tokens to tell beside each chosen one; None tells nothing.
        schema: the JSON schema that the answer follows; with ``wants_json`` and None it is any object.
        tools: what the model may call, as the chat template takes it; empty where it may call nothing.
        must_call: names of the tools of which the answer must call one; empty where it need not call any.
        parallel_tool_calls: an answer may hold several calls; else it ends after the first.
    """

    messages: tuple[JsonObject, ...] | None
    prompt: str | None
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    seed: int
    n: int = 1
    penalties: PenaltyOptions = field(default_factory=PenaltyOptions)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_logprobs: int | None = None
    wants_json: bool = False
    schema: JsonObject | None = None
    tools: tuple[JsonObject, ...] = ()
    must_call: tuple[str, ...] = ()
    parallel_tool_calls: bool = True


def parse_request(item: WorkItem, role: Role, defaults: SamplingDefaults) -> GenerationRequest:
    """Check one item's body.

    Args:
        defaults: the job's values for what an item does not say.

    Raises:
        UnsupportedParameter: a parameter, or a value of it, that this engine does not honour.
        ItemError: wrong type or range, with the code that intake gives it.
    """
    given = {name: value for name, value in item.body.items() if value is not None}
    for name in given:
        if name != _CONTENT[role] and name not in _HONOURED and name not in _PASSED:
            raise UnsupportedParameter(f"{name} is not supported", param=name)
    try:
        body = normalise_body(_ENDPOINTS[role], given)
    except LineRefused as refused:
        raise ItemError(refused.message, code=refused.code, param=refused.param) from refused
    if body.get("stream", False):
        raise UnsupportedParameter("a batch cannot stream", param="stream")
    stop = body.get("stop", ())
    values = defaults.model_dump() | body
    tools = _read_tools(body)
    response_format = body.get("response_format", {"type": "text"})
    return GenerationRequest(
        messages=_read_messages(body["messages"]) if role == "chat" else None,
        prompt=body["prompt"] if role == "completion" else None,
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens") or defaults.max_tokens,
        sampling=_read_sampling(values),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seed=body.get("seed", item.seed),
        n=body.get("n", 1),
        penalties=_read_penalties(values),
        logit_bias={int(token): float(bias) for token, bias in body.get("logit_bias", {}).items()},
        top_logprobs=_read_logprobs(body),
        wants_json=response_format["type"] != "text",
        schema=response_format["json_schema"]["schema"] if response_format["type"] == "json_schema" else None,
        tools=tools,
        must_call=_read_tool_choice(body, tools),
        parallel_tool_calls=body.get("parallel_tool_calls", True),
    )


def _read_sampling(values: Mapping[str, Any]) -> Sampling:
    return Sampling(
        temperature=float(values["temperature"]),
        top_p=float(values["top_p"]),
        top_k=int(values["top_k"]),
        min_p=float(values["min_p"]),
    )


def _read_penalties(values: Mapping[str, Any]) -> PenaltyOptions:
    return PenaltyOptions(
        repetition=float(values["repetition_penalty"]),
        presence=float(values["presence_penalty"]),
        frequency=float(values["frequency_penalty"]),
    )


def _read_logprobs(body: JsonObject) -> int | None:
    """A chat says true or false and a count beside it, a completion says the count."""
    wanted = body.get("logprobs", False)
    if isinstance(wanted, bool):
        return int(body.get("top_logprobs", 0)) if wanted else None
    return int(wanted)


def _read_tools(body: JsonObject) -> tuple[JsonObject, ...]:
    """What the template is given. With ``tool_choice: none`` the model is not told of any tool."""
    tools: list[JsonObject] = body.get("tools", [])
    for place, tool in enumerate(tools):
        if tool["type"] != "function":
            raise UnsupportedParameter("only tools of type function are supported", param=f"tools[{place}].type")
        if tool["function"].get("strict"):
            message = "strict arguments of a function are not supported"
            raise UnsupportedParameter(message, param=f"tools[{place}].function.strict")
    if body.get("tool_choice") == "none":
        return ()
    if tools and body.get("response_format", {"type": "text"})["type"] != "text":
        raise UnsupportedParameter("response_format beside tools is not supported", param="response_format")
    return tuple(tools)


def _read_tool_choice(body: JsonObject, tools: tuple[JsonObject, ...]) -> tuple[str, ...]:
    choice = body.get("tool_choice", "auto")
    if choice in ("none", "auto"):
        return ()
    names = tuple(tool["function"]["name"] for tool in tools)
    if choice != "required":
        if choice["type"] != "function":
            raise UnsupportedParameter("only a function can be chosen", param="tool_choice.type")
        names = tuple(name for name in names if name == choice["function"]["name"])
    if not names:
        raise InvalidValue("tool_choice asks for a tool that is not among tools", param="tool_choice")
    return names


def _read_messages(messages: list[JsonObject]) -> tuple[JsonObject, ...]:
    return tuple(_read_message(message, f"messages[{place}]") for place, message in enumerate(messages))


def _read_message(message: JsonObject, param: str) -> JsonObject:
    """As chat templates take it: a text that is absent is empty, and arguments of calls are objects."""
    for name in message.keys() - _MESSAGE_KEYS:
        raise UnsupportedParameter(f"{name} in a message is not supported", param=f"{param}.{name}")
    read = {**message, "content": message["content"] or ""}
    if "tool_calls" in message:
        calls = message["tool_calls"]
        read["tool_calls"] = [_read_call(call, f"{param}.tool_calls[{place}]") for place, call in enumerate(calls)]
    return read


def _read_call(call: JsonObject, param: str) -> JsonObject:
    if call.get("type", "function") != "function":
        raise UnsupportedParameter("only calls of functions are supported", param=f"{param}.type")
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError as error:
        raise InvalidValue(f"arguments are no JSON: {error}", param=f"{param}.function.arguments") from error
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}
