"""What a checkpoint's small files say of it, without loading it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.checkpoints.files import model_files, read_json
from pipeline.checkpoints.headers import read_header
from pipeline.errors import ModelUnsupported

ModelKind = Literal["generator", "embedder", "reranker"]

_ENCODERS = frozenset({"bert", "xlm-roberta", "modernbert", "siglip"})
_ENCODER_CLASSES = frozenset(
    {
        "BertModel",
        "XLMRobertaModel",
        "ModernBertModel",
        "SiglipModel",
        "SiglipTextModel",
        "LlamaBidirectionalModel",
        "LlamaNemotronVLModel",
        "Lfm2BidirectionalModel",
        "ColIdefics3",
        "ColQwen2_5",
        "ColQwen2ForRetrieval",
    }
)
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

#: ``model_type`` of a folder that holds no model and is served by ``workers.engines.fake``.
FAKE_MODEL_TYPE = "pipeline_fake"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the files state.

    Attributes:
        kind: a guess from the configuration; a generative reranker looks like, and is called, a generator.
        dtype: of most of the unpacked parameters.
        quantization: ``4-bit, group 32`` and the like; None for plain weights.
        parameter_bytes: all tensors as stored.
        context_length: most tokens, None where the files do not say.
        pooling: what ``1_Pooling`` states; None without one.
    """

    path: Path
    model_type: str
    kind: ModelKind
    dtype: str
    quantization: str | None
    parameter_bytes: int
    context_length: int | None
    vocabulary: int | None
    has_chat_template: bool
    pooling: str | None

    @property
    def is_fake(self) -> bool:
        """A folder that asks for the fake engine: for testing the plumbing, never for answers."""
        return self.model_type == FAKE_MODEL_TYPE


def describe(path: Path) -> Checkpoint:
    """Read a checkpoint's small files and headers. Raises ModelNotFound, ModelUnsupported."""
    weights = [file for file in model_files(path) if file.suffix == ".safetensors"]
    config = read_json(path / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelUnsupported("config.json has no model_type", place=str(path))
    text_config = config["text_config"] if isinstance(config.get("text_config"), dict) else {}
    merged = {**text_config, **{key: value for key, value in config.items() if value is not None}}
    bytes_by_type: Counter[str] = Counter()
    for file in weights:
        for tensor in read_header(file):
            bytes_by_type[tensor.dtype] += tensor.nbytes
    floats = [(size, _DTYPES[name]) for name, size in bytes_by_type.items() if name in _DTYPES]
    return Checkpoint(
        path=path,
        model_type=config["model_type"],
        kind=_guess_kind(path, config),
        dtype=max(floats)[1] if floats else "unknown",
        quantization=_quantization(merged),
        parameter_bytes=sum(bytes_by_type.values()),
        context_length=next((merged[key] for key in _CONTEXT_KEYS if isinstance(merged.get(key), int)), None),
        vocabulary=merged.get("vocab_size"),
        has_chat_template=_has_chat_template(path),
        pooling=_pooling(path),
    )


def _guess_kind(path: Path, config: dict[str, Any]) -> ModelKind:
    architecture = (config.get("architectures") or [""])[0]
    modules = read_json(path / "modules.json", default=[])
    types = [str(module.get("type", "")) for module in modules]
    if architecture.endswith("ForSequenceClassification") or any(name.endswith(".LogitScore") for name in types):
        return "reranker"
    has_pooling = any(name.endswith(".Pooling") for name in types) or (path / "1_Pooling" / "config.json").is_file()
    bidirectional = architecture == "Gemma3TextModel" and config.get("use_bidirectional_attention")
    bidirectional = bidirectional or (architecture == "Ministral3Model" and config.get("is_causal") is False)
    if config["model_type"] in _ENCODERS or architecture in _ENCODER_CLASSES or has_pooling or bidirectional:
        return "embedder"
    return "generator"


def _quantization(config: dict[str, Any]) -> str | None:
    stated = config.get("quantization") or config.get("quantization_config")
    if not isinstance(stated, dict):
        return None
    method = stated.get("mode") or stated.get("quant_method")
    words = [str(method)] if method and method != "affine" else []
    if isinstance(stated.get("bits"), int):
        words.append(f"{stated['bits']}-bit")
    if isinstance(stated.get("group_size"), int):
        words.append(f"group {stated['group_size']}")
    return ", ".join(words) or "unnamed"


def _has_chat_template(path: Path) -> bool:
    if (path / "chat_template.jinja").is_file() or (path / "chat_template.json").is_file():
        return True
    return bool(read_json(path / "tokenizer_config.json", default={}).get("chat_template"))


def _pooling(path: Path) -> str | None:
    stated = read_json(path / "1_Pooling" / "config.json")
    if not isinstance(stated, dict):
        return None
    if isinstance(stated.get("pooling_mode"), str):
        return str(stated["pooling_mode"])
    return "+".join(word for flag, word in _POOLING_FLAGS.items() if stated.get(flag)) or "mean"
