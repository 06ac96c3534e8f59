"""The doorbell: the only caller of Celery. A message says "look in the database", no more (law 1).

A ring that cannot be sent is no error: a slot that is idle looks by itself every few seconds.
"""

from __future__ import annotations

import logging
from typing import Any

from pipeline.config import Settings

#: Task names; they never follow from module paths, so files may move.
PLAN, RUN, FINALIZE = "job.plan", "shard.run", "job.finalize"

#: Queue of planning and finalizing.
CONTROL_QUEUE = "control"

log = logging.getLogger(__name__)


def celery_options(settings: Settings) -> dict[str, Any]:
    """Configuration of the Celery app, the same for who sends and who receives."""
    options: dict[str, Any] = {
        "broker_url": settings.resolved_broker_url,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "result_backend": None,
        "task_acks_late": False,
        "task_create_missing_queues": True,
        "task_default_queue": CONTROL_QUEUE,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "broker_transport_options": {},
    }
    if options["broker_url"].startswith("filesystem:"):
        options["broker_transport_options"] = _folder_options(settings)
    return options


def _folder_options(settings: Settings) -> dict[str, Any]:
    """The embedded broker: one folder that all processes of a machine read and write."""
    from pipeline.jobs.folder_broker import install_transport

    install_transport()
    root = settings.home_path / "broker"
    for name in ("messages", "control"):
        (root / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    messages = str(root / "messages")
    return {
        "data_folder_in": messages,
        "data_folder_out": messages,
        "control_folder": str(root / "control"),
        "store_processed": False,
        "polling_interval": 0.1,
    }


class Doorbell:
    """Sends task names with ids. Celery is imported at the first ring, never before."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app: Any = None

    def plan(self, job_id: str) -> bool:
        return self._ring(PLAN, job_id, CONTROL_QUEUE)

    def finalize(self, job_id: str) -> bool:
        return self._ring(FINALIZE, job_id, CONTROL_QUEUE)

    def run(self, queue: str) -> bool:
        """Say that ``queue`` has shards to claim."""
        return self._ring(RUN, queue, queue)

    def _ring(self, task: str, argument: str, queue: str) -> bool:
        from kombu.exceptions import OperationalError

        try:
            if self._app is None:
                from celery import Celery

                self._app = Celery("pipeline", set_as_current=False)
                self._app.conf.update(celery_options(self._settings))
            self._app.send_task(task, args=[argument], queue=queue, retry=False)
        except (OperationalError, OSError) as error:
            log.warning("doorbell_not_sent", extra={"task": task, "argument": argument, "reason": str(error)})
            return False
        return True

    def check(self) -> None:
        """Reach the broker once; raises BrokerUnavailable. For ``doctor``."""
        from kombu.connection import Connection
        from kombu.exceptions import OperationalError

        from pipeline.config import mask_secrets
        from pipeline.errors import BrokerUnavailable

        options = celery_options(self._settings)
        url = options["broker_url"]
        try:
            with Connection(url, transport_options=options["broker_transport_options"], connect_timeout=5) as link:
                link.ensure_connection(max_retries=1, timeout=5)
        except (OperationalError, OSError) as error:
            raise BrokerUnavailable(f"{mask_secrets(url)}: {mask_secrets(str(error))}") from error

    def close(self) -> None:
        if self._app is not None:
            self._app.close()
            self._app = None
