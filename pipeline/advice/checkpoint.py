"""Facts about a checkpoint, and whether another may draft for it. Reads small files and headers, never weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pipeline.advice.facts import DraftFacts, ModelFacts
from pipeline.checkpoints.describe import describe
from pipeline.checkpoints.files import read_json
from pipeline.checkpoints.weights import read_weights
from pipeline.errors import ModelUnsupported

_DFLASH_CLASSES = frozenset({"DFlashDraftModel", "Lfm2DSparkDraftModel", "DFlashLagunaForCausalLM"})
_MTP_TYPES = ("_mtp", "_assistant")

#: Parts of a tokenizer that decide which ids a text has, beside its vocabulary.
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def read_model(path: Path, name: str) -> ModelFacts:
    """Raises ModelNotFound, ModelUnsupported (also for a model that writes no text)."""
    found = describe(path)
    if found.is_fake:
        raise ModelUnsupported(f"{name} is the fake engine's: it has no weights to plan for")
    if found.kind != "generator":
        raise ModelUnsupported(f"{name} is of kind {found.kind} ({found.model_type}); advice is for generators")
    config = read_json(path / "config.json")
    return ModelFacts(
        name=name,
        config=config,
        weights=read_weights(path, config),
        dtype=found.dtype,
        quantization=found.quantization,
        context_length=found.context_length,
        has_chat_template=found.has_chat_template,
        has_tokenizer=(path / "tokenizer.json").is_file(),
        draft_kind=_draft_kind(config),
    )


def read_draft(path: Path, name: str, target: Path) -> DraftFacts:
    """A drafter and how its tokenizer differs from the target's. Raises what :func:`read_model` raises."""
    model = read_model(path, name)
    difference = None if model.draft_kind else tokenizer_difference(target, path)
    return DraftFacts(model, difference)


def tokenizer_difference(target: Path, draft: Path) -> str | None:
    """The first difference that could give a text other ids, in words; None where the files say the same."""
    mine, theirs = (read_json(folder / "tokenizer.json") for folder in (target, draft))
    for name, data in (("the job's model", mine), ("the drafter", theirs)):
        if not isinstance(data, dict):
            return f"{name} has no tokenizer.json to compare"
    one, two = _vocabulary(mine), _vocabulary(theirs)
    if one != two:
        odd = sorted(token for token in one.keys() | two.keys() if one.get(token) != two.get(token))
        return f"{len(odd):,} tokens are in one alone or have another id, such as {odd[0]!r}"
    if (mine.get("model") or {}).get("merges") != (theirs.get("model") or {}).get("merges"):
        return "the merges differ"
    return next((f"the {part} differs" for part in _PARTS if mine.get(part) != theirs.get(part)), None)


def _vocabulary(tokenizer: dict[str, Any]) -> dict[str, int]:
    """Token to id, added tokens included."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab")
    if isinstance(vocabulary, list):  # unigram: (token, score), the place is the id
        vocabulary = {str(entry[0]): place for place, entry in enumerate(vocabulary)}
    added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens") or ()}
    return {**(vocabulary or {}), **added}


def _draft_kind(config: dict[str, Any]) -> Literal["dflash", "mtp"] | None:
    """Known by what the files hold: a DFlash drafter's ``model_type`` is that of an ordinary model."""
    classes = set(config.get("architectures") or ())
    if isinstance(config.get("dflash_config"), dict) or classes & _DFLASH_CLASSES:
        return "dflash"
    if "muse_glimmer_assistant" in (config["model_type"], *classes):
        return "dflash"
    return "mtp" if config["model_type"].endswith(_MTP_TYPES) else None
