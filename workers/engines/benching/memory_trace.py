"""Resident memory of this process while something runs: sampled by a thread, with the kernel's own peak beside it."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import mlx.core as mx
import psutil

from workers.engines.benching.runs import MemoryUse
from workers.engines.memory import peak_rss_bytes

#: Seconds between two samples.
SAMPLE_S = 0.05

#: Samples that are kept of a run; of those that fall together the largest stays.
KEPT_SAMPLES = 160

#: Writing 5 here makes Linux forget a process's peak (proc(5)); elsewhere the peak is the process's so far.
_CLEAR_REFS = Path("/proc/self/clear_refs")


class MemoryTrace:
    """Measures the block it is around; starts from caches that are empty, and samples once more at the end."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._samples: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> Self:
        gc.collect()
        mx.clear_cache()
        mx.reset_peak_memory()
        self._is_reset = _forget_peak()
        self._start = time.monotonic()
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def use(self) -> MemoryUse:
        """What was seen; call it after the block."""
        maxrss = peak_rss_bytes()
        sizes = [size for _, size in self._samples]
        return MemoryUse(
            resident=_thinned(self._samples),
            at_start=sizes[0],
            peak=max(sizes),
            ru_maxrss=maxrss,
            is_maxrss_of_run=self._is_reset,
            mlx_peak=mx.get_peak_memory(),
        )

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        self._samples.append((time.monotonic() - self._start, self._process.memory_info().rss))


def _forget_peak() -> bool:
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def _thinned(samples: list[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """At most ``KEPT_SAMPLES``, each the largest of its stretch of the run."""
    size = -(-len(samples) // KEPT_SAMPLES)
    stretches = [samples[at : at + size] for at in range(0, len(samples), size)]
    return tuple(max(stretch, key=lambda sample: sample[1]) for stretch in stretches)
