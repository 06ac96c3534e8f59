"""The parent's side of a child's life: start, feed, watch, kill. Implements :class:`pipeline.ports.EngineHost`.

One supervisor per slot. It knows limits, items and the errors of the pipeline; of engines only the messages they
send, of the database and the queue nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from pipeline.config import Settings
from pipeline.errors import ChildDied, PipelineError, TransientError
from pipeline.formats.messages import WireError, load_message, parse_event, parse_loaded, run_message
from pipeline.ports import EngineInfo, EngineRequest, JsonObject, Progress, WorkItem
from pipeline.secrecy import without_secrets
from workers.blas import blas_environment
from workers.process import ChildProcess, StreamEnd
from workers.run import ChildRun, Gauge
from workers.verdicts import MALFORMED, failure, kill_confused, kill_stalled

#: Seconds from a cancel to the kill of a child that goes on.
CANCEL_GRACE_S = 10.0

#: Seconds from a shutdown message to the kill.
SHUTDOWN_GRACE_S = 5.0

#: Seconds to wait for the answer of an idle child to ``stats``.
STATS_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class Supervisor:
    """One slot's child. ``close`` and a run's ``cancel`` are safe from any thread, the rest belongs to the slot's.

    Args:
        settings: ``load_timeout_s`` and ``stall_timeout_s`` are the limits on a child without progress.
        command: what to start in place of ``python -m workers.child``.
        environ: what the child's environment is made from, in place of this process's own.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        command: Sequence[str] | None = None,
        environ: Mapping[str, str] | None = None,
        cancel_grace_s: float = CANCEL_GRACE_S,
        shutdown_grace_s: float = SHUTDOWN_GRACE_S,
    ) -> None:
        self._settings = settings
        self._command = tuple(command or (sys.executable, "-m", "workers.child"))
        self._environ = os.environ if environ is None else environ
        self._cancel_grace_s = cancel_grace_s
        self._shutdown_grace_s = shutdown_grace_s
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        self._request: EngineRequest | None = None
        self._info: EngineInfo | None = None
        self._run: ChildRun | None = None
        self._deaths = 0

    @property
    def loaded(self) -> tuple[EngineRequest, ...]:
        """What the child holds; empty without one."""
        child, request = self._child, self._request
        return (request,) if request is not None and child is not None and child.is_alive else ()

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    @property
    def deaths(self) -> int:
        """Children that ended without being asked to, or had to be killed for silence or nonsense."""
        return self._deaths

    def prepare(self, request: EngineRequest) -> EngineInfo:
        """Have a child that holds ``request``: the one alive if it fits, else a new one.

        Raises:
            ChildDied: the child ended while it started or loaded; :class:`ChildStalled` if it had to be killed.
            JobError: the child says that no retry can mend it.
            TransientError: the child says that a retry may, or was ended by ``close``.
        """
        self.settle()
        if self._info is not None and self.loaded == (request,):
            return self._info
        self.close()
        child = ChildProcess(self._command, child_environment(self._environ))
        with self._lock:
            self._child = child
        try:
            hello = self._await(child, "hello", "starting")
            log.info("child_started", extra={"pid": child.pid, "versions": hello.get("versions")})
            child.send(load_message(request))
            loaded = self._await(child, "loaded", "loading the model")
            try:
                info = parse_loaded(loaded)
            except MALFORMED as error:
                self._refuse(child, "loading the model", error)
        except BaseException:
            self.close()
            raise
        self._request, self._info = request, info
        return info

    def run(self, items: Sequence[WorkItem], options: JsonObject, *, done: frozenset[int]) -> ChildRun:
        """Feed a whole shard, of which ``done`` is answered already; read ``events`` of what comes back.

        Raises:
            TransientError: there is no loaded child.
        """
        self.settle()
        child = self._child
        if child is None or self._request is None:
            raise TransientError("no engine is loaded: none was prepared, or it ended before it was given work")
        child.send(run_message(items, options, done))
        self._run = ChildRun(
            child,
            (item.index for item in items if item.index not in done),
            stall_timeout_s=self._settings.stall_timeout_s,
            cancel_grace_s=self._cancel_grace_s,
            on_death=self._lose,
        )
        return self._run

    def stats(self, timeout_s: float = STATS_TIMEOUT_S) -> JsonObject | None:
        """What an idle child says of its memory; None without a child, in a run, or if it does not answer in time."""
        child = self._child
        if child is None or self._request is None or (self._run is not None and not self._run.is_ended):
            return None
        child.send({"type": "stats"})
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                frame = child.receive(left_s)
            except StreamEnd:
                break
            if frame is not None and frame[0]["type"] == "stats":
                return {key: value for key, value in frame[0].items() if key != "type"}
        return None

    def interrupt(self) -> None:
        """End a load that is under way; a child that has loaded stays."""
        if self._request is None:
            self.close()

    def close(self) -> None:
        """End the child, if any: asked to and waited for if it is idle, killed at once if it is not."""
        with self._lock:
            child, self._child = self._child, None
            is_idle = self._request is not None and (self._run is None or self._run.is_ended)
            self._request, self._info = None, None
        if child is not None:
            child.end(self._shutdown_grace_s if is_idle else 0.0)

    def settle(self) -> None:
        """Leave no run that was given up and no child that died in its sleep."""
        if self._run is not None and not self._run.is_ended:
            self._run.cancel()
            try:
                for _ in self._run.events():
                    pass
            except PipelineError as error:
                log.warning("abandoned_run_failed", extra={"reason": str(error)})
        self._run = None
        child = self._child
        if child is not None and not child.is_alive:
            if child.is_ended_on_purpose:
                self.close()
            else:
                self._lose(child.death("idle"))

    def _lose(self, error: ChildDied) -> None:
        """Count a death, and let go of what is left."""
        self._deaths += 1
        log.warning("child_lost", extra={"code": error.code, "reason": str(error)})
        self.close()

    def _await(self, child: ChildProcess, kind: str, phase: str) -> JsonObject:
        """The next message of ``kind``; meanwhile only progress may come, and has to."""
        limit_s = self._settings.load_timeout_s
        gauge = Gauge()
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            try:
                frame = child.receive(limit_s)
            except StreamEnd:
                if child.is_ended_on_purpose:
                    raise TransientError(f"the worker ended its engine while {phase}") from None
                self._lose(error := child.death(phase))
                raise error from None
            if frame is None:
                continue
            message, blob = frame
            try:
                if message["type"] == kind:
                    return message
                if message["type"] == "failed":
                    raise failure(message)
                event = parse_event(message, blob)
                if not isinstance(event, Progress):
                    raise WireError(f"{message['type']!r} where {kind!r} was due")
                if gauge.has_moved(event):
                    deadline = time.monotonic() + limit_s
            except MALFORMED as error:
                self._refuse(child, phase, error)
        self._lose(stalled := kill_stalled(child, limit_s, phase))
        raise stalled

    def _refuse(self, child: ChildProcess, phase: str, reason: Exception) -> NoReturn:
        self._lose(error := kill_confused(child, phase, reason))
        raise error


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """A child's environment: what ``environ`` sets stays, but for passwords and keys, which an engine has no use for.

    Only the BLAS goes in front of what it preloads.
    """
    defaults = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # so that the last lines of a crash say where it was
        "TOKENIZERS_PARALLELISM": "false",
    }
    if sys.platform == "linux":
        defaults["MLX_DISABLE_COMPILE"] = "1"  # no g++ at first use; gains nothing on a CPU
    return {**defaults, **without_secrets(environ), **blas_environment(environ)}
