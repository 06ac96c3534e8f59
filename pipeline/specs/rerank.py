"""Reranking of documents against a query."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.specs.base import BaseSpec, Endpoint, Overflow


class RerankSpec(BaseSpec):
    """A rerank job: the model answers yes or no, the score is the probability of yes."""

    kind: Literal["rerank"] = "rerank"
    endpoint: Literal[Endpoint.RERANK] = Endpoint.RERANK
    instruction: str | None = None
    overflow: Literal[Overflow.ERROR, Overflow.TRUNCATE] = Overflow.TRUNCATE
    batch_size: int = Field(default=8, ge=1, le=256, description="query-document pairs in one forward")
