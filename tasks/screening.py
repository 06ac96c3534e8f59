"""Which messages are rung on: a task of ours with one name or id. All else is thrown away before anything acts on it.

Celery alone would do whatever a message asks of it: wait until a far time, ring further tasks, or fall over what it
cannot read. A message that fells the consumer is not acknowledged, comes back with its end, and fells the next one.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.worker.consumer import Consumer

from pipeline.jobs.dispatch import FINALIZE, PLAN, RUN

#: Tasks that may be rung.
TASKS = frozenset({PLAN, RUN, FINALIZE})

#: Headers that ask Celery for more than one call, now; a ring of ours leaves them empty.
WISHES = ("eta", "expires", "group", "shadow", "stamps")

#: Longest argument; ids and names of queues are much shorter.
ARGUMENT_CHARS = 100

log = logging.getLogger(__name__)


class ScreenedConsumer(Consumer):  # type: ignore[misc]
    """Celery's consumer behind the screen; it outlives every message."""

    def create_task_handler(self, *given: Any, **named: Any) -> Any:
        handle = super().create_task_handler(*given, **named)

        def screened(message: Any) -> None:
            fault = find_fault(message)
            if fault is None:
                try:
                    handle(message)
                    return
                except self.connection_errors + self.channel_errors:
                    raise
                except Exception as error:  # noqa: BLE001  (whatever it is, the next message is another one)
                    fault = f"{type(error).__name__}: {error}"
            log.warning("doorbell_thrown_away", extra={"reason": fault[:200]})
            if not message.acknowledged:
                message.reject_log_error(log, self.connection_errors)

        return screened


def find_fault(message: Any) -> str | None:
    """Why a message is no ring of ours; None for one that is. Never raises."""
    try:
        headers, properties = message.headers, message.properties
        if not isinstance(headers, dict) or not isinstance(properties, dict):
            return "headers or properties are no mapping"
        task = headers.get("task")
        if not isinstance(task, str) or task not in TASKS:
            return f"no task of ours: {task!r}"
        wishes = [name for name in WISHES if headers.get(name)]
        if wishes:
            return f"it asks for {', '.join(wishes)}"
        arguments, named, embedded = message.payload
        if named or any(embedded.values()):
            return "it asks for more than a look"
        (argument,) = arguments
        if not isinstance(argument, str) or not 0 < len(argument) <= ARGUMENT_CHARS or not argument.isascii():
            return "its argument is no name"
    except Exception as error:  # noqa: BLE001  (kombu raises many kinds over bytes that strangers wrote)
        return f"it cannot be read: {type(error).__name__}: {error}"
    return None
