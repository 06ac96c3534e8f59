"""What a sentence encoder's own files say about turning token states into one vector, and the pooling itself.

Reads the sentence-transformers layout: `modules.json`, the pooling folder's `config.json`, `sentence_bert_config.json`,
`config_sentence_transformers.json`, `tokenizer_config.json`. A layout that would give other vectors than its authors'
is refused. Knows nothing about tokenizers or batches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import mlx.core as mx

from pipeline.errors import ModelUnsupported
from pipeline.ports import JsonObject

Pooling = Literal["cls", "mean", "max", "lasttoken"]

#: Legacy boolean of a pooling config -> mode. The value None is a mode that nothing here computes.
_LEGACY_FLAGS: dict[str, Pooling | None] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": None,
    "pooling_mode_weightedmean_tokens": None,
}

#: A text longer than this is never encoded whole, whatever the files say; tokens.
HARD_LENGTH_LIMIT = 8192

#: Tokenizers write a huge number where they know no limit; anything from here on means "none".
_NO_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class SentenceConfig:
    """The recipe that a model's files state.

    Attributes:
        pooling: how token states become one vector.
        normalize: whether the files ask for unit length.
        max_length: most tokens of one text, special tokens included.
        lowercase: the text is lowercased before it is tokenized.
        prompts: named texts to put before an input.
        default_prompt: the name used where a job names none; None for no prompt.
    """

    pooling: Pooling
    normalize: bool
    max_length: int
    lowercase: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None


def read_sentence_config(folder: Path, max_positions: int) -> SentenceConfig:
    """Read a model folder; raises ModelUnsupported for a layout that is not computed here.

    ``max_positions`` is the length of the encoder's position table. A folder that states no pooling means the mean of
    all tokens without normalisation, as sentence-transformers takes it.
    """
    pooling: Pooling = "mean"
    normalize = False
    pooling_folder: Path | None = folder / "1_Pooling"
    modules = _read_json(folder / "modules.json")
    if modules is not None:
        pooling_folder = None
        for module in cast(list[JsonObject], modules):
            kind = str(module.get("type", "")).rsplit(".", 1)[-1]
            match kind:
                case "Transformer":
                    if module.get("path"):
                        raise ModelUnsupported(f"modules.json keeps its Transformer in {module['path']!r}")
                case "Pooling":
                    pooling_folder = folder / str(module["path"])
                case "Normalize":
                    normalize = True
                case _:
                    raise ModelUnsupported(f"modules.json asks for a {kind!r} module, which is not supported")
        if pooling_folder is None:
            raise ModelUnsupported("modules.json names no Pooling module")
    if pooling_folder is not None and (config := _read_object(pooling_folder / "config.json")):
        pooling = parse_pooling(config)
    sentence = _read_object(folder / "sentence_bert_config.json")
    prompting = _read_object(folder / "config_sentence_transformers.json")
    tokenizer = _read_object(folder / "tokenizer_config.json")
    limits = [HARD_LENGTH_LIMIT, max_positions]
    if (stated := sentence.get("max_seq_length")) is not None:
        limits.append(int(stated))
    if (stated := tokenizer.get("model_max_length")) is not None and stated < _NO_LIMIT:
        limits.append(int(stated))
    prompts = {str(name): str(text) for name, text in (prompting.get("prompts") or {}).items()}
    default_prompt = prompting.get("default_prompt_name")
    if default_prompt is not None and default_prompt not in prompts:
        raise ModelUnsupported(f"default_prompt_name {default_prompt!r} is not among the model's prompts")
    return SentenceConfig(
        pooling=pooling,
        normalize=normalize,
        max_length=min(limits),
        lowercase=bool(sentence.get("do_lower_case")),
        prompts=prompts,
        default_prompt=default_prompt,
    )


def parse_pooling(config: JsonObject) -> Pooling:
    """The one mode that a pooling `config.json` asks for; raises ModelUnsupported."""
    if config.get("include_prompt", True) is False:
        raise ModelUnsupported("pooling with include_prompt = false is not supported")
    if (mode := config.get("pooling_mode")) is not None:
        if mode not in {known for known in _LEGACY_FLAGS.values() if known}:
            raise ModelUnsupported(f"pooling_mode {mode!r} is not supported")
        return cast(Pooling, mode)
    asked = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if len(asked) > 1:
        raise ModelUnsupported(f"pooling that joins several modes is not supported: {', '.join(sorted(asked))}")
    if not asked:
        return "mean"
    if (known := _LEGACY_FLAGS.get(asked[0])) is None:
        raise ModelUnsupported(f"{asked[0]} is not supported")
    return known


def pool(hidden: mx.array, lengths: mx.array, pooling: Pooling) -> mx.array:
    """Turn [B, L, D] states of right-padded rows with [B] lengths into [B, D] vectors, always in float32."""
    hidden = hidden.astype(mx.float32)
    match pooling:
        case "cls":
            return hidden[:, 0]
        case "lasttoken":
            return hidden[mx.arange(hidden.shape[0]), lengths - 1]
    is_real = (mx.arange(hidden.shape[1])[None, :] < lengths[:, None])[:, :, None]
    if pooling == "max":
        return mx.where(is_real, hidden, -mx.inf).max(axis=1)
    # `where` and not a product: a NaN beyond the row's end must not reach the sum.
    return mx.where(is_real, hidden, 0.0).sum(axis=1) / lengths[:, None]


def _read_json(path: Path) -> object | None:
    if not path.exists():
        return None
    try:
        return cast(object, json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ModelUnsupported(f"{path} is not JSON: {error}") from error


def _read_object(path: Path) -> JsonObject:
    """A JSON object; an absent file is an empty one."""
    data = _read_json(path)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ModelUnsupported(f"{path} is not a JSON object")
    return data
