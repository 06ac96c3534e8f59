"""The numeric platform: what the digits of a result may depend on beside model and input (law 6)."""

from __future__ import annotations

import ctypes
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import mlx.core as mx

from pipeline.ports import JsonObject

_LIBRARIES = ("mlx", "mlx-lm", "transformers")


def numeric_platform(dtype: str) -> JsonObject:
    """Device family, BLAS, library versions and ``dtype`` (of the computation). Compared as a whole."""
    return {
        "device": device_family(),
        "dtype": dtype,
        "blas": serving_blas(),
        **{name.replace("-", "_"): _version(name) for name in _LIBRARIES},
    }


def is_metal() -> bool:
    return mx.default_device() == mx.gpu


def device_family() -> str:
    """``metal applegpu_g14s`` on a Mac, ``cpu x86_64`` and the like elsewhere."""
    if is_metal():
        return f"metal {mx.device_info().get('architecture', 'unknown')}"
    return f"cpu {platform.machine()}"


def serving_blas() -> str:
    """The library behind the ``cblas_sgemm`` that MLX calls, with its version and kernel where it tells them.

    Names alone do not decide: numpy's wheel maps an OpenBLAS of its own whose symbols are renamed and serve nobody
    else. So the symbol is looked up as the loader does, globally first, and traced to its file.
    """
    if sys.platform == "darwin":
        return "accelerate"
    file = _file_of_symbol(ctypes.CDLL(None)) or _file_of_symbol_in_mlx()
    if file is None:
        return "unknown"
    if "openblas" not in Path(file).name:
        return Path(file).name
    library = ctypes.CDLL(file)
    words = []
    for name in ("openblas_get_config", "openblas_get_corename"):
        if function := getattr(library, name, None):
            function.restype = ctypes.c_char_p
            words.append((function() or b"").decode(errors="replace"))
    # The configuration's first two words are "OpenBLAS" and its version.
    return " ".join(["openblas", *words[0].split()[1:2], *words[1:]]) if words else "openblas"


class _SymbolInfo(ctypes.Structure):
    """``Dl_info`` of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _file_of_symbol(library: ctypes.CDLL, symbol: str = "cblas_sgemm") -> str | None:
    function = getattr(library, symbol, None)
    if function is None:
        return None
    info = _SymbolInfo()
    address = ctypes.cast(function, ctypes.c_void_p)
    if not ctypes.CDLL(None).dladdr(address, ctypes.byref(info)) or not info.file:
        return None
    return str(Path(info.file.decode()).resolve())


def _file_of_symbol_in_mlx() -> str | None:
    """Through the library MLX itself is linked to: its handle searches its dependencies too."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("/libmlx.so"):
            return _file_of_symbol(ctypes.CDLL(line.split(maxsplit=5)[5]))
    return None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
