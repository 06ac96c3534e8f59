"""Simple lines: one flat object per request, with field names of the user's choice; corpora in BEIR's layout too.

A line holds its content (``prompt``, ``messages``, ``text``, or ``query`` and ``documents``), an optional id and
model, and parameters of the endpoint. Knows nothing about files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UsageError
from pipeline.formats.bodies import normalise_body
from pipeline.formats.parameters import PARAMETERS
from pipeline.formats.problems import LineRefused, show_value
from pipeline.formats.requests import Request, check_custom_id, check_model, unknown_parameter
from pipeline.ports import JsonObject
from pipeline.specs.base import Endpoint, JobKind


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldNames:
    """What a user's file calls things. Only those that the kind of job reads mean anything.

    Attributes:
        title_field: joined before the text with one blank, where both are there (embed only).
        ignore_fields: fields to pass over; all others must be known.
    """

    id_field: str = "custom_id"
    prompt_field: str = "prompt"
    messages_field: str = "messages"
    text_field: str = "text"
    title_field: str | None = None
    query_field: str = "query"
    documents_field: str = "documents"
    ignore_fields: tuple[str, ...] = ()


class SimpleFormat:
    """Reads simple lines of one kind of job."""

    def __init__(self, kind: JobKind, names: FieldNames, *, raw: bool = False) -> None:
        """``raw`` sends prompts as they are, without a chat template. Raises UsageError for clashing names."""
        self._names = names
        self._compose: Callable[[JsonObject, JsonObject], None]
        match kind:
            case JobKind.GENERATE:
                self.endpoint = Endpoint.COMPLETIONS if raw else Endpoint.CHAT
                self._compose = self._compose_raw if raw else self._compose_chat
                content = {"prompt": names.prompt_field, "messages": names.messages_field}
            case JobKind.EMBED:
                self.endpoint = Endpoint.EMBEDDINGS
                self._compose = self._compose_text
                content = {"text": names.text_field}
                if names.title_field is not None:
                    content["title"] = names.title_field
            case JobKind.RERANK:
                self.endpoint = Endpoint.RERANK
                self._compose = self._compose_pairs
                content = {"query": names.query_field, "documents": names.documents_field}
            case _:
                raise UsageError(f"a job of kind {kind} takes no file of requests")
        self._content = frozenset(content.values())
        self._passed_over = frozenset((*names.ignore_fields, names.id_field, "model"))
        used = Counter((names.id_field, "model", *content.values(), *names.ignore_fields))
        if twice := [name for name, count in used.items() if count > 1]:
            raise UsageError(f"field {twice[0]!r} is given two meanings")
        # What the content becomes in a body is no field of its own: "input" is not a second name for "text".
        self._parameters = PARAMETERS[self.endpoint].keys() - {"messages", "prompt", "input", "query", "documents"}
        options = " ".join(f"--{role}-field" for role in ("id", *content))
        self._hint = f"; fields are mapped with {options} and passed over with --ignore-field"

    def read(self, line: JsonObject) -> Request:
        """Check a line; raises :class:`LineRefused`."""
        body: JsonObject = {}
        for key, value in line.items():
            if key in self._content or key in self._passed_over:
                continue
            if key not in self._parameters:
                known = self._content | self._parameters | {self._names.id_field, "model"}
                raise unknown_parameter(key, known, hint=self._hint)
            body[key] = value
        custom_id = line.get(self._names.id_field)
        if custom_id is not None:
            check_custom_id(custom_id, self._names.id_field)
        self._compose(line, body)
        return Request(custom_id, self.endpoint, check_model(line.get("model")), normalise_body(self.endpoint, body))

    def _compose_chat(self, line: JsonObject, body: JsonObject) -> None:
        prompt, messages = line.get(self._names.prompt_field), line.get(self._names.messages_field)
        if prompt is not None and messages is not None:
            raise self._conflict("a line has one of them, not both")
        if messages is not None:
            body["messages"] = messages
        elif prompt is not None:
            body["messages"] = [{"role": "user", "content": _text(prompt, self._names.prompt_field)}]
        else:
            raise _missing(self._names.prompt_field, f" (or {self._names.messages_field})")

    def _compose_raw(self, line: JsonObject, body: JsonObject) -> None:
        if line.get(self._names.messages_field) is not None:
            raise self._conflict("messages need a chat template, and raw prompts go without one")
        body["prompt"] = _required(line, self._names.prompt_field)

    def _compose_text(self, line: JsonObject, body: JsonObject) -> None:
        text = _required(line, self._names.text_field)
        title = line.get(self._names.title_field) if self._names.title_field is not None else None
        if title is not None:
            title, text = _text(title, str(self._names.title_field)), _text(text, self._names.text_field)
            text = f"{title} {text}" if title and text else title or text
        body["input"] = text

    def _compose_pairs(self, line: JsonObject, body: JsonObject) -> None:
        body["query"] = _required(line, self._names.query_field)
        body["documents"] = _required(line, self._names.documents_field)

    def _conflict(self, reason: str) -> LineRefused:
        pair = f"{self._names.prompt_field} and {self._names.messages_field}"
        return LineRefused("conflicting_fields", f"{pair}: {reason}", self._names.messages_field)


def _required(line: JsonObject, field: str) -> Any:
    value = line.get(field)
    if value is None:
        raise _missing(field)
    return value


def _missing(field: str, alternative: str = "") -> LineRefused:
    return LineRefused("missing_field", f"{field}{alternative} is missing", field)


def _text(value: Any, field: str) -> str:
    if type(value) is not str:
        raise LineRefused("invalid_type", f"{field} must be a string, not {show_value(value)}", field)
    return value
