"""The headers of safetensors files: names, types and sizes of tensors. Reads no weights."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ModelUnsupported

#: A longer header is no header.
_MAX_HEADER_BYTES = 100 << 20


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One stored tensor; ``dtype`` in safetensors' words (``F32``, ``BF16``, ``U32``)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)


def read_header(file: Path) -> Iterator[TensorHeader]:
    """The tensors of one file, in the header's order. Raises ModelUnsupported."""
    try:
        with file.open("rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            if size > _MAX_HEADER_BYTES:
                raise ValueError("header too long")
            header = json.loads(stream.read(size))
        for name, tensor in header.items():
            if name != "__metadata__":
                start, end = tensor["data_offsets"]
                yield TensorHeader(name, tensor["dtype"], tuple(tensor["shape"]), end - start)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelUnsupported(f"is not a safetensors file: {error}", place=str(file)) from None
