"""OpenAI's batch lines: ``{"custom_id", "method", "url", "body"}``, all four required. Knows nothing about files."""

from __future__ import annotations

from pipeline.formats.bodies import normalise_body
from pipeline.formats.problems import LineRefused, show_value
from pipeline.formats.requests import Request, check_custom_id, check_model, unknown_parameter
from pipeline.ports import JsonObject
from pipeline.specs.base import Endpoint

_KEYS = frozenset({"custom_id", "method", "url", "body"})

_ENDPOINTS: dict[str, Endpoint] = {endpoint.value: endpoint for endpoint in Endpoint}


def looks_like_batch(line: JsonObject) -> bool:
    """Whether a first line is an envelope and not a simple request."""
    return "url" in line or "method" in line or isinstance(line.get("body"), dict)


def read_batch_request(line: JsonObject) -> Request:
    """Check an envelope and its body; raises :class:`LineRefused`."""
    if line.keys() != _KEYS:
        raise _wrong_keys(line)
    custom_id = check_custom_id(line["custom_id"])
    if (method := line["method"]) != "POST":
        raise LineRefused("invalid_value", f"method must be POST, not {show_value(method)}", "method")
    url = line["url"]
    endpoint = _ENDPOINTS.get(url) if type(url) is str else None
    if endpoint is None:
        message = f"url must be one of {', '.join(_ENDPOINTS)}, not {show_value(url)}"
        raise LineRefused("unsupported_endpoint", message, "url")
    body = line["body"]
    if type(body) is not dict:
        raise LineRefused("invalid_type", f"body must be an object, not {show_value(body)}", "body")
    return Request(custom_id, endpoint, check_model(body.get("model")), normalise_body(endpoint, body))


def _wrong_keys(line: JsonObject) -> LineRefused:
    for key in line:
        if key not in _KEYS:
            return unknown_parameter(key, _KEYS, hint="; parameters of the request belong in body")
    missing = next(key for key in ("custom_id", "method", "url", "body") if key not in line)
    return LineRefused("missing_field", f"{missing} is missing", missing)
