"""The model that guesses, from its folder into memory: loaded, checked against the job's model, measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from pipeline.ports import JsonObject
from workers.engines.batching.budget import LaneCost
from workers.engines.batching.draft_lanes import can_rewind
from workers.engines.batching.drafter import FullModelDrafter
from workers.engines.batching.lanes import Lanes
from workers.engines.loading import LanguageModel, load_language_model
from workers.engines.vocabularies import check_same_vocabulary, vocabulary_size


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A model that may guess for another.

    Attributes:
        vocabulary: ids below this can be read and said by both models.
        end_tokens: of both models.
        weights_bytes: what it takes beside lanes.
        cost: what a row's lane takes, on top of the target's.
        can_rewind: whether its caches can take a guess back; one that cannot never guesses.
    """

    loaded: LanguageModel
    vocabulary: int
    end_tokens: frozenset[int]
    weights_bytes: int
    cost: LaneCost
    can_rewind: bool

    def proposer(
        self, most_tokens: int, acceptance: Literal["sampler_match", "stochastic"] = "sampler_match"
    ) -> FullModelDrafter:
        """One for a run. It holds the rows' lanes, and nothing else is shared between two."""
        return FullModelDrafter(
            self.loaded.model,
            vocabulary=self.vocabulary,
            most_tokens=most_tokens,
            end_tokens=self.end_tokens,
            context_length=self.loaded.context_length,
            acceptance=acceptance,
        )


def load_drafter(options: JsonObject, target: LanguageModel) -> LoadedDrafter | None:
    """The drafter that load options name (``draft_path``, ``draft_dtype``, ``draft_trust_code``), if they do.

    Raises:
        DraftIncompatible: its tokens are not the target's.
        JobError: it cannot be loaded; see `load_language_model`.
    """
    if options.get("draft_path") is None:
        return None
    loaded = load_language_model(
        Path(options["draft_path"]),
        str(options.get("draft_dtype", "auto")),
        trust_code=bool(options.get("draft_trust_code", False)),
    )
    vocabulary = min(vocabulary_size(target.model), vocabulary_size(loaded.model))
    check_same_vocabulary(target.tokenizer, loaded.tokenizer, vocabulary)
    rewinds = can_rewind(loaded.model)
    return LoadedDrafter(
        loaded,
        vocabulary,
        frozenset(target.tokenizer.eos_token_ids),
        sum(weight.nbytes for _, weight in cast(list[tuple[str, mx.array]], tree_flatten(loaded.model.parameters()))),
        _lane_cost(loaded.model) if rewinds else LaneCost(),
        rewinds,
    )


def _lane_cost(model: Any) -> LaneCost:
    lanes = Lanes(model)
    lanes.open(1)
    lanes.forward([[0]])
    mx.eval(lanes.arrays)
    lanes.advance([1])
    return lanes.cost
