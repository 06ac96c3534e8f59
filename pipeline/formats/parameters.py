"""The parameters of the four endpoints and what their values may be.

Every name of OpenAI's API is here, and the few this project adds (``top_k``, ``min_p``). A name that is here passes
intake, whether an engine honours it or not: an engine answers ``unsupported_parameter`` for what it does not do. A
name that is not here is a typing error. Ranges are those that every engine must refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.formats.chat_messages import check_messages
from pipeline.formats.problems import LineRefused, show_value
from pipeline.specs.base import Endpoint

#: Takes (value, its param path), returns the normalised value, raises LineRefused. Never sees null.
Check = Callable[[Any, str], Any]

#: Most texts in one embeddings request, as in OpenAI's API.
MAX_INPUTS = 2048

_INT64 = 2**63


# --- checks ----------------------------------------------------------------------------------------------------------


def _wrong_type(param: str, wanted: str, value: Any) -> LineRefused:
    return LineRefused("invalid_type", f"{param} must be {wanted}, not {show_value(value)}", param)


def _typed(kind: type, wanted: str) -> Check:
    def check(value: Any, param: str) -> Any:
        if type(value) is not kind:
            raise _wrong_type(param, wanted, value)
        return value

    return check


def _integer(low: int, high: int | None = None) -> Check:
    wanted = f"at least {low}" if high is None else f"from {low} to {high}"

    def check(value: Any, param: str) -> Any:
        if type(value) is not int:
            raise _wrong_type(param, "an integer", value)
        if value < low or (high is not None and value > high):
            raise LineRefused("invalid_value", f"{param} must be {wanted}, not {value}", param)
        return value

    return check


def _number(low: float, high: float, *, above: bool = False) -> Check:
    """From ``low`` (or, with ``above``, anything over it) to ``high``."""
    wanted = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"

    def check(value: Any, param: str) -> Any:
        if type(value) is not float and type(value) is not int:
            raise _wrong_type(param, "a number", value)
        if not low <= value <= high or (above and value == low):
            raise LineRefused("invalid_value", f"{param} must be {wanted}, not {value}", param)
        return value

    return check


def _either(*checks: Check, wanted: str) -> Check:
    """The first check that does not say ``invalid_type`` decides."""

    def check(value: Any, param: str) -> Any:
        for candidate in checks:
            try:
                return candidate(value, param)
            except LineRefused as refused:
                if refused.code != "invalid_type":
                    raise
        raise _wrong_type(param, wanted, value)

    return check


_TEXT = _typed(str, "a string")
_FLAG = _typed(bool, "true or false")
_OBJECT = _typed(dict, "an object")
_ARRAY = _typed(list, "an array")
_TEXT_OR_OBJECT = _either(_TEXT, _OBJECT, wanted="a string or an object")


def _check_stop(value: Any, param: str) -> Any:
    words = [value] if type(value) is str else value
    if type(words) is not list or not all(type(word) is str for word in words):
        raise _wrong_type(param, "a string or an array of strings", value)
    if len(words) > 4 or "" in words:
        raise LineRefused("invalid_value", f"{param} takes up to 4 strings, none of them empty", param)
    return value


def _check_prompt(value: Any, param: str) -> Any:
    if type(value) is list:
        message = f"{param} must be one string: token ids and several prompts in one line are not supported"
        raise LineRefused("unsupported_input", message, param)
    return _check_nonempty(value, param)


def _check_nonempty(value: Any, param: str) -> Any:
    if type(value) is not str:
        raise _wrong_type(param, "a string", value)
    if not value:
        raise LineRefused("invalid_value", f"{param} must not be empty", param)
    return value


def _check_input(value: Any, param: str) -> Any:
    """A string, or 1 to 2,048 strings. Empty and blank strings are texts: their special tokens have a vector."""
    if type(value) is str:
        return value
    if type(value) is not list:
        raise _wrong_type(param, "a string or an array of strings", value)
    if not 1 <= len(value) <= MAX_INPUTS:
        raise LineRefused("invalid_value", f"{param} takes 1 to {MAX_INPUTS} texts; it has {len(value):,}", param)
    for place, text in enumerate(value):
        if type(text) is int or type(text) is list:
            message = f"{param} must hold texts: token ids are not supported, since each model has its own"
            raise LineRefused("unsupported_input", message, param)
        if type(text) is not str:
            raise _wrong_type(f"{param}[{place}]", "a string", text)
    return value


def _check_documents(value: Any, param: str) -> list[str]:
    """Strings, or objects with one ``text``; given on as strings."""
    if type(value) is not list:
        raise _wrong_type(param, "an array", value)
    if not value:
        raise LineRefused("invalid_value", f"{param} must not be empty", param)
    return [text if type(text) is str else _document_text(text, f"{param}[{i}]") for i, text in enumerate(value)]


def _document_text(value: Any, param: str) -> str:
    if type(value) is not dict or type(value.get("text")) is not str:
        raise _wrong_type(param, 'a string or {"text": ...}', value)
    if len(value) > 1:
        raise LineRefused("unknown_parameter", f"{param} may hold text and nothing else", param)
    return str(value["text"])


# --- tables ----------------------------------------------------------------------------------------------------------

_SAMPLING: dict[str, Check] = {
    "frequency_penalty": _number(-2, 2),
    "logit_bias": _OBJECT,
    "max_tokens": _integer(1),
    "min_p": _number(0, 1),
    "n": _integer(1, 128),
    "presence_penalty": _number(-2, 2),
    "seed": _integer(-_INT64, _INT64 - 1),
    "stop": _check_stop,
    "stream": _FLAG,
    "stream_options": _OBJECT,
    "temperature": _number(0, 2),
    "top_k": _integer(0),
    "top_p": _number(0, 1, above=True),
    "user": _TEXT,
}

_CHAT: dict[str, Check] = _SAMPLING | {
    "audio": _OBJECT,
    "function_call": _TEXT_OR_OBJECT,
    "functions": _ARRAY,
    "logprobs": _FLAG,
    "max_completion_tokens": _integer(1),
    "messages": check_messages,
    "metadata": _OBJECT,
    "modalities": _ARRAY,
    "moderation": _OBJECT,
    "parallel_tool_calls": _FLAG,
    "prediction": _OBJECT,
    "prompt_cache_key": _TEXT,
    "prompt_cache_retention": _TEXT,
    "reasoning_effort": _TEXT,
    "response_format": _OBJECT,
    "safety_identifier": _TEXT,
    "service_tier": _TEXT,
    "store": _FLAG,
    "tool_choice": _TEXT_OR_OBJECT,
    "tools": _ARRAY,
    "top_logprobs": _integer(0, 20),
    "verbosity": _TEXT,
    "web_search_options": _OBJECT,
}

_COMPLETIONS: dict[str, Check] = _SAMPLING | {
    "best_of": _integer(1, 20),
    "echo": _FLAG,
    "logprobs": _integer(0, 5),
    "prompt": _check_prompt,
    "suffix": _TEXT,
}

_EMBEDDINGS: dict[str, Check] = {
    "dimensions": _integer(1),
    "encoding_format": _TEXT,
    "input": _check_input,
    "user": _TEXT,
}

_RERANK: dict[str, Check] = {
    "documents": _check_documents,
    "query": _check_nonempty,
    "return_documents": _FLAG,
    "top_n": _integer(1),
}

#: Checks by endpoint and parameter; ``model`` is no part of a body here.
PARAMETERS: Mapping[Endpoint, Mapping[str, Check]] = {
    Endpoint.CHAT: _CHAT,
    Endpoint.COMPLETIONS: _COMPLETIONS,
    Endpoint.EMBEDDINGS: _EMBEDDINGS,
    Endpoint.RERANK: _RERANK,
}

#: What a body cannot be without.
REQUIRED: Mapping[Endpoint, tuple[str, ...]] = {
    Endpoint.CHAT: ("messages",),
    Endpoint.COMPLETIONS: ("prompt",),
    Endpoint.EMBEDDINGS: ("input",),
    Endpoint.RERANK: ("query", "documents"),
}
