"""What one generation request asks for, as a value.

Types and ranges are intake's (:mod:`pipeline.formats.bodies`); added here is what this engine honours. Any other
parameter is refused by name, never ignored; a null asks for nothing. Knows nothing about tokens or models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.errors import ItemError, UnsupportedParameter
from pipeline.formats.bodies import normalise_body
from pipeline.formats.problems import LineRefused
from pipeline.ports import JsonObject, WorkItem
from pipeline.specs.base import Endpoint
from pipeline.specs.generate import SamplingDefaults

Role = Literal["chat", "completion"]

ROLES: Mapping[Endpoint, Role] = {Endpoint.CHAT: "chat", Endpoint.COMPLETIONS: "completion"}

_ENDPOINTS = {role: endpoint for endpoint, role in ROLES.items()}
_CONTENT: Mapping[Role, str] = {"chat": "messages", "completion": "prompt"}
_HONOURED = frozenset(
    {"max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed", "stream", "n"}
)
#: Change nothing in the answer: which model the job says, and what a client notes for itself.
_PASSED = frozenset({"model", "user", "metadata", "store"})


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
    """One checked request. Exactly one of ``messages`` and ``prompt`` is set."""

    messages: tuple[dict[str, str], ...] | None
    prompt: str | None
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    seed: int


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
    if body.get("n", 1) != 1:
        raise UnsupportedParameter("only one choice per request (n = 1) is supported", param="n")
    stop = body.get("stop", ())
    return GenerationRequest(
        messages=_read_messages(body["messages"]) if role == "chat" else None,
        prompt=body["prompt"] if role == "completion" else None,
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens") or defaults.max_tokens,
        sampling=_read_sampling(defaults.model_dump() | body),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seed=body.get("seed", item.seed),
    )


def _read_sampling(values: Mapping[str, Any]) -> Sampling:
    return Sampling(
        temperature=float(values["temperature"]),
        top_p=float(values["top_p"]),
        top_k=int(values["top_k"]),
        min_p=float(values["min_p"]),
    )


def _read_messages(messages: list[JsonObject]) -> tuple[dict[str, str], ...]:
    """Role and text of each; what else intake lets through in a message belongs to tools, names and refusals."""
    for place, message in enumerate(messages):
        for name in message.keys() - {"role", "content"}:
            raise UnsupportedParameter(f"{name} in a message is not supported", param=f"messages[{place}].{name}")
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)
