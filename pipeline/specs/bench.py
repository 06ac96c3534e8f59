"""A benchmark as it is handed to the process that holds the model: one checkpoint, some requests, several arms."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from pipeline.specs.base import Dtype, Frozen

#: What an arm may show off. An arm that is there for one of them and never used it is compared with nothing.
Mechanism = Literal["prefix_cache", "lookup", "draft", "governor"]

#: The arm that is mlx-lm's own batch call.
LIBRARY_ARM = "mlx_lm"


class BenchSection(Frozen):
    """What a job's spec file may say under ``bench``; an option of the command goes before it."""

    arms: tuple[str, ...] = Field(default=("plain", "auto", LIBRARY_ARM), min_length=1)
    baseline: str | None = Field(default=None, description="the arm that ratios are against; none is the first")
    items: int = Field(default=64, ge=1, description="so many requests from the beginning of the input")
    repeat: int = Field(default=3, ge=1, le=100, description="measured runs of each arm")


class BenchArm(Frozen):
    """One way of answering the requests.

    ``options`` are those of a run of our engine; of mlx-lm only ``endpoint``, ``sampling`` and ``width`` count.
    At least one of ``uses`` must be seen at work, none of ``without`` may be.
    """

    name: str = Field(min_length=1)
    runner: Literal["engine", "mlx_lm"] = "engine"
    options: dict[str, Any]
    uses: tuple[Mechanism, ...] = ()
    without: tuple[Mechanism, ...] = ()


class BenchItem(Frozen):
    """One request: a chat or completion body, and the seed of its noise."""

    custom_id: str
    body: dict[str, Any]
    seed: int = 0


class BenchRequest(Frozen):
    """All that a benchmark is.

    Attributes:
        load_options: those of the engine; the model is loaded once, for all arms.
        baseline: name of the arm that ratios are against.
        repeat: measured runs of each arm.
        warm_up_items: so many of the first items go through each arm before anything is measured.
    """

    title: str
    model_name: str
    model_path: str
    model_digest: str | None = None
    dtype: Dtype = "auto"
    trust_code: bool = False
    load_options: dict[str, Any] = {}
    arms: tuple[BenchArm, ...] = Field(min_length=1)
    baseline: str
    items: tuple[BenchItem, ...] = Field(min_length=1)
    repeat: int = Field(default=3, ge=1, le=100)
    warm_up_items: int = Field(default=4, ge=0)

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError("two arms have one name")
        if self.baseline not in names:
            raise ValueError(f"the baseline {self.baseline!r} is none of the arms {', '.join(names)}")
        return self
