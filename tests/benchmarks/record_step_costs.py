"""How long one forward of SmolLM2 takes by rows, tokens per row and context, for `bench_governor.py`.

    python -m tests.benchmarks.record_step_costs [--repeats 7] > tests/benchmarks/data/step_costs_cpu.json

float32 with OpenBLAS, batched caches of mlx-lm. The shapes are run in turn, again and again, so that a slow minute hits
them all; the medians are written, in seconds. Every row holds the same tokens, which changes no shape.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from tests.fixtures.models import make_smollm2
from workers.blas import blas_environment

WIDTHS = (1, 4, 16)
COLUMNS = (1, 2, 3, 4, 6, 8)
CONTEXTS = (128, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    relaunch_with_blas()
    json.dump(record(make_smollm2(), asked.repeats), sys.stdout, indent=1)
    print()


def relaunch_with_blas() -> None:
    """Start this script anew with a real BLAS in front of MLX's, unless it has one."""
    added = blas_environment()
    if any(os.environ.get(name) != value for name, value in added.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | added)


def record(model_path: Path, repeats: int) -> dict[str, Any]:
    import mlx.core as mx

    from workers.engines.loading import load_language_model

    model = load_language_model(model_path).model
    caches = {(width, context): filled_caches(model, width, context) for width in WIDTHS for context in CONTEXTS}
    shapes = [(width, columns, context) for width, context in caches for columns in COLUMNS]
    seconds: dict[tuple[int, int, int], list[float]] = {shape: [] for shape in shapes}
    for turn in range(repeats + 1):
        for shape in shapes:
            width, columns, context = shape
            cache = caches[width, context]
            tokens = mx.full((width, columns), 30 + turn)
            mx.eval(tokens)
            start = time.perf_counter()
            mx.eval(mx.argmax(model(tokens, cache=cache), -1))
            took = time.perf_counter() - start
            for layer in cache:
                layer.trim(columns)
            if turn:  # the first time warms up
                seconds[shape].append(took)
    return {
        "model": "SmolLM2-135M-Instruct float32",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "repeats": repeats,
        "load": round(os.getloadavg()[0], 1),
        "steps": [[*shape, round(statistics.median(took), 5)] for shape, took in seconds.items()],
    }


def filled_caches(model: Any, width: int, context: int) -> list[Any]:
    """Caches of ``width`` equal rows that hold ``context`` tokens; one row is computed, the others are copies."""
    import mlx.core as mx
    from mlx_lm.models.cache import BatchKVCache

    caches = [BatchKVCache([0]) for _ in model.layers]
    mx.eval(model(mx.array([[7 + at % 1000 for at in range(context)]]), cache=caches))
    for cache in caches:
        cache.keys, cache.values = mx.repeat(cache.keys, width, axis=0), mx.repeat(cache.values, width, axis=0)
        cache.offset, cache.left_padding = mx.repeat(cache.offset, width), mx.repeat(cache.left_padding, width)
        mx.eval(cache.keys, cache.values)
    return caches


if __name__ == "__main__":
    main()
