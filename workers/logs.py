"""One line per event on stderr: time, level, event, fields. Constant event names, data in fields, passwords masked."""

from __future__ import annotations

import logging
import sys
import threading

from pipeline.secrecy import mask_secrets

#: Attributes every record has; the rest are an event's fields.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

#: Libraries that talk more than a worker's log should hold.
_QUIET = ("celery", "kombu", "amqp", "alembic", "urllib3", "httpx", "filelock")


class FieldFormatter(logging.Formatter):
    """``2026-01-31 02:00:00 INFO shard_claimed job=job_1 shard=0``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in vars(record).items() if name not in _STANDARD)
        text = super().format(record)
        return mask_secrets(f"{text} {fields}" if fields else text)


def configure_logging(level: str, *, debug: bool = False) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else level.upper())
    threading.excepthook = _log_death
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.WARNING)


def _log_death(death: threading.ExceptHookArgs) -> None:
    """A thread's last words go the way of all others, masked."""
    error = death.exc_value
    if error is not None:
        name = death.thread.name if death.thread else None
        logging.getLogger(__name__).error("thread_died", exc_info=error, extra={"thread_name": name})
