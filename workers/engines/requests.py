"""What one generation request asks for: OpenAI's words checked and turned into a value.

A parameter that is not honoured here is refused by name, never ignored; a null asks for nothing. Knows nothing about
tokens or models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.errors import InvalidValue, UnsupportedParameter
from pipeline.ports import WorkItem

Role = Literal["chat", "completion"]

ENDPOINTS: Mapping[str, Role] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}

#: Most stop texts of one request, as OpenAI has it.
MAX_STOPS = 4

_CONTENT: Mapping[Role, str] = {"chat": "messages", "completion": "prompt"}
_HONOURED = frozenset(
    {"max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed", "stream", "n"}
)
#: Change nothing in the answer: which model the job says, and what a client notes for itself.
_PASSED = frozenset({"model", "user", "metadata", "store"})
_SEED_BITS = 63


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
    """One checked request. Exactly one of ``messages`` and ``prompt`` is set; a prompt may be token ids."""

    messages: tuple[dict[str, str], ...] | None
    prompt: str | tuple[int, ...] | None
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    seed: int


def parse_request(item: WorkItem, role: Role, defaults: Mapping[str, Any]) -> GenerationRequest:
    """Check one item's body; ``defaults`` are the job's sampling values for what the item does not say.

    Raises:
        UnsupportedParameter: a parameter, or a value of it, that this engine does not honour.
        InvalidValue: wrong type or range.
    """
    body = {name: value for name, value in item.body.items() if value is not None}
    content = _CONTENT[role]
    for name in body:
        if name != content and name not in _HONOURED and name not in _PASSED:
            raise UnsupportedParameter(f"{name} is not supported", param=name)
    if body.get("stream", False) is not False:
        raise UnsupportedParameter("a batch cannot stream", param="stream")
    if body.get("n", 1) is not True and body.get("n", 1) != 1:
        raise UnsupportedParameter("only one choice per request (n = 1) is supported", param="n")
    if content not in body:
        raise InvalidValue(f"{content} is missing", param=content)
    return GenerationRequest(
        messages=_parse_messages(body["messages"]) if role == "chat" else None,
        prompt=_parse_prompt(body["prompt"]) if role == "completion" else None,
        max_tokens=_parse_max_tokens(body, defaults),
        sampling=Sampling(
            temperature=_number(body, defaults, "temperature", 0.0, low=0.0, high=2.0),
            top_p=_number(body, defaults, "top_p", 1.0, low=0.0, high=1.0, above_low=True),
            top_k=_integer(body.get("top_k", defaults.get("top_k", 0)), "top_k", low=0),
            min_p=_number(body, defaults, "min_p", 0.0, low=0.0, high=1.0),
        ),
        stop=_parse_stop(body.get("stop", ())),
        seed=_integer(body["seed"], "seed", low=-(1 << _SEED_BITS)) if "seed" in body else item.seed,
    )


def _parse_messages(value: object) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise InvalidValue("messages must be a list with at least one message", param="messages")
    return tuple(_parse_message(message, f"messages[{place}]") for place, message in enumerate(value))


def _parse_message(message: object, param: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise InvalidValue("a message must be an object", param=param)
    for name, value in message.items():
        if name not in ("role", "content") and value is not None:
            raise UnsupportedParameter(f"{name} in a message is not supported", param=f"{param}.{name}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise InvalidValue("a message needs a role", param=f"{param}.role")
    if isinstance(content, list):
        content = "".join(_text_part(part, f"{param}.content[{place}]") for place, part in enumerate(content))
    if not isinstance(content, str):
        raise InvalidValue("a message needs content: a string or a list of text parts", param=f"{param}.content")
    return {"role": role, "content": content}


def _text_part(part: object, param: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidValue("a content part must be an object with a type", param=param)
    if part["type"] != "text":
        raise UnsupportedParameter(f"content of type {part['type']} is not supported", param=param)
    if not isinstance(part.get("text"), str):
        raise InvalidValue("a text part needs text", param=param)
    return str(part["text"])


def _parse_prompt(value: object) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(token) is int and token >= 0 for token in value):
        return tuple(value)
    raise InvalidValue("prompt must be one string or one list of token ids", param="prompt")


def _parse_max_tokens(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> int:
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in body]
    values = [_integer(body[name], name, low=1) for name in names]
    if len(set(values)) > 1:
        raise InvalidValue("max_tokens and max_completion_tokens differ; give one", param="max_tokens")
    return values[0] if values else _integer(defaults.get("max_tokens", 256), "max_tokens", low=1)


def _parse_stop(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) and stop for stop in stops):
        raise InvalidValue("stop must be a text or a list of texts, none empty", param="stop")
    if len(stops) > MAX_STOPS:
        raise InvalidValue(f"at most {MAX_STOPS} stop texts", param="stop")
    return tuple(stops)


def _integer(value: object, name: str, *, low: int) -> int:
    if type(value) is not int or not low <= value < 1 << _SEED_BITS:
        raise InvalidValue(f"{name} must be a whole number, at least {low}", param=name)
    return value


def _number(
    body: Mapping[str, Any],
    defaults: Mapping[str, Any],
    name: str,
    default: float,
    *,
    low: float,
    high: float,
    above_low: bool = False,
) -> float:
    value = body.get(name, defaults.get(name, default))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValue(f"{name} must be a number", param=name)
    if not low <= value <= high or (above_low and value == low):
        raise InvalidValue(
            f"{name} must be {'above' if above_low else 'at least'} {low:g} and at most {high:g}", param=name
        )
    return float(value)
