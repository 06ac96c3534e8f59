"""A language model from a folder into memory, in the type the device computes well in. Knows nothing about prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import dequantize_model, load_config, load_model, load_tokenizer

from pipeline.errors import ModelNotFound, ModelNotTrusted, ModelUnsupported
from workers.engines.platform import is_metal

_DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
_TRUST_HINT = "read its .py files, then add the model's name to `trusted_models` in the settings of each worker"
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A loaded model.

    Attributes:
        dtype: what it computes in, as ``float32``.
        quantization: bits of the packed weights, None for plain ones.
        dequantized: packed weights were unpacked at load, because the device is slow at them.
        context_length: most tokens of prompt and answer together; None where the files do not say.
    """

    model: Any
    tokenizer: TokenizerWrapper
    config: dict[str, Any]
    dtype: str
    quantization: int | None
    dequantized: bool
    context_length: int | None


def load_language_model(path: Path, dtype: str = "auto", *, trust_code: bool = False) -> LanguageModel:
    """Load a checkpoint of a family that mlx-lm knows; the checkpoint's own code runs with ``trust_code`` only.

    ``auto`` is the checkpoint's own type on Metal. On a CPU it is float32, with packed weights unpacked: the other
    types are several times slower there.

    Raises:
        ModelNotFound: the folder or one of its files is missing.
        ModelUnsupported: no family of that name, or weights that do not fit it.
        ModelNotTrusted: it cannot be loaded without running code of its own.
    """
    config = _read_config(path)
    if not any(path.glob("model*.safetensors")):
        raise ModelNotFound(f"{path} has no weights (model*.safetensors)")
    if "model_file" in config and not trust_code:
        raise ModelNotTrusted(f"{path.name} brings its own code", hint=_TRUST_HINT)
    try:
        model, config = load_model(path, lazy=True, trust_remote_code=trust_code)
    except ValueError as error:
        raise ModelUnsupported(f"{path.name}: {_first_line(error)}") from error
    except (KeyError, TypeError) as error:
        raise ModelUnsupported(f"{path.name}: config.json does not fit {config['model_type']}: {error}") from error

    quantization = next((module.bits for _, module in model.named_modules() if hasattr(module, "bits")), None)
    target = None if is_metal() and dtype == "auto" else _DTYPES["float32" if dtype == "auto" else dtype]
    if target is not None:
        model.set_dtype(target)  # the scales first, so that unpacking does not round to their stored type
    dequantized = quantization is not None and not is_metal()
    if dequantized:
        model = dequantize_model(model)
    mx.eval(model.parameters())
    return LanguageModel(
        model=model,
        tokenizer=_load_tokenizer(path, config, trust_code),
        config=config,
        dtype=_computing_dtype(model),
        quantization=quantization,
        dequantized=dequantized,
        context_length=context_length(config),
    )


def context_length(config: dict[str, Any]) -> int | None:
    """Most positions the configuration allows; None where it does not say."""
    stated = (_text_config(config).get(key) for key in _CONTEXT_KEYS)
    return next((value for value in stated if isinstance(value, int)), None)


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    nested = config.get("text_config")
    return {**nested, **config} if isinstance(nested, dict) else config


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise ModelNotFound(f"{path} is no folder")
    try:
        config = load_config(path)
    except FileNotFoundError:
        raise ModelNotFound(f"{path} has no config.json") from None
    except ValueError as error:
        raise ModelUnsupported(f"cannot be read: {error}", place=str(path / "config.json")) from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelUnsupported("config.json has no model_type", place=str(path))
    return config


def _load_tokenizer(path: Path, config: dict[str, Any], trust_code: bool) -> TokenizerWrapper:
    if not (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
        raise ModelNotFound(f"{path} has no tokenizer")
    try:
        load: Any = load_tokenizer  # has no types
        return cast(
            TokenizerWrapper, load(path, {"trust_remote_code": trust_code}, eos_token_ids=config.get("eos_token_id"))
        )
    except Exception as error:  # transformers and the Rust side raise many kinds
        if "trust_remote_code" in str(error):
            raise ModelNotTrusted(f"the tokenizer of {path.name} is code of its own", hint=_TRUST_HINT) from error
        raise ModelUnsupported(f"the tokenizer cannot be read: {_first_line(error)}", place=str(path)) from error


def _computing_dtype(model: Any) -> str:
    """The type of most floating parameters; scales of packed weights are in the type they compute in."""
    sizes: dict[str, int] = {}
    for _, parameter in cast(list[tuple[str, mx.array]], tree_flatten(model.parameters())):
        if mx.issubdtype(parameter.dtype, mx.floating):
            name = str(parameter.dtype).removeprefix("mlx.core.")
            sizes[name] = sizes.get(name, 0) + parameter.size
    return max(sizes, key=lambda name: sizes[name])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
