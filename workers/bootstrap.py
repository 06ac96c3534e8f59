"""A worker process: its service, its threads and, with a broker, its Celery consumer. Never imports mlx."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from pipeline import collector
from pipeline.config import Settings
from pipeline.errors import NotFound, TransientError
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.service import WorkerService
from workers.consumer import DoorbellConsumer
from workers.power import PowerAssertion
from workers.process import kill_children
from workers.roles import Role
from workers.warm import WarmHost, WarmPool

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
        self._closed = threading.Event()
        self._power = PowerAssertion(enabled=settings.keep_awake)
        pool = WarmPool(settings, host_bytes=self.role.memory_bytes)
        self.service = WorkerService(
            self._deployment,
            [WarmHost(pool) for _ in range(self.role.slots)],
            worker_id=self.role.worker_id,
            queues=self.role.queues,
            device=self.role.device,
            memory_bytes=self.role.memory_bytes,
            only_job=only_job,
            awake=self._power.hold,
        )
        self._ticker = threading.Thread(target=self._tick, name="tick", daemon=True)
        self._slots = [
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
        consumer.start()
        try:
            self._run(self._stop.wait)
        finally:
            consumer.stop()

    def serve_until(self, job_id: str) -> None:
        """Work without a broker until a job has ended; raises NotFound."""
        with self._deployment.database.read() as uow:
            if uow.jobs.get(job_id) is None:
                raise NotFound(f"no job {job_id}")
        self._run(lambda: self._wait_for(job_id))

    def _wait_for(self, job_id: str) -> None:
        while not self._stop.wait(UNTIL_POLL_S):
            try:
                with self._deployment.database.read() as uow:
                    job = uow.jobs.get(job_id)
            except TransientError as error:
                log.warning("job_not_read", extra={"job": job_id, "reason": str(error)})
                continue
            if job is None or job.status.is_terminal:
                return

    def _run(self, wait: Callable[[], object]) -> None:
        """Work until ``wait`` returns; then give back what is held, in the order that lets nothing start again."""
        collector.release()
        for thread in (self._ticker, *self._slots):
            thread.start()
        log.info("worker_started", extra={"worker": self.role.worker_id, "queues": ",".join(self.role.queues)})
        try:
            with Signals(self.stop):
                wait()
        finally:
            self._stop.set()
            self.service.close()
            self._closed.set()
            self._ticker.join()
            for thread in self._slots:
                thread.join(timeout=1.0)
            self._power.close()
            self._deployment.close()
            log.info("worker_stopped", extra={"worker": self.role.worker_id})

    def stop(self) -> None:
        """Begin to drain; ``_run`` does the rest."""
        self.service.drain()
        self._stop.set()

    def _tick(self) -> None:
        """Also while the service drains: what does not beat would be taken for dead."""
        while not self._closed.is_set():
            started = time.monotonic()
            self.service.tick()
            self._closed.wait(max(0.05, self._settings.reconcile_s - (time.monotonic() - started)))


class Signals:
    """SIGTERM and SIGINT drain; a second one kills the engines and leaves now, and others take back what was leased."""

    def __init__(self, drain: Callable[[], None]) -> None:
        self._drain = drain
        self._asked = False

    def __enter__(self) -> Signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """The handlers stay: a second signal during the drain must still be heard."""

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._asked:
            # No lock, no log, no clean-up: this thread may hold anything, and whoever asks twice does not want to wait.
            kill_children()
            os._exit(128 + number)
        self._asked = True
        # Not here: a handler runs on the main thread, between any two steps, and may find a lock taken.
        threading.Thread(target=self._drain, name="drain", daemon=True).start()
