"""What an engine on this host would run on: asked of a real child, in a fresh interpreter, as engines are."""

from __future__ import annotations

import os
import subprocess
import sys

import orjson

from pipeline.config import Settings
from pipeline.errors import ChildDied
from pipeline.ports import JsonObject
from pipeline.secrecy import without_secrets
from workers.blas import blas_environment
from workers.roles import Role

#: Run in the interpreter that is asked; ``auto`` says nothing of a model's own dtype.
_PROGRAM = """
import sys
import orjson
from workers.engines.platform import numeric_platform
sys.stdout.buffer.write(orjson.dumps(numeric_platform("auto")))
"""

#: Seconds a child may take to import mlx and answer.
TIMEOUT_S = 120.0


def inspect_host(settings: Settings) -> JsonObject:
    """Device, BLAS and versions as a child sees them, and this process's role; raises ChildDied."""
    role = Role.of(settings)
    environ = without_secrets(os.environ) | blas_environment()
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environ, capture_output=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise ChildDied(f"an engine process cannot start here: {done.stderr.decode(errors='replace').strip()[-500:]}")
    described: JsonObject = orjson.loads(done.stdout)
    return {"device": role.device, "memory_bytes": role.memory_bytes, "platform": described}
