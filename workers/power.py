"""Keeping a Mac awake while it works: one ``caffeinate`` for as long as a lease is held. Does nothing elsewhere.

``-i`` holds off idle sleep only: the display goes dark, and a closed lid still sleeps. ``-w`` ends it with this
process, so that a worker that is killed leaves no Mac awake. Knows nothing about leases or jobs.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.secrecy import without_secrets

#: Seconds it stays after the last holder left: from one shard to the next nothing is ended and started again.
LINGER_S = 20.0

#: Seconds it may take to end after SIGTERM.
END_S = 2.0

log = logging.getLogger(__name__)


class PowerAssertion:
    """Counts holders; the first starts ``caffeinate``, the last lets it end a little later. Thread-safe.

    Args:
        enabled: the setting ``keep_awake``.
        platform: ``sys.platform``, or what a test says in its place.
        linger_s: see :data:`LINGER_S`.
    """

    def __init__(self, *, enabled: bool = True, platform: str = sys.platform, linger_s: float = LINGER_S) -> None:
        self._is_wanted = enabled and platform == "darwin"
        self._linger_s = linger_s
        self._lock = threading.Lock()
        self._holders = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: threading.Timer | None = None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Stay awake while the block runs."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def close(self) -> None:
        """End it now."""
        with self._lock:
            self._forget_ending()
            self._end()

    def _enter(self) -> None:
        with self._lock:
            self._holders += 1
            self._forget_ending()
            if self._is_wanted and (self._process is None or self._process.poll() is not None):
                self._start()

    def _leave(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and self._process is not None:
                self._ending = threading.Timer(self._linger_s, self._end_if_unheld)
                self._ending.daemon = True
                self._ending.start()

    def _start(self) -> None:
        command = ["caffeinate", "-i", "-w", str(os.getpid())]
        null = subprocess.DEVNULL
        try:
            # Its own session: Ctrl-C must not end it before the drain has.
            self._process = subprocess.Popen(
                command, stdin=null, stdout=null, stderr=null, start_new_session=True, env=without_secrets(os.environ)
            )
        except OSError as error:
            self._is_wanted = False  # said once; the work does not depend on it
            log.warning("cannot_keep_awake", extra={"reason": f"caffeinate: {error.strerror or error}"})

    def _end_if_unheld(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._end()

    def _forget_ending(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
