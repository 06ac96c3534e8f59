"""Facts about a host, without starting an engine on it."""

from __future__ import annotations

import platform
import sys

import psutil

from pipeline.advice.facts import HostFacts
from pipeline.checkpoints.weights import Device
from pipeline.config import Settings


def this_device() -> Device:
    """The family of device that an engine here runs on."""
    return "metal" if sys.platform == "darwin" and platform.machine() == "arm64" else "cpu"


def host_facts(
    settings: Settings, *, device: Device | None = None, memory_bytes: int | None = None, blas: str | None = None
) -> HostFacts:
    """This host; or one of another device or memory, whose budget then follows from that memory."""
    total = memory_bytes or psutil.virtual_memory().total
    if memory_bytes is not None:  # another host, on which these settings' bytes are nobody's
        settings = settings.model_copy(update={"memory_budget_bytes": None})
    return HostFacts(
        device=device or this_device(),
        memory_bytes=total,
        budget_bytes=settings.engine_budget_bytes(total),
        slots=settings.slots,
        system=f"{sys.platform} {platform.machine()}" if device in (None, this_device()) else "",
        blas=blas,
    )
