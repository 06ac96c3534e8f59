"""What an embedding item asks for and how its answer is written. Knows nothing about models: numbers come as bytes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from pipeline.errors import InvalidValue, ItemError, UnsupportedParameter
from pipeline.ports import Answer, JsonObject, VectorRow
from pipeline.specs import Overflow
from pipeline.specs.base import Frozen
from workers.engines.chunking import Passage

_BODY_KEYS = frozenset({"model", "input", "dimensions", "encoding_format", "user"})


class EmbedOptions(Frozen):
    """What a job says about embedding; the same for load and run."""

    model_name: str = ""
    overflow: Overflow = Overflow.ERROR
    chunk_overlap: int = Field(default=32, ge=0)
    prompt_name: str | None = None
    dimensions: int | None = Field(default=None, ge=1)
    normalize: bool | None = None
    batch_size: int = Field(default=32, ge=1)
    inline: bool = False

    def makes_space_of(self, other: EmbedOptions) -> bool:
        """Whether both describe one embedding space; names, batches and output form do not matter to it."""
        free: dict[str, Any] = {"model_name": "", "batch_size": 1, "inline": False}
        return self.model_copy(update=free) == other.model_copy(update=free)


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """An item's body, read: its texts, and how inline vectors are written."""

    texts: tuple[str, ...]
    encoding: Literal["float", "base64"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A passage and the place of its text in the item's input."""

    text: int
    passage: Passage


def parse_body(body: JsonObject, dimension: int) -> EmbedRequest:
    """Read an item's body; raises an ItemError naming the parameter.

    A null asks for nothing. ``dimension`` is that of the job's vectors: they are all of one space, so an item may only
    repeat it.
    """
    for name, value in body.items():
        if name not in _BODY_KEYS and value is not None:
            raise UnsupportedParameter(f"embedding does not support the parameter {name!r}", param=name)
    if (given := body.get("input")) is None:
        raise ItemError("input is missing", code="missing_field", param="input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidValue("input must be a string or a list of strings that is not empty", param="input")
    if (encoding := body.get("encoding_format")) not in (None, "float", "base64"):
        raise InvalidValue(f"encoding_format must be float or base64, not {encoding!r}", param="encoding_format")
    if body.get("dimensions") not in (None, dimension):
        raise InvalidValue(
            f"dimensions is {body['dimensions']!r} in this item and {dimension} in its job", param="dimensions"
        )
    return EmbedRequest(tuple(texts), "base64" if encoding == "base64" else "float")


def embed_answer(
    index: int,
    request: EmbedRequest,
    pieces: Sequence[Piece],
    vectors: npt.NDArray[np.float32],
    norms: Sequence[float],
    options: EmbedOptions,
) -> Answer:
    """The answer in the shape of OpenAI's embedding list.

    ``vectors`` is [len(pieces), dimension]; ``norms`` are lengths before normalisation. Without ``inline`` the list
    says where each vector comes from instead of its numbers; a chunked job's list says both.
    """
    data: list[JsonObject] = []
    rows: list[VectorRow] = []
    for ordinal, (piece, vector, norm) in enumerate(zip(pieces, vectors, norms, strict=True)):
        passage = piece.passage
        entry: JsonObject = {"object": "embedding", "index": ordinal}
        if not options.inline or options.overflow is Overflow.CHUNK:
            entry |= {
                "input": piece.text,
                "start": passage.start,
                "end": passage.end,
                "tokens": len(passage.ids),
            }
        if passage.truncated:
            entry["truncated"] = True
        if options.inline:
            entry["embedding"] = _encode_vector(vector, request.encoding)
        data.append(entry)
        rows.append(
            VectorRow(
                item=index,
                ordinal=ordinal,
                norm=norm,
                tokens=len(passage.ids),
                truncated=passage.truncated,
                start=passage.start,
                end=passage.end,
                text_hash=passage.text_hash,
            )
        )
    tokens = sum(row.tokens for row in rows)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Answer(
        index=index,
        body={"object": "list", "model": options.model_name, "data": data, "usage": usage},
        usage=usage,
        rows=tuple(rows),
        dimension=vectors.shape[1],
        vectors=vectors.astype("<f4").tobytes(),
    )


def _encode_vector(vector: npt.NDArray[np.float32], encoding: Literal["float", "base64"]) -> object:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return vector.tolist()
