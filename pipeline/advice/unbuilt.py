"""Ways of going faster that this version has not got: whether the model's files would allow them."""

from __future__ import annotations

from pipeline.advice.facts import DraftFacts, ModelFacts
from pipeline.advice.lines import NO_GAIN, Mechanism, Possible, Room
from pipeline.checkpoints.config_keys import Keys, MissingKey
from pipeline.checkpoints.footprint import Footprint

#: Numbers that share a scale, as mlx-lm quantizes caches.
QUANTIZATION_GROUP = 64


def mtp(model: ModelFacts, draft: DraftFacts | None) -> Mechanism:
    name = "MTP head"
    if draft is not None and draft.model.draft_kind == "mtp":
        return _not_built(name, "yes", f"{draft.model.name} is one")
    if has_mtp(model):
        return _not_built(name, "yes", "the checkpoint holds the head's tensors")
    if any(Keys(model.config).get(key) for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers")):
        return _not_built(
            name, "no", "config.json speaks of one, the files hold no such tensors: conversions drop them"
        )
    return _not_built(name, "no", "the files hold no such tensors")


def has_mtp(model: ModelFacts) -> bool:
    """Tensors of a head that guesses several tokens: under ``mtp``, or in the layers behind the last one."""
    keys = Keys(model.config)
    behind = f"layers.{keys.get('num_hidden_layers')}." if keys.get("num_nextn_predict_layers") else None
    return any("mtp." in name or (behind is not None and behind in name) for name in model.weights.names)


def dflash(draft: DraftFacts | None) -> Mechanism:
    if draft is not None and draft.model.draft_kind == "dflash":
        return _not_built("DFlash drafter", "yes", f"{draft.model.name} is one")
    if draft is not None:
        return _not_built("DFlash drafter", "no", f"{draft.model.name} is none")
    return _not_built("DFlash drafter", "unknown", "needs a drafter made for this model; none is named")


def diffusion(model: ModelFacts) -> Mechanism:
    family = str(model.config["model_type"])
    if family.startswith(("llada", "diffusion")):
        return _not_built("block diffusion", "yes", f"the family is {family}")
    return _not_built("block diffusion", "no", f"{family} predicts one token after the other")


def kv_quantization(model: ModelFacts, footprint: Footprint, room: Room) -> Mechanism:
    name = "KV quantization"
    if footprint.smallest_window is not None or not footprint.token_bytes:
        return _not_built(name, "no", "mlx-lm quantizes caches over all tokens only; this model has others")
    if (width := _vector_width(model)) % QUANTIZATION_GROUP:
        return _not_built(name, "no", f"groups of {QUANTIZATION_GROUP} numbers do not divide vectors of {width}")
    saved = None
    if room.row_tokens is not None:
        bits = 8 + 2 * 8 * footprint.dtype_bytes / QUANTIZATION_GROUP  # scale and bias of a group
        kept = max(1, room.width) * (footprint.row_bytes(room.row_tokens) - footprint.state_bytes)
        saved = -round(kept * (1 - bits / (8 * footprint.dtype_bytes)))
    return _not_built(name, "yes", "would change answers; figure for 8 bits", memory_bytes=saved)


def _vector_width(model: ModelFacts) -> int:
    """Of one cached key; 0 where no file states it."""
    keys = Keys(model.config)
    try:
        return keys.number("kv_lora_rank") if keys.get("kv_lora_rank") else keys.head_dim
    except (MissingKey, ArithmeticError):
        return 0


def _not_built(name: str, possible: Possible, why: str, *, memory_bytes: int | None = None) -> Mechanism:
    return Mechanism(name, possible, "no", memory_bytes, NO_GAIN, f"not built yet; {why}")
