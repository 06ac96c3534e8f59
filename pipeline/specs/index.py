"""Building a FAISS index from the vectors of embed jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.specs.base import Frozen


class IndexSpec(Frozen):
    """An index job. One item: the build. ``name`` is the alias that moves to the new version when it is proven."""

    kind: Literal["index"] = "index"
    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    sources: tuple[str, ...] = Field(min_length=1, description="ids of embed jobs, all of one space")
    factory: Literal["Flat"] = Field(default="Flat", description="FAISS factory string")
    metric: Literal["ip", "l2"] = "ip"
    recall_queries: int = Field(default=100, ge=0, description="vectors held as queries to measure recall with")
    recall_k: int = Field(default=10, ge=1)
