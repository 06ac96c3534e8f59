"""Facts about a host, without starting an engine on it."""

from __future__ import annotations

import platform
import sys

import psutil

from pipeline.advice.facts import HostFacts
from pipeline.checkpoints.weights import Device
from pipeline.config import Settings

#: Of a host's memory, what engines may hold where the settings do not say.
BUDGET_SHARE = 0.6


def this_device() -> Device:
    """The family of device that an engine here runs on."""
    return "metal" if sys.platform == "darwin" and platform.machine() == "arm64" else "cpu"


def host_facts(
    settings: Settings, *, device: Device | None = None, memory_bytes: int | None = None, blas: str | None = None
) -> HostFacts:
    """This host; or one of another device or memory, whose budget then follows from that memory."""
    total = memory_bytes or psutil.virtual_memory().total
    stated = settings.memory_budget_bytes if memory_bytes is None else None
    return HostFacts(
        device=device or this_device(),
        memory_bytes=total,
        budget_bytes=stated or int(total * BUDGET_SHARE),
        slots=settings.slots,
        system=f"{sys.platform} {platform.machine()}" if device in (None, this_device()) else "",
        blas=blas,
    )
