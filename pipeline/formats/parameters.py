"""The parameters of the four endpoints and what their values may be.

Every name of OpenAI's API is here, and the few this project adds (``top_k``, ``min_p``, ``repetition_penalty``). A
name that is here passes intake, whether an engine honours it or not: an engine answers ``unsupported_parameter`` for
what it does not do. A name that is not here is a typing error. Ranges are those that every engine must refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.formats.chat_messages import check_messages
from pipeline.formats.checks import (
    ARRAY,
    FLAG,
    OBJECT,
    TEXT,
    Check,
    check_nonempty,
    either,
    integer,
    number,
    wrong_type,
)
from pipeline.formats.problems import LineRefused, show_value
from pipeline.formats.response_format import check_response_format
from pipeline.formats.tools import check_tool_choice, check_tools
from pipeline.specs.base import Endpoint

#: Most texts in one embeddings request, as in OpenAI's API.
MAX_INPUTS = 2048

_INT64 = 2**63
_TEXT_OR_OBJECT = either(TEXT, OBJECT, wanted="a string or an object")


# --- checks ----------------------------------------------------------------------------------------------------------


def _check_stop(value: Any, param: str) -> Any:
    words = [value] if type(value) is str else value
    if type(words) is not list or not all(type(word) is str for word in words):
        raise wrong_type(param, "a string or an array of strings", value)
    if len(words) > 4 or "" in words:
        raise LineRefused("invalid_value", f"{param} takes up to 4 strings, none of them empty", param)
    return value


_check_bias = number(-100, 100)


def _check_logit_bias(value: Any, param: str) -> Any:
    """Token ids, written as strings, and what is added to their logits."""
    OBJECT(value, param)
    for token, bias in value.items():
        # The shape of a 32-bit id; whether the model has it is the engine's to say.
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            message = f"{param} maps token ids to numbers; {show_value(token)} is no token id"
            raise LineRefused("invalid_value", message, param)
        _check_bias(bias, f"{param}.{token}")
    return value


def _check_prompt(value: Any, param: str) -> Any:
    if type(value) is list:
        message = f"{param} must be one string: token ids and several prompts in one line are not supported"
        raise LineRefused("unsupported_input", message, param)
    return check_nonempty(value, param)


def _check_input(value: Any, param: str) -> Any:
    """A string, or 1 to 2,048 strings. Empty and blank strings are texts: their special tokens have a vector."""
    if type(value) is str:
        return value
    if type(value) is not list:
        raise wrong_type(param, "a string or an array of strings", value)
    if not 1 <= len(value) <= MAX_INPUTS:
        raise LineRefused("invalid_value", f"{param} takes 1 to {MAX_INPUTS} texts; it has {len(value):,}", param)
    for place, text in enumerate(value):
        if type(text) is int or type(text) is list:
            message = f"{param} must hold texts: token ids are not supported, since each model has its own"
            raise LineRefused("unsupported_input", message, param)
        if type(text) is not str:
            raise wrong_type(f"{param}[{place}]", "a string", text)
    return value


def _check_documents(value: Any, param: str) -> list[str]:
    """Strings, or objects with one ``text``; given on as strings."""
    if type(value) is not list:
        raise wrong_type(param, "an array", value)
    if not value:
        raise LineRefused("invalid_value", f"{param} must not be empty", param)
    return [text if type(text) is str else _document_text(text, f"{param}[{i}]") for i, text in enumerate(value)]


def _document_text(value: Any, param: str) -> str:
    if type(value) is not dict or type(value.get("text")) is not str:
        raise wrong_type(param, 'a string or {"text": ...}', value)
    if len(value) > 1:
        raise LineRefused("unknown_parameter", f"{param} may hold text and nothing else", param)
    return str(value["text"])


# --- tables ----------------------------------------------------------------------------------------------------------

_SAMPLING: dict[str, Check] = {
    "frequency_penalty": number(-2, 2),
    "logit_bias": _check_logit_bias,
    "max_tokens": integer(1),
    "min_p": number(0, 1),
    "n": integer(1, 128),
    "presence_penalty": number(-2, 2),
    "repetition_penalty": number(0, 2, above=True),
    "seed": integer(-_INT64, _INT64 - 1),
    "stop": _check_stop,
    "stream": FLAG,
    "stream_options": OBJECT,
    "temperature": number(0, 2),
    "top_k": integer(0),
    "top_p": number(0, 1, above=True),
    "user": TEXT,
}

_CHAT: dict[str, Check] = _SAMPLING | {
    "audio": OBJECT,
    "function_call": _TEXT_OR_OBJECT,
    "functions": ARRAY,
    "logprobs": FLAG,
    "max_completion_tokens": integer(1),
    "messages": check_messages,
    "metadata": OBJECT,
    "modalities": ARRAY,
    "moderation": OBJECT,
    "parallel_tool_calls": FLAG,
    "prediction": OBJECT,
    "prompt_cache_key": TEXT,
    "prompt_cache_retention": TEXT,
    "reasoning_effort": TEXT,
    "response_format": check_response_format,
    "safety_identifier": TEXT,
    "service_tier": TEXT,
    "store": FLAG,
    "tool_choice": check_tool_choice,
    "tools": check_tools,
    "top_logprobs": integer(0, 20),
    "verbosity": TEXT,
    "web_search_options": OBJECT,
}

_COMPLETIONS: dict[str, Check] = _SAMPLING | {
    "best_of": integer(1, 20),
    "echo": FLAG,
    "logprobs": integer(0, 5),
    "prompt": _check_prompt,
    "suffix": TEXT,
}

_EMBEDDINGS: dict[str, Check] = {
    "dimensions": integer(1),
    "encoding_format": TEXT,
    "input": _check_input,
    "user": TEXT,
}

_RERANK: dict[str, Check] = {
    "documents": _check_documents,
    "query": check_nonempty,
    "return_documents": FLAG,
    "top_n": integer(1),
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
