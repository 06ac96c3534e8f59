"""The body of a request: names, types and ranges checked, and brought to one form. Knows nothing about engines."""

from __future__ import annotations

from pipeline.formats.parameters import PARAMETERS, REQUIRED
from pipeline.formats.problems import LineRefused
from pipeline.formats.requests import unknown_parameter
from pipeline.ports import JsonObject
from pipeline.specs.base import Endpoint


def normalise_body(endpoint: Endpoint, body: JsonObject, *, hint: str = "") -> JsonObject:
    """Check a body and return what engines read.

    ``model`` is left out (it is the job's), and so is an optional parameter that is null: in OpenAI's API both mean
    "not given". ``hint`` is added to the message about an unknown name.

    Raises:
        LineRefused: with the code and the parameter of the first fault.
    """
    checks = PARAMETERS[endpoint]
    checked: JsonObject = {}
    for name, value in body.items():
        check = checks.get(name)
        if check is None:
            if name == "model":
                continue
            raise unknown_parameter(name, checks, hint=hint)
        if value is not None:
            checked[name] = check(value, name)
    for name in REQUIRED[endpoint]:
        if name not in checked:
            raise LineRefused("missing_field", f"{name} is missing", name)
    limit = checked.get("max_completion_tokens")
    if limit is not None and checked.get("max_tokens", limit) != limit:
        message = "max_tokens and max_completion_tokens say two different things"
        raise LineRefused("conflicting_fields", message, "max_completion_tokens")
    if "top_logprobs" in checked and not checked.get("logprobs"):
        raise LineRefused("conflicting_fields", "top_logprobs needs logprobs: true", "top_logprobs")
    return checked
