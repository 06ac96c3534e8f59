"""The Celery app of a worker process, and the service its tasks ring."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import celeryd_init

from pipeline.config import Settings
from pipeline.errors import ConfigError
from pipeline.jobs.dispatch import celery_options
from pipeline.jobs.service import WorkerService

#: Why no other pool will do; said to whoever asks for one.
POOL_REASON = (
    "a worker needs the thread pool: a process forked after MLX was used hangs, and on a Mac it aborts. "
    "Start workers with `pipeline worker`"
)

app = Celery("pipeline", set_as_current=False)

_service: WorkerService | None = None


def install(settings: Settings, service: WorkerService) -> Celery:
    """Give the tasks their service and the app its broker; before the worker starts."""
    global _service
    _service = service
    app.conf.update(celery_options(settings))
    return app


def service() -> WorkerService:
    """The service of this process; raises ConfigError where the worker was not started by ``pipeline worker``."""
    if _service is None:
        raise ConfigError("this Celery worker has no service", hint=POOL_REASON)
    return _service


@celeryd_init.connect(weak=False)  # type: ignore[untyped-decorator]
def refuse_command(instance: Any = None, options: dict[str, Any] | None = None, **_: Any) -> None:
    """``celery worker`` forks by default and has no service in any case; stop it before it does either."""
    pool = (options or {}).get("pool") or getattr(instance, "pool_cls", None)
    if "thread" not in f"{pool} {getattr(pool, '__module__', '')}":
        raise SystemExit(f"pool {pool!s} refused: {POOL_REASON}")
    raise SystemExit("`celery worker` starts no engine service: start workers with `pipeline worker`")
