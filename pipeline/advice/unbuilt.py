"""Ways of going faster that this version has not got: whether the model's files would allow them."""

from __future__ import annotations

from pipeline.advice.facts import DraftFacts, ModelFacts
from pipeline.advice.lines import NO_GAIN, Mechanism, Possible, Room
from pipeline.checkpoints.config_keys import Keys
from pipeline.checkpoints.footprint import Footprint


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
    """Tensors of a head that guesses several tokens: under ``mtp``, or as layers behind the last one."""
    layers = Keys(model.config).get("num_hidden_layers")
    behind = f"layers.{layers}."
    return any("mtp." in name or behind in name for name in model.weights.names)


def dflash(draft: DraftFacts | None) -> Mechanism:
    if draft is not None and draft.model.draft_kind == "dflash":
        return _not_built("DFlash drafter", "yes", f"{draft.model.name} is one")
    return _not_built(
        "DFlash drafter", "no" if draft else "unknown", "needs a drafter made for this model; none is named"
    )


def diffusion(model: ModelFacts) -> Mechanism:
    family = str(model.config["model_type"])
    if family.startswith(("llada", "diffusion")):
        return _not_built("block diffusion", "yes", f"the family is {family}")
    return _not_built("block diffusion", "no", f"{family} predicts one token after the other")


def kv_quantization(footprint: Footprint, room: Room) -> Mechanism:
    name = "KV quantization"
    if footprint.smallest_window is not None or not footprint.token_bytes:
        return _not_built(name, "no", "mlx-lm quantizes caches over all tokens only; this model has others")
    saved = None
    if room.row_tokens is not None:
        bits = 8 + 2 * 8 * footprint.dtype_bytes / 64  # 8 bits, and scale and bias for every 64 numbers
        kept = footprint.batch_bytes(max(1, room.width), room.row_tokens)
        saved = -round(kept * (1 - bits / (8 * footprint.dtype_bytes)))
    return _not_built(name, "yes", "would change answers; figure for 8 bits", memory_bytes=saved)


def _not_built(name: str, possible: Possible, why: str, *, memory_bytes: int | None = None) -> Mechanism:
    return Mechanism(name, possible, "no", memory_bytes, NO_GAIN, f"not built yet; {why}")
