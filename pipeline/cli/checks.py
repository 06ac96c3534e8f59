"""What ``pipeline doctor`` looks at, one function a subject. A check tells what it found and never raises."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pipeline.cli.context import Context
from pipeline.cli.output import count_of, show_bytes
from pipeline.cli.subprocesses import worker_command, worker_environment
from pipeline.errors import PipelineError

#: Less free space than this on the disk of ``home`` is warned of, in bytes.
_LOW_SPACE_BYTES = 2 << 30

_PACKAGES = ("mlx", "mlx-lm", "transformers", "faiss-cpu", "celery", "kombu", "sqlalchemy", "pydantic")


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``hint`` says what to do."""

    subject: str
    level: Level
    text: str
    hint: str | None = None


def run_checks(context: Context) -> Iterator[Finding]:
    """All findings, each as soon as it is known."""
    for check in (
        _python,
        _settings,
        _database,
        _store,
        _broker,
        _workers,
        _engine,
        _models,
        _versions,
        _openmp,
        _space,
    ):
        yield from _guarded(check, context)


def _guarded(check: Callable[[Context], Iterator[Finding]], context: Context) -> Iterator[Finding]:
    try:
        yield from check(context)
    except PipelineError as error:
        yield Finding(check.__name__.strip("_"), Level.FAIL, str(error), error.hint)


def _python(context: Context) -> Iterator[Finding]:
    del context
    yield Finding("python", Level.OK, f"{platform.python_version()} on {platform.platform()}, {sys.executable}")


def _settings(context: Context) -> Iterator[Finding]:
    changed = [name for name, origin in context.loaded.origins.items() if origin != "default"]
    yield Finding("settings", Level.OK, f"home {context.settings.home_path}; set: {', '.join(changed) or 'nothing'}")


def _database(context: Context) -> Iterator[Finding]:
    from pipeline.config import mask_secrets
    from pipeline.db import migrate

    url = context.settings.resolved_database_url
    with context.deployment():
        revision = migrate.current(url)
    yield Finding("database", Level.OK, f"{mask_secrets(url)}, schema {revision}")


def _store(context: Context) -> Iterator[Finding]:
    from pipeline.store import layout

    with context.deployment() as deployment:  # refuses a store of another database
        probe = deployment.store.put_bytes(f"{layout.store_marker()}.doctor", b"doctor")
        deployment.store.delete(probe.uri)
        yield Finding("store", Level.OK, f"{deployment.store.url}, writable, belongs to the database")


def _broker(context: Context) -> Iterator[Finding]:
    from pipeline.config import mask_secrets

    with context.deployment() as deployment:
        deployment.doorbell.check()
    yield Finding("broker", Level.OK, f"{mask_secrets(context.settings.resolved_broker_url)} answers")


def _workers(context: Context) -> Iterator[Finding]:
    from pipeline.jobs.status import live_workers

    with context.deployment() as deployment:
        workers = live_workers(deployment)
    if not workers:
        yield Finding("workers", Level.WARN, "none is live", "pipeline up")
    for worker in workers:
        yield Finding("worker", Level.OK, f"{worker.host} pid {worker.pid}: {','.join(worker.queues)}; {worker.device}")


def _engine(context: Context) -> Iterator[Finding]:
    """Asks a process like the one that engines run in: device, memory, the BLAS that serves MLX."""
    command = worker_command(context, "inspect")
    done = subprocess.run(command, env=worker_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        yield Finding("engine", Level.FAIL, f"an engine cannot start here: {last}", "pip install the package anew")
        return
    described: dict[str, Any] = json.loads(done.stdout)
    found: dict[str, Any] = described["platform"]
    memory = show_bytes(described["memory_bytes"])
    yield Finding("engine", Level.OK, f"{found.get('device', described['device'])}, {memory} of memory")
    yield judge_blas(str(found.get("blas", "unknown")))


def judge_blas(name: str) -> Finding:
    """Reference BLAS works and is ten times slower, so it is a warning."""
    if name.startswith(("openblas", "accelerate")):
        return Finding("blas", Level.OK, name)
    hint = "reinstall faiss-cpu's wheel, whose OpenBLAS is used, or apt-get install libopenblas0-pthread"
    return Finding("blas", Level.WARN, f"{name}: MLX multiplies ten times slower than with OpenBLAS", hint)


def _models(context: Context) -> Iterator[Finding]:
    from pipeline.cli.models import known_models

    names = [name for name, origin, _ in known_models(context.settings) if "not set up" not in origin]
    if names:
        yield Finding("models", Level.OK, f"{count_of(len(names), 'name')}: {', '.join(names)}")
    else:
        yield Finding("models", Level.WARN, "no names; folders can be used as they are", "see `pipeline models --help`")


def _versions(context: Context) -> Iterator[Finding]:
    del context
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("versions", Level.FAIL, f"{package} is not installed", "pip install the package anew")
    yield Finding("versions", Level.OK, ", ".join(f"{name} {version}" for name, version in found.items()))


def _openmp(context: Context) -> Iterator[Finding]:
    """Two OpenMP runtimes in one process crash a Mac; here no process loads both of their owners."""
    del context
    if importlib.util.find_spec("torch") is not None:
        yield Finding(
            "openmp", Level.OK, "torch is installed and brings a second OpenMP; no process here loads it with faiss"
        )


def _space(context: Context) -> Iterator[Finding]:
    home = context.settings.home_path
    free = shutil.disk_usage(next(path for path in (home, *home.parents) if path.exists())).free
    level = Level.WARN if free < _LOW_SPACE_BYTES else Level.OK
    yield Finding(
        "space", level, f"{show_bytes(free)} free for {home}", "free some space" if level is Level.WARN else None
    )
