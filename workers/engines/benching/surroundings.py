"""What a figure was measured on: the machine, the versions, the numeric platform."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from pipeline import __version__
from pipeline.ports import JsonObject
from workers.engines.platform import device_family

_PACKAGES = ("mlx", "mlx-cpu", "mlx-metal", "mlx-lm", "transformers", "tokenizers", "numpy")


def machine() -> JsonObject:
    """Processor, cores, memory, operating system, device, and how busy the machine was just now."""
    memory = psutil.virtual_memory()
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "threads": len(os.sched_getaffinity(0)) if sys.platform == "linux" else psutil.cpu_count(),
        "memory_bytes": memory.total,
        "memory_free_bytes": memory.available,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "device": device_family(),
        "load_1_min": round(os.getloadavg()[0], 2),
    }


def versions() -> JsonObject:
    """Of Python, this project and the libraries that decide speed and digits; what is not installed is left out."""
    found: JsonObject = {"python": platform.python_version(), "mac-batch-pipeline": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
