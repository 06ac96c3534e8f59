"""Listening to doorbells for as long as the process lives, whatever arrives. Knows Celery and nothing of the work."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any

from workers.roles import Role

log = logging.getLogger(__name__)

#: Seconds between the end of a consumer and the start of the next.
RESTART_S = 0.5

#: Seconds a consumer may take to stop, before the process goes on without it.
STOP_S = 5.0


class DoorbellConsumer:
    """A Celery worker in a thread of this process, started again when it ends by itself.

    A message that cannot be read ends Celery's consumer (kombu parses Redis' bytes outside of any guard). Whoever can
    write to the broker could so end every worker; here the next consumer follows, and the slots look by themselves in
    the meantime. The thread is a daemon: one that waits for a broker that is away holds nobody up.
    """

    def __init__(self, app: Any, role: Role, *, log_level: str) -> None:
        self._app = app
        self._role = role
        self._log_level = log_level
        self._stopped = threading.Event()
        self._worker: Any = None
        self._thread = threading.Thread(target=self._consume, name="doorbells", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the consumer, within ``STOP_S``; safe from any thread."""
        self._stopped.set()
        deadline = time.monotonic() + STOP_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._worker is not None:
                self._worker.stop()  # does nothing before the worker runs, so it is said again
            self._thread.join(timeout=0.5)

    def _consume(self) -> None:
        while not self._stopped.is_set():
            self._worker = self._make()
            try:
                self._worker.start()
            except Exception as error:  # noqa: BLE001  (the doorbell may break in any way; the slots go on)
                log.warning("consumer_failed", extra={"reason": f"{type(error).__name__}: {error}"})
            if not self._stopped.wait(RESTART_S):
                log.warning("consumer_restarted")

    def _make(self) -> Any:
        """The controller, not the command's Worker: signals stay ours."""
        return self._app.WorkController(
            pool="threads",
            consumer_cls="tasks.screening:ScreenedConsumer",
            concurrency=self._role.concurrency,
            queues=list(self._role.queues),
            hostname=f"{self._role.worker_id[:12]}@{socket.gethostname()}",
            loglevel=self._log_level.upper(),
            without_mingle=True,
            without_gossip=True,
            without_heartbeat=True,
        )
