"""Listening to doorbells for as long as the process lives, whatever arrives. Knows Celery and nothing of the work."""

from __future__ import annotations

import logging
import socket
import threading
from typing import Any

from workers.roles import Role

log = logging.getLogger(__name__)

#: Seconds between the end of a consumer and the start of the next.
RESTART_S = 0.5


class DoorbellConsumer:
    """A Celery worker inside this process, started again when it ends by itself.

    A message that cannot be read ends Celery's consumer (kombu parses Redis' bytes outside of any guard). Whoever can
    write to the broker could so end every worker; here it costs half a second, and the slots look by themselves.
    """

    def __init__(self, app: Any, role: Role, *, log_level: str) -> None:
        self._app = app
        self._role = role
        self._log_level = log_level
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._worker: Any = None

    def run(self) -> None:
        """Consume until :meth:`stop`."""
        while not self._stopped.is_set():
            with self._lock:
                worker = self._worker = self._make()
            try:
                worker.start()
            except Exception as error:  # noqa: BLE001  (the doorbell may break in any way; the slots go on)
                log.warning("consumer_failed", extra={"reason": f"{type(error).__name__}: {error}"})
            if not self._stopped.wait(RESTART_S):
                log.warning("consumer_restarted")

    def stop(self) -> None:
        """End the consumer; safe from any thread."""
        self._stopped.set()
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.stop()

    def _make(self) -> Any:
        """The controller, not the command's Worker: signals stay ours."""
        return self._app.WorkController(
            pool="threads",
            concurrency=self._role.concurrency,
            queues=list(self._role.queues),
            hostname=f"{self._role.worker_id[:12]}@{socket.gethostname()}",
            loglevel=self._log_level.upper(),
            without_mingle=True,
            without_gossip=True,
            without_heartbeat=True,
        )
