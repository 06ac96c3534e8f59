"""A worker process: its service, its threads and, with a broker, its Celery consumer. Never imports mlx."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from pipeline.config import Settings
from pipeline.errors import NotFound
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.service import WorkerService
from workers.consumer import DoorbellConsumer
from workers.roles import Role
from workers.supervisor import Supervisor

log = logging.getLogger(__name__)

#: How often a worker that works for one job looks whether it has ended, in seconds.
UNTIL_POLL_S = 0.2


class WorkerProcess:
    """Everything a worker process runs, in one place to start and to stop."""

    def __init__(self, settings: Settings, *, only_job: str | None = None) -> None:
        """``only_job`` serves one job and leaves the others alone."""
        self._settings = settings
        self.role = Role.of(settings)
        self._deployment = Deployment.open(settings)
        self._stop = threading.Event()
        self.service = WorkerService(
            self._deployment,
            [Supervisor(settings) for _ in range(self.role.slots)],
            worker_id=self.role.worker_id,
            queues=self.role.queues,
            device=self.role.device,
            memory_bytes=self.role.memory_bytes,
            only_job=only_job,
        )
        self._threads = [threading.Thread(target=self._tick, name="tick", daemon=True)]
        self._threads += [
            threading.Thread(target=self.service.look, name=f"slot-{number}", daemon=True)
            for number in range(self.role.slots)
        ]

    def serve(self) -> None:
        """Consume doorbells until a signal; returns when everything is given back."""
        import tasks.job
        import tasks.shard  # noqa: F401  (registers the task)
        from tasks.app import install

        app = install(self._settings, self.service)
        consumer = DoorbellConsumer(app, self.role, log_level=self._settings.log_level)
        self._run(consumer.run, consumer.stop)

    def serve_until(self, job_id: str) -> None:
        """Work without a broker until a job has ended; raises NotFound."""
        with self._deployment.database.read() as uow:
            if uow.jobs.get(job_id) is None:
                raise NotFound(f"no job {job_id}")

        def wait() -> None:
            while not self._stop.wait(UNTIL_POLL_S):
                with self._deployment.database.read() as uow:
                    job = uow.jobs.get(job_id)
                if job is None or job.status.is_terminal:
                    return

        self._run(wait, lambda: None)

    def _run(self, body: Callable[[], None], stop: Callable[[], None]) -> None:
        signals = Signals(self, stop)
        for thread in self._threads:
            thread.start()
        log.info("worker_started", extra={"worker": self.role.worker_id, "queues": ",".join(self.role.queues)})
        try:
            with signals:
                body()
        finally:
            self._stop.set()
            self.service.close()
            for thread in self._threads:
                thread.join(timeout=5.0)
            self._deployment.close()
            log.info("worker_stopped", extra={"worker": self.role.worker_id})

    def stop(self) -> None:
        self._stop.set()
        self.service.drain()

    def _tick(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            self.service.tick()
            self._stop.wait(max(0.05, self._settings.reconcile_s - (time.monotonic() - started)))


class Signals:
    """SIGTERM and SIGINT drain; a second one leaves at once, and what was leased is taken back by others."""

    def __init__(self, process: WorkerProcess, stop: Callable[[], None]) -> None:
        self._process = process
        self._stop = stop
        self._asked = False

    def __enter__(self) -> Signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._asked:
            os._exit(128 + number)
        self._asked = True
        threading.Thread(target=self._drain, name="drain", daemon=True).start()

    def _drain(self) -> None:
        self._process.stop()
        self._stop()
