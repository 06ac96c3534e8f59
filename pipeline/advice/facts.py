"""What is known before a job runs. None stands for what nobody could find out, never for none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.checkpoints.footprint import Footprint, footprint_of
from pipeline.checkpoints.weights import Device, Weights, computing_dtype, computing_size


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A checkpoint, from its small files and headers.

    Attributes:
        dtype: of most stored parameters.
        draft_kind: what a folder that drafts for another model says it is; None for an ordinary model.
    """

    name: str
    config: Mapping[str, Any]
    weights: Weights
    dtype: str
    quantization: str | None
    context_length: int | None
    has_chat_template: bool
    has_tokenizer: bool
    draft_kind: Literal["dflash", "mtp"] | None = None

    def footprint(self, device: Device, dtype: str) -> Footprint:
        """As an engine on that device holds it; ``dtype`` is the job's."""
        return footprint_of(
            self.config,
            dtype_bytes=computing_size(device, dtype, stored_dtype=self.dtype),
            weights_bytes=self.weights.computed_bytes(device, dtype, stored_dtype=self.dtype),
        )

    def computing_dtype(self, device: Device, dtype: str) -> str:
        return computing_dtype(device, dtype, stored_dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """A drafter beside the job's model; ``difference`` says where their tokenizers differ, None where nowhere."""

    model: ModelFacts
    difference: str | None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Where the job will run.

    Attributes:
        memory_bytes: of the whole host.
        budget_bytes: what the engines of one worker may hold together.
        blas: what multiplies on a CPU; None where it was not asked for.
    """

    device: Device
    memory_bytes: int
    budget_bytes: int
    slots: int = 1
    system: str = ""
    blas: str | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one number over the sample: least, median, 95th of a hundred, most."""

    least: int
    median: int
    p95: int
    most: int


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """What prompts of the sample have in common at their beginnings, in tokens.

    Attributes:
        total: tokens of all prompts.
        saved: tokens that need not be read where each beginning is read once.
        kept: tokens that beginnings shared by two or more prompts hold together.
        common: length of what all prompts begin with.
    """

    total: int
    saved: int
    kept: int
    common: int

    @property
    def share(self) -> float:
        return self.saved / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Replay:
    """Answers of an earlier job, gone through as prompt lookup would have: tokens by forwards."""

    job: str
    items: int
    tokens: int
    forwards: int

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards if self.forwards else 1.0


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """The requests, from a sample of the file.

    Attributes:
        items: lines with a request in the file; an estimate where ``items_are_estimated``.
        sampled: requests that all other figures are of.
        invalid: lines of the sample that `submit` would refuse.
        prompt_tokens: without what a chat template adds; None without a tokenizer, like all figures in tokens.
        row_tokens: prompt and most answer together.
        repeats: share of runs of three tokens that stood earlier in the same prompt.
        copy_words: share of prompts with a word such as rewrite, extract, translate: a hint and no measurement.
        greedy: share of requests at temperature 0 or top_k 1.
        choices: answers that the sampled requests ask for together.
        features: requests that use each feature.
        over_context: sampled requests whose prompt and answer do not fit the context together.
    """

    items: int
    items_are_estimated: bool
    sampled: int
    invalid: int
    prompt_chars: Spread
    prompt_tokens: Spread | None
    answer_tokens: Spread
    row_tokens: Spread | None
    shared: SharedPrefixes | None
    repeats: float | None
    copy_words: float
    greedy: float
    choices: int
    features: Mapping[str, int]
    over_context: int
    replay: Replay | None = None
