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


def process_stats() -> JsonObject:
    """``rss_bytes`` and ``peak_rss_bytes``; MLX's own memory where MLX is loaded."""
    stats: JsonObject = {"rss_bytes": psutil.Process().memory_info().rss, "peak_rss_bytes": peak_rss_bytes()}
    if mx := sys.modules.get("mlx.core"):
        stats |= {
            "mlx_active_bytes": mx.get_active_memory(),
            "mlx_peak_bytes": mx.get_peak_memory(),
            "mlx_cache_bytes": mx.get_cache_memory(),
        }
    return stats
