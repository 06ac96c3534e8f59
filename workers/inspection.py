"""What an engine on this host would run on: asked of a real child, in a fresh interpreter, as engines are."""

from __future__ import annotations

import os
import subprocess
import sys

import orjson

from pipeline.config import Settings
from pipeline.errors import ChildDied
from pipeline.ports import JsonObject
from workers.blas import blas_environment
from workers.roles import Role

_PROGRAM = (
    "import orjson, sys; from workers.engines.platform import {name}; sys.stdout.buffer.write(orjson.dumps({name}()))"
)

#: Seconds a child may take to import mlx and answer.
TIMEOUT_S = 120.0


def inspect_host(settings: Settings) -> JsonObject:
    """Device, BLAS and versions as a child sees them, and this process's role; raises ChildDied."""
    role = Role.of(settings)
    program = _PROGRAM.format(name="describe_platform")
    environ = os.environ | blas_environment()
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise ChildDied(f"an engine process cannot start here: {done.stderr.decode(errors='replace').strip()[-500:]}")
    described: JsonObject = orjson.loads(done.stdout)
    return {"device": role.device, "memory_bytes": role.memory_bytes, "platform": described}
