"""What a rerank item asks for and how its answer is written. Knows nothing about models or prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pipeline.errors import InvalidValue, ItemError, UnsupportedParameter
from pipeline.ports import Answer, JsonObject
from pipeline.specs import Overflow
from pipeline.specs.base import Frozen

_BODY_KEYS = frozenset({"model", "query", "documents", "top_n", "return_documents", "user"})


class RerankOptions(Frozen):
    """What a job says about reranking; the same for load and run."""

    model_name: str = ""
    instruction: str | None = None
    overflow: Literal[Overflow.ERROR, Overflow.TRUNCATE] = Overflow.TRUNCATE
    batch_size: int = Field(default=8, ge=1)


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """An item's body, read. ``top_n`` None keeps all."""

    query: str
    documents: tuple[str, ...]
    top_n: int | None
    return_documents: bool


def parse_body(body: JsonObject) -> RerankRequest:
    """Read an item's body; a null asks for nothing. Raises an ItemError naming the parameter."""
    for name, value in body.items():
        if name not in _BODY_KEYS and value is not None:
            raise UnsupportedParameter(f"reranking does not support the parameter {name!r}", param=name)
    for name in ("query", "documents"):
        if body.get(name) is None:
            raise ItemError(f"{name} is missing", code="missing_field", param=name)
    documents = body["documents"]
    if not isinstance(documents, list) or not documents:
        raise InvalidValue("documents must be a list that is not empty", param="documents")
    top_n = body.get("top_n")
    if top_n is not None and (not isinstance(top_n, int) or isinstance(top_n, bool) or top_n < 1):
        raise InvalidValue(f"top_n must be a whole number of at least 1, not {top_n!r}", param="top_n")
    return_documents = body.get("return_documents")
    if not isinstance(return_documents, bool | None):
        raise InvalidValue(
            f"return_documents must be true or false, not {return_documents!r}", param="return_documents"
        )
    return RerankRequest(
        query=_text(body["query"], "query"),
        documents=tuple(_document(document, place) for place, document in enumerate(documents)),
        top_n=top_n,
        return_documents=bool(return_documents),
    )


def _document(document: object, place: int) -> str:
    if isinstance(document, dict):
        if extra := sorted(map(str, document.keys() - {"text"})):
            raise UnsupportedParameter(f"a document is a text; {extra[0]!r} is not supported", param="documents")
        document = document.get("text")
    return _text(document, "documents", f"documents[{place}]")


def _text(value: object, param: str, name: str | None = None) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidValue(f"{name or param} must be a text that is not empty", param=param)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"{name or param} holds a lone surrogate and is not Unicode text"
        raise InvalidValue(message, param=param) from error
    return value


def rank(scores: Sequence[float], top_n: int | None) -> list[int]:
    """Places of the best scores, best first, ties by place."""
    return sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:top_n]


def rerank_answer(
    index: int, request: RerankRequest, scores: Sequence[float], tokens: int, options: RerankOptions
) -> Answer:
    """The answer in the shape Jina and Cohere give it; ``tokens`` are those of all pairs."""
    results: list[JsonObject] = []
    for place in rank(scores, request.top_n):
        result: JsonObject = {"index": place, "relevance_score": scores[place]}
        if request.return_documents:
            result["document"] = {"text": request.documents[place]}
        results.append(result)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    body = {"object": "list", "model": options.model_name, "results": results, "usage": usage}
    return Answer(index=index, body=body, usage=usage)
