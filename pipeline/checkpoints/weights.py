"""How much a checkpoint's weights take: as stored, and as a device computes with them. From headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.checkpoints.files import model_files
from pipeline.checkpoints.headers import TensorHeader, read_header

Device = Literal["metal", "cpu"]

_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}

#: Types whose tensors are converted to what the device computes in.
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class Weights:
    """Sums over all tensors of the checkpoint's own folder, those of parts that no engine loads included.

    Attributes:
        stored_bytes: as they lie in the files.
        floats: numbers of unpacked parameters, scales of packed ones not among them.
        packed: numbers that packed tensors hold.
        packed_bytes: packed tensors with their scales, as stored.
        names: of all tensors.
    """

    stored_bytes: int
    floats: int
    packed: int
    packed_bytes: int
    names: frozenset[str]

    def computed_bytes(self, device: Device, dtype: str, *, stored_dtype: str) -> int:
        """In memory while the engine works. A CPU computes in float32 unless told otherwise, and unpacks."""
        size = computing_size(device, dtype, stored_dtype=stored_dtype)
        packed = self.packed_bytes if device == "metal" else self.packed * size
        return self.floats * size + packed


def computing_size(device: Device, dtype: str, *, stored_dtype: str) -> int:
    """Bytes of a number as computed; ``dtype`` is the job's, ``auto`` the device's choice."""
    return _SIZES.get(computing_dtype(device, dtype, stored_dtype=stored_dtype), 4)


def computing_dtype(device: Device, dtype: str, *, stored_dtype: str) -> str:
    """As :func:`workers.engines.loading.load_language_model` decides."""
    if dtype != "auto":
        return dtype
    return stored_dtype if device == "metal" else "float32"


def read_weights(path: Path, config: Mapping[str, Any]) -> Weights:
    """Raises ModelNotFound, ModelUnsupported."""
    files = [file for file in model_files(path) if file.suffix == ".safetensors" and file.parent == path]
    tensors = {tensor.name: tensor for file in files for tensor in read_header(file)}
    bits = _Bits(config)
    floats = packed = packed_bytes = stored = 0
    for tensor in tensors.values():
        stored += tensor.nbytes
        stem = tensor.name.removesuffix(".weight").removesuffix(".scales").removesuffix(".biases")
        is_packed = f"{stem}.scales" in tensors and tensors.get(f"{stem}.weight", tensor).dtype == "U32"
        if is_packed:
            packed_bytes += tensor.nbytes
            packed += _unpacked(tensor, bits.of(stem)) if tensor.name == f"{stem}.weight" else 0
        elif tensor.dtype in _FLOATS:
            floats += tensor.numbers
    return Weights(stored, floats, packed, packed_bytes, frozenset(tensors))


class _Bits:
    """How many bits a layer's packed numbers have: its own, else the checkpoint's."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        stated = config.get("quantization") or config.get("quantization_config")
        self._stated: Mapping[str, Any] = stated if isinstance(stated, dict) else {}

    def of(self, name: str) -> int:
        own = self._stated.get(name)
        bits = own.get("bits") if isinstance(own, dict) else self._stated.get("bits")
        return bits if type(bits) is int and bits > 0 else 4


def _unpacked(tensor: TensorHeader, bits: int) -> int:
    return tensor.numbers * 32 // bits
