"""Embedding of texts, or of a corpus."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.specs.base import BaseSpec, Endpoint, Overflow


class EmbedSpec(BaseSpec):
    """An embedding job. With ``overflow: chunk`` a long text becomes several vectors, one per passage."""

    kind: Literal["embed"] = "embed"
    endpoint: Literal[Endpoint.EMBEDDINGS] = Endpoint.EMBEDDINGS
    overflow: Overflow = Overflow.ERROR
    chunk_overlap: int = Field(default=32, ge=0, description="tokens that two neighbouring passages share")
    prompt_name: str | None = Field(default=None, description="a name in the model's own `prompts`")
    dimensions: int | None = Field(default=None, ge=1, description="keep the first n components, then normalise")
    normalize: bool | None = Field(default=None, description="None takes what the model's files state")
    batch_size: int = Field(default=32, ge=1, le=1024, description="texts in one forward")
    vectors: Literal["inline", "files"] = Field(default="files", description="inline also writes them to output.jsonl")
