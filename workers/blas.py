"""Which BLAS a child should start with. Knows nothing about MLX and imports nothing heavy.

MLX's Linux wheel is linked against reference BLAS, ten times slower than OpenBLAS. An OpenBLAS that is loaded first
serves its calls instead, and faiss-cpu's Linux wheel carries one with plain symbol names.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

#: OpenBLAS kernels for every x86 with AVX2. An OpenBLAS older than the processor does not know it and falls back to
#: SSE3, a third of the speed; and one kernel for all hosts means one numeric platform.
_KERNELS = "Haswell"


def blas_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables to add to a child's environment so that a real BLAS serves it.

    Empty on macOS (Accelerate and Metal serve), and where no OpenBLAS was found. What the caller's environment
    preloads already stays, behind ours; kernels and waiting stay as the caller set them.

    Threads that wait must sleep: while they spin, two children on one machine starve each other (4 times slower).
    """
    environ = os.environ if environ is None else environ
    if sys.platform != "linux":
        return {}
    library = find_openblas()
    if library is None:
        return {}
    variables = {
        "LD_PRELOAD": _prepend(str(library), environ.get("LD_PRELOAD")),
        "LD_LIBRARY_PATH": _prepend(str(library.parent), environ.get("LD_LIBRARY_PATH")),
    }
    chosen = {"OMP_WAIT_POLICY": "PASSIVE"}
    if _has_avx2():
        chosen["OPENBLAS_CORETYPE"] = _KERNELS
    return variables | {name: value for name, value in chosen.items() if name not in environ}


def find_openblas() -> Path | None:
    """The OpenBLAS inside faiss-cpu's wheel, or a system's own; None without either."""
    spec = importlib.util.find_spec("faiss")
    if spec is not None and spec.origin is not None:
        bundled = sorted((Path(spec.origin).parent.parent / "faiss_cpu.libs").glob("libopenblas*.so*"))
        if bundled:
            return bundled[0]
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"):
        for variant in ("openblas-pthread/libopenblas.so.0", "libopenblas.so.0"):
            if (library := Path(folder) / variant).is_file():
                return library
    return None


def _has_avx2() -> bool:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return {"avx2", "fma"} <= set(flags)


def _prepend(first: str, rest: str | None) -> str:
    parts = [part for part in (rest or "").split(":") if part and part != first]
    return ":".join([first, *parts])
