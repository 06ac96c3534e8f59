"""What a worker process is: which queues, how many slots, on what device and with how much memory."""

from __future__ import annotations

import platform
import sys
import uuid
from dataclasses import dataclass, field

import psutil

from pipeline.config import Settings
from pipeline.jobs.service import CONTROL_THREADS


@dataclass(frozen=True, slots=True)
class Role:
    """One worker process. ``worker_id`` is new with each start: it owns leases (law 2)."""

    queues: tuple[str, ...]
    slots: int
    device: str
    memory_bytes: int
    worker_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def of(cls, settings: Settings) -> Role:
        return cls(settings.queues, settings.slots, device_name(), psutil.virtual_memory().total)

    @property
    def concurrency(self) -> int:
        """Celery's threads: one a slot, and two kept for control so that an hour-long shard delays no planning."""
        return self.slots + CONTROL_THREADS


def device_name() -> str:
    """The device family a child will run on, without importing mlx here."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "metal"
    return "cpu"
