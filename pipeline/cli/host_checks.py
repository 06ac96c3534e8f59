"""What ``pipeline doctor`` looks at on this host: Python, the engine's device and BLAS, versions, space."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from pipeline.cli.context import Context
from pipeline.cli.finding import Finding, Level
from pipeline.cli.output import show_bytes
from pipeline.cli.subprocesses import worker_command, worker_environment

#: Less free space than this on the disk of ``home`` is warned of, in bytes.
_LOW_SPACE_BYTES = 2 << 30

_PACKAGES = ("mlx", "mlx-lm", "transformers", "faiss-cpu", "celery", "kombu", "sqlalchemy", "pydantic")


def check_python(context: Context) -> Iterator[Finding]:
    del context
    yield Finding("python", Level.OK, f"{platform.python_version()} on {platform.platform()}, {sys.executable}")


def check_engine(context: Context) -> Iterator[Finding]:
    described, fault = describe_engine(context)
    if described is None:
        yield Finding("engine", Level.FAIL, f"an engine cannot start here: {fault}", "pip install the package anew")
        return
    found: dict[str, Any] = described["platform"]
    memory = show_bytes(described["memory_bytes"])
    yield Finding("engine", Level.OK, f"{found.get('device', described['device'])}, {memory} of memory")
    yield judge_blas(str(found.get("blas", "unknown")))


def describe_engine(context: Context) -> tuple[dict[str, Any] | None, str]:
    """Asks a process like the one that engines run in: device, memory, the BLAS that serves MLX. None, and the fault."""
    command = worker_command(context, "inspect")
    done = subprocess.run(command, env=worker_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    described: dict[str, Any] = json.loads(done.stdout)
    return described, ""


def judge_blas(name: str) -> Finding:
    """Reference BLAS works and is ten times slower, so it is a warning."""
    if name.startswith(("openblas", "accelerate")):
        return Finding("blas", Level.OK, name)
    hint = "reinstall faiss-cpu's wheel, whose OpenBLAS is used, or apt-get install libopenblas0-pthread"
    return Finding("blas", Level.WARN, f"{name}: MLX multiplies ten times slower than with OpenBLAS", hint)


def check_versions(context: Context) -> Iterator[Finding]:
    del context
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("versions", Level.FAIL, f"{package} is not installed", "pip install the package anew")
    yield Finding("versions", Level.OK, ", ".join(f"{name} {version}" for name, version in found.items()))


def check_openmp(context: Context) -> Iterator[Finding]:
    """Two OpenMP runtimes in one process crash a Mac; here no process loads both of their owners."""
    del context
    if importlib.util.find_spec("torch") is not None:
        yield Finding(
            "openmp", Level.OK, "torch is installed and brings a second OpenMP; no process here loads it with faiss"
        )


def check_space(context: Context) -> Iterator[Finding]:
    home = context.settings.home_path
    free = shutil.disk_usage(next(path for path in (home, *home.parents) if path.exists())).free
    level = Level.WARN if free < _LOW_SPACE_BYTES else Level.OK
    yield Finding(
        "space", level, f"{show_bytes(free)} free for {home}", "free some space" if level is Level.WARN else None
    )
