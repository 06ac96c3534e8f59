"""The doorbell: the only caller of Celery. A message says "look in the database", no more (law 1).

A ring that cannot be sent is no error: a slot that is idle looks by itself every few seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from pipeline.config import Settings
from pipeline.errors import BrokerUnavailable, ConfigError
from pipeline.jobs.broker_tls import split_tls
from pipeline.private import make_private_folder

#: Task names; they never follow from module paths, so files may move.
PLAN, RUN, FINALIZE = "job.plan", "shard.run", "job.finalize"

#: Queue of planning and finalizing.
CONTROL_QUEUE = "control"

#: A broker that takes a connection and says nothing (a stopped process, TLS on one side only) holds nobody up for ever.
REDIS_OPTIONS = {"socket_connect_timeout": 5, "socket_timeout": 10, "socket_keepalive": True}

#: Seconds in which a process rings no more after a ring failed: with the broker away, taking back a hundred shards must
#: not cost a hundred timeouts. Idle slots look by themselves more often than this.
SILENCE_S = 5.0

log = logging.getLogger(__name__)


def celery_options(settings: Settings) -> dict[str, Any]:
    """Configuration of the Celery app, the same for who sends and who receives; raises ConfigError."""
    url, tls = split_tls(settings.resolved_broker_url)
    options: dict[str, Any] = {
        "broker_url": url,
        "broker_use_ssl": tls,
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
    elif options["broker_url"].startswith("redis"):
        options["broker_transport_options"] = dict(REDIS_OPTIONS)
    return options


def _folder_options(settings: Settings) -> dict[str, Any]:
    """The embedded broker: one folder that all processes of a machine read and write."""
    from pipeline.jobs.folder_broker import install_transport

    install_transport()
    root = settings.home_path / "broker"
    for name in ("messages", "control"):
        make_private_folder(root / name)
    messages = str(root / "messages")
    return {
        "data_folder_in": messages,
        "data_folder_out": messages,
        "control_folder": str(root / "control"),
        "store_processed": False,
        "polling_interval": 0.1,
    }


#: Celery and kombu put other modules in their own places while they are imported: a second thread would see half.
_MAKING = threading.Lock()


class Doorbell:
    """Sends task names with ids. Celery is imported at the first ring, never before."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app: Any = None
        self._silent_until = 0.0

    def plan(self, job_id: str) -> bool:
        return self._ring(PLAN, job_id, CONTROL_QUEUE)

    def finalize(self, job_id: str) -> bool:
        return self._ring(FINALIZE, job_id, CONTROL_QUEUE)

    def run(self, queue: str) -> bool:
        """Say that ``queue`` has shards to claim."""
        return self._ring(RUN, queue, queue)

    def _ring(self, task: str, argument: str, queue: str) -> bool:
        with _MAKING:
            from kombu.exceptions import OperationalError

        from pipeline.secrecy import mask_secrets

        if time.monotonic() < self._silent_until:
            return False
        try:
            with _MAKING:
                if self._app is None:
                    self._app = self._make_app()
            self._app.send_task(task, args=[argument], queue=queue, retry=False)
        except (OperationalError, OSError, ConfigError) as error:
            self._silent_until = time.monotonic() + SILENCE_S
            reason = mask_secrets(str(error))
            log.warning("doorbell_not_sent", extra={"task": task, "argument": argument, "reason": reason})
            return False
        return True

    def _make_app(self) -> Any:
        from celery import Celery

        app = Celery("pipeline", set_as_current=False)
        options = celery_options(self._settings)
        # kombu would try to connect for some seconds; who rings has other things to do.
        options["broker_transport_options"] = {**options["broker_transport_options"], "max_retries": 0}
        app.conf.update(options)
        return app

    def check(self) -> None:
        """Reach the broker once, and see that it takes messages; raises BrokerUnavailable. For ``doctor``."""
        from kombu.connection import Connection
        from kombu.exceptions import OperationalError
        from redis.exceptions import RedisError

        from pipeline.secrecy import mask_secrets

        options = celery_options(self._settings)
        url = options["broker_url"]
        try:
            with Connection(
                url,
                ssl=options["broker_use_ssl"],
                transport_options=options["broker_transport_options"],
                connect_timeout=5,
            ) as link:
                link.ensure_connection(max_retries=1, timeout=5)
                if url.startswith("redis"):
                    # A full Redis answers every question and takes no message.
                    link.default_channel.client.set("pipeline.doctor", "1", ex=5)
        except (OperationalError, OSError, RedisError) as error:
            text = mask_secrets(str(error))
            raise BrokerUnavailable(f"{mask_secrets(url)}: {text}", hint=_way_out(text)) from error

    def close(self) -> None:
        if self._app is not None:
            self._app.close()
            self._app = None


#: What Redis, redis-py or OpenSSL say, and what to do about it.
_WAYS_OUT = {
    "invalid username-password": "broker_url has a password that the server does not know",
    "Authentication required": "broker_url has no password, and the server asks for one: redis://:PASSWORD@HOST:6379/0",
    "CERTIFICATE_VERIFY_FAILED": "name the file of the authority that signed the server's certificate: "
    "rediss://...?ssl_ca_certs=/path/to/ca.pem",
    "maxmemory": "the server is full: free memory in it or raise its maxmemory; until then jobs run, without rings",
}


def _way_out(text: str) -> str | None:
    return next((hint for sign, hint in _WAYS_OUT.items() if sign in text), None)
