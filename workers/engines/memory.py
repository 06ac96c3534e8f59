"""What this process holds of the machine's memory. Imports no MLX: it only asks the one that is loaded already."""

from __future__ import annotations

import resource
import sys

import psutil

from pipeline.ports import JsonObject


def peak_rss_bytes() -> int:
    """Largest resident size so far; Linux counts ``ru_maxrss`` in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def held_bytes() -> int:
    """What this process holds of the host's memory now.

    The resident size; on a Mac no less than what MLX has allocated, for buffers that only the GPU touches may not be in it.
    """
    resident = int(psutil.Process().memory_info().rss)
    if sys.platform == "darwin" and (mx := sys.modules.get("mlx.core")):
        return max(resident, int(mx.get_active_memory() + mx.get_cache_memory()))
    return resident


def limit_memory(limit_bytes: int) -> None:
    """Make this process err, or end, where it would otherwise take more than ``limit_bytes`` from the host.

    Linux counts what a process maps for itself and not files it reads; macOS has no such limit, MLX's own stands there.
    """
    has_limits = sys.platform == "linux"
    if has_limits:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
        return
    import mlx.core as mx

    mx.set_memory_limit(limit_bytes)
    mx.set_cache_limit(0)


def process_stats() -> JsonObject:
    """``rss_bytes`` and ``peak_rss_bytes``; MLX's own memory where MLX is loaded."""
    stats: JsonObject = {"rss_bytes": held_bytes(), "peak_rss_bytes": peak_rss_bytes()}
    if mx := sys.modules.get("mlx.core"):
        stats |= {
            "mlx_active_bytes": mx.get_active_memory(),
            "mlx_peak_bytes": mx.get_peak_memory(),
            "mlx_cache_bytes": mx.get_cache_memory(),
        }
    return stats
