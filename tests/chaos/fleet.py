"""The workers of a run: some processes, and a watch that starts another for each that has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping

from tests.fixtures.house import House

#: Seconds between two looks at who has ended.
WATCH_S = 0.2


class Fleet:
    """``size`` workers that are kept at work until :meth:`close`."""

    def __init__(self, house: House, size: int, environ: Mapping[str, str]) -> None:
        self._house = house
        self._size = size
        self._environ = dict(environ)
        self._lock = threading.RLock()
        self._asleep: set[int] = set()
        self._killed: set[int] = set()
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._keep_full, name="fleet", daemon=True)
        #: Exit codes of workers that left by themselves: none should, unless the database is away while they start.
        self.left: list[int] = []

    def __enter__(self) -> Fleet:
        for _ in range(self._size):
            self._start()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watch.join()
        with self._lock:
            for pid in list(self._asleep):
                self.wake(pid)

    def awake(self) -> set[int]:
        """Pids of the workers that live and are not stopped."""
        with self._lock:
            return {process.pid for process in self._processes() if process.poll() is None} - self._asleep

    def kill(self, pid: int) -> None:
        """SIGKILL to the parent alone: its child has to end by itself."""
        with self._lock:
            self._killed.add(pid)
            self._signal(pid, signal.SIGKILL)

    def put_to_sleep(self, pid: int) -> None:
        with self._lock:
            self._asleep.add(pid)
            self._signal(pid, signal.SIGSTOP)

    def wake(self, pid: int) -> None:
        with self._lock:
            self._asleep.discard(pid)
            self._signal(pid, signal.SIGCONT)

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def _processes(self) -> list[subprocess.Popen[bytes]]:
        return list(self._house.workers)

    def _start(self) -> None:
        self._house.start_worker(**self._environ)

    def _keep_full(self) -> None:
        known: set[int] = set()
        while not self._stop.wait(WATCH_S):
            with self._lock:
                for process in self._processes():
                    if process.pid in known or process.poll() is None:
                        continue
                    known.add(process.pid)
                    if process.pid not in self._killed and process.returncode != -signal.SIGKILL:
                        self.left.append(process.returncode)
                    self._start()
