"""Bulk generation: chat or plain completions."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from pipeline.errors import ContractConflict
from pipeline.specs.base import BaseSpec, Endpoint, Frozen, ModelRef
from pipeline.specs.contract import Contract


class SamplingDefaults(Frozen):
    """Sampling values for items that bring none of their own. ``temperature`` 0 is greedy."""

    max_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0, description="0 keeps every token")
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=2.0, description="1 penalises nothing")
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)


class LookupOptions(Frozen):
    """Prompt lookup: guesses are what followed the same few tokens earlier in the row's own text."""

    ngram_max: int = Field(default=3, ge=1, le=16)
    ngram_min: int = Field(default=2, ge=1, le=16)
    max_draft: int = Field(default=7, ge=1, le=64, description="most tokens guessed at once")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.ngram_min > self.ngram_max:
            raise ValueError("ngram_min must not be above ngram_max")
        return self


class DraftOptions(Frozen):
    """A smaller model with the same vocabulary guesses; the job's model decides."""

    model: ModelRef
    tokens: int = Field(default=4, ge=1, le=64, description="most tokens guessed at once")
    acceptance: Literal["sampler_match", "stochastic"] = Field(
        default="sampler_match",
        description="stochastic keeps the distribution but not the seeded stream",
    )


class GenerateSpec(BaseSpec):
    """A generation job.

    ``accelerate`` says who guesses tokens ahead: ``auto`` measures what is allowed and keeps what is faster, ``off``
    decodes token by token, ``lookup`` and ``draft`` use that one throughout. None of them changes an answer.
    """

    kind: Literal["generate"] = "generate"
    endpoint: Literal[Endpoint.CHAT, Endpoint.COMPLETIONS] = Endpoint.CHAT
    sampling: SamplingDefaults = SamplingDefaults()
    width: int = Field(default=16, ge=1, le=256, description="most rows decoded together")
    accelerate: Literal["auto", "off", "lookup", "draft"] = Field(
        default="auto", description="who guesses tokens ahead"
    )
    lookup: LookupOptions = LookupOptions()
    draft: DraftOptions | None = None
    overflow: Literal["error", "truncate_left", "truncate_middle"] = Field(
        default="error", description="what happens to a prompt that is too long for the context"
    )
    prefix_cache: bool = Field(default=True, description="compute a prompt prefix that rows share once")
    report_cache: bool = Field(default=False, description="say cached tokens in answers; they depend on the run")
    contract: Contract | None = None
    shard_tokens: int = Field(default=16_384, gt=0, description="token budget of a shard, prompt and answer")

    @model_validator(mode="after")
    def _has_what_it_uses(self) -> Self:
        if self.accelerate == "draft" and self.draft is None:
            raise ValueError("accelerate: draft needs draft: with a model")
        return self

    @model_validator(mode="after")
    def _promises_what_it_can_keep(self) -> Self:
        if not self.is_seed_stable and self.contract is not None and self.contract.correctness == "greedy_identical":
            raise PydanticCustomError(
                ContractConflict.code,
                "draft.acceptance: stochastic keeps the distribution and not the seeded stream: "
                "contract.correctness must be distribution_preserving or weaker, or acceptance: sampler_match",
            )
        return self

    @property
    def drafter(self) -> DraftOptions | None:
        """The model that guesses, where the job lets it."""
        return self.draft if self.accelerate in ("auto", "draft") else None

    @property
    def is_seed_stable(self) -> bool:
        """Whether an item's seed alone decides its answer."""
        return self.drafter is None or self.drafter.acceptance != "stochastic"

    @property
    def terms(self) -> Contract:
        """The contract that holds, where the spec has none: the strictest that its options can keep."""
        if self.contract is not None:
            return self.contract
        return Contract(correctness="greedy_identical" if self.is_seed_stable else "distribution_preserving")
