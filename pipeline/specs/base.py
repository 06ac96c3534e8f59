"""What every kind of job has in common."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline.errors import ContractConflict, SpecError


class JobKind(StrEnum):
    """The kinds of job; each has the queue of its name."""

    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"
    INDEX = "index"


class Endpoint(StrEnum):
    """What one request line asks for, in OpenAI Batch words (rerank as Jina and Cohere spell it)."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"


class Overflow(StrEnum):
    """What happens to a text longer than the model takes; every use is counted."""

    ERROR = "error"
    TRUNCATE = "truncate"
    CHUNK = "chunk"


Dtype = Literal["auto", "float32", "float16", "bfloat16"]


class Frozen(BaseModel):
    """A value: no unknown keys, no change after it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelRef(Frozen):
    """Which model a job wants. ``name`` is what the user wrote; ``digest`` pins the files that answered to it."""

    name: str = Field(min_length=1)
    digest: str | None = None
    dtype: Dtype = "auto"


class BaseSpec(Frozen):
    """Fields of every job that runs a model over a file of items."""

    model: ModelRef
    seed: int = Field(default=0, description="job seed; an item's own seed comes from it and the custom_id")
    shard_tokens: int = Field(default=65_536, gt=0, description="token budget of a shard")
    shard_items: int = Field(default=4_096, gt=0, description="most items in a shard")


def refusal(kind: str) -> type[SpecError]:
    """The error for what pydantic calls ``kind``: a code of ours where a spec's own check raised it."""
    return ContractConflict if kind == ContractConflict.code else SpecError
