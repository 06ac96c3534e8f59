"""What of a request's body is text: for counting tokens, whatever the endpoint."""

from __future__ import annotations

from typing import Any

from pipeline.ports import JsonObject
from pipeline.specs import GenerateSpec, JobSpec


def prompt_texts(body: JsonObject) -> list[str]:
    """All texts of a body that a model will read: messages, prompt, input, query with each of its documents."""
    texts: list[str] = []
    for message in body.get("messages", ()):
        texts.extend(_content_texts(message.get("content")))
    for key in ("prompt", "input"):
        texts.extend(_content_texts(body.get(key)))
    if "documents" in body:
        for document in body["documents"]:
            texts.append(str(body.get("query", "")))
            texts.extend(_content_texts(document))
    return texts


def output_allowance(body: JsonObject, spec: JobSpec) -> int:
    """Tokens that the answer may have; 0 for kinds that write none."""
    if not isinstance(spec, GenerateSpec):
        return 0
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    return asked if isinstance(asked, int) else spec.sampling.max_tokens


def _content_texts(content: Any) -> list[str]:
    match content:
        case str():
            return [content]
        case {"text": str(text)}:
            return [text]
        case list():
            return [text for part in content for text in _content_texts(part)]
        case _:
            return []
