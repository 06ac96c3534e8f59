"""From a loaded model to a machine: probed, its bounds set, its memory measured."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import psutil

from pipeline.errors import ModelUnsupported
from workers.engines.batching.budget import PREFIX_SHARE, LaneCost, MemoryBudget
from workers.engines.batching.canonical import CHUNK_TOKENS, Bounds, CanonicalPass, one_row
from workers.engines.batching.lanes import Lanes, SingleLane
from workers.engines.batching.machine import Machine
from workers.engines.batching.prefixes import PrefixStore
from workers.engines.batching.probing import PROBE_TEXTS, ProbeResult, probe_decoding
from workers.engines.batching.reading import PREFILL_TOKENS
from workers.engines.batching.routers import RouterWatch
from workers.engines.loading import LanguageModel
from workers.engines.memory import held_bytes
from workers.engines.vocabularies import vocabulary_size

#: Of the host's memory, what one child may hold where nobody sets a ceiling.
HOST_SHARE = 0.75

#: Shared prefixes take no more than so many bytes.
PREFIX_BYTES = 2 << 30

#: Where more than this share of choices is too close to call, canonical passes would cost more than batches save.
CLOSE_SHARE = 0.02

#: What MLX may keep of freed memory.
CACHE_BYTES = 256 << 20


def build_machine(loaded: LanguageModel, ceiling_bytes: int | None) -> tuple[Machine, ProbeResult]:
    """Probe a model and measure what its rows take; raises ModelUnsupported when it cannot even decode one row."""
    model, config = loaded.model, loaded.config
    limit = min(ceiling_bytes or int(psutil.virtual_memory().total * HOST_SHARE), psutil.virtual_memory().total)
    bounds, routers = Bounds(loaded.dtype), RouterWatch(model, config, Bounds(loaded.dtype))
    texts = [text for text in map(loaded.tokenizer.encode, PROBE_TEXTS) if text]
    before = mx.set_cache_limit(0)  # a child on trial has a limit already
    mx.set_cache_limit(min(before, CACHE_BYTES, limit // 16))
    try:
        probe = probe_decoding(model, texts, loaded.dtype, bounds, routers)
        # Rows that go alone have bounds of their own to learn.
        alone = probe if probe.passed else probe_decoding(model, texts[-1:], loaded.dtype, bounds, routers)
        cost, forward_bytes = _measure(model)
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelUnsupported(f"this model cannot be decoded: {error}") from error
    mx.clear_cache()
    heads = next((config[key] for key in ("num_attention_heads", "n_head") if isinstance(config.get(key), int)), 32)
    machine = Machine(
        model=model,
        dtype=loaded.dtype,
        end_tokens=frozenset(loaded.tokenizer.eos_token_ids),
        vocabulary=vocabulary_size(model),
        canonical=CanonicalPass(model),
        bounds=bounds,
        routers=routers,
        prefixes=PrefixStore(min(PREFIX_BYTES, int(limit * PREFIX_SHARE))),
        budget=MemoryBudget(limit, held_bytes(), cost, forward_bytes, heads * PREFILL_TOKENS * 8),
        is_exact=_is_exact(model, alone, routers),
        width_limit=None if probe.passed else 1,
    )
    return machine, probe


def _is_exact(model: Any, probe: ProbeResult, routers: RouterWatch) -> bool:
    """Whether close choices can be decided canonically: they are few, and close picks of experts are seen and mended."""
    lanes = one_row(model)
    if isinstance(lanes, SingleLane):  # no mechanism works there, so that there is one way to decode
        return True
    return (
        probe.passed
        and probe.close_share <= CLOSE_SHARE
        and (not routers.is_needed or (routers.is_watching and lanes.can_rewind))
    )


def _measure(model: Any) -> tuple[LaneCost, int]:
    """What lanes take, and what the largest forward takes beside them: that of a chunk, in proportion to its tokens."""
    lanes = one_row(model)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    logits = lanes.forward([[0] * CHUNK_TOKENS])
    mx.eval(logits, lanes.arrays)
    lanes.advance([CHUNK_TOKENS])
    taken = max(0, mx.get_peak_memory() - before - lanes.nbytes)
    cost = lanes.cost if isinstance(lanes, Lanes) else LaneCost(per_token=lanes.nbytes // CHUNK_TOKENS)
    return cost, taken * PREFILL_TOKENS // CHUNK_TOKENS
