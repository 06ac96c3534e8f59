"""Bulk generation: chat or plain completions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.specs.base import BaseSpec, Endpoint, Frozen


class SamplingDefaults(Frozen):
    """Sampling values for items that bring none of their own. ``temperature`` 0 is greedy."""

    max_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0, description="0 keeps every token")
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)


class GenerateSpec(BaseSpec):
    """A generation job."""

    kind: Literal["generate"] = "generate"
    endpoint: Literal[Endpoint.CHAT, Endpoint.COMPLETIONS] = Endpoint.CHAT
    sampling: SamplingDefaults = SamplingDefaults()
    width: int = Field(default=16, ge=1, le=256, description="most rows decoded together")
    shard_tokens: int = Field(default=16_384, gt=0, description="token budget of a shard, prompt and answer")
