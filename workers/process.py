"""One child process: its pipes, its last words, its end. Knows frames, and nothing about engines, items or limits.

Three threads per child: a writer, so that no caller ever blocks on a child that does not read; a reader, which parses
frames into a queue bounded by bytes, so that a slow parent slows the child instead of growing; and one that forwards
the child's stderr to the log and keeps its last lines for whoever has to tell of a death.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import queue
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from pipeline.errors import ChildDied
from pipeline.formats.messages import WireError, read_frame, write_frame
from pipeline.ports import JsonObject

#: Bytes of unread frames that a child may be ahead of its parent; one frame larger than this passes alone.
QUEUE_BYTES = 64 * 1024 * 1024

#: Lines of stderr that are kept to be quoted.
LAST_LINES = 50

#: Longest line of stderr, in bytes; a longer one is logged in pieces.
LINE_BYTES = 4096

#: Seconds between two looks at whether the process lives, in case its pipe was left open by something it started.
POLL_S = 0.25

#: Seconds a process may take to be gone after it closed its pipe, and after SIGKILL.
EXIT_S, REAP_S = 2.0, 10.0

Frame = tuple[JsonObject, bytes]

#: Children that were started and not seen to be gone, by process id, which is their group's too.
_children: set[int] = set()

log = logging.getLogger(__name__)


class StreamEnd(Exception):
    """No frame will come any more."""


class ChildProcess:
    """A running child. ``send`` and ``kill`` are safe from any thread; ``receive`` belongs to one at a time.

    Args:
        command: the child's argument list.
        environ: its whole environment.

    Raises:
        ChildDied: the process cannot be started.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], *, queue_bytes: int = QUEUE_BYTES) -> None:
        pipe = subprocess.PIPE
        try:
            # Its own session: a terminal's Ctrl-C is for the parent, and the group can be killed as one.
            self._process = subprocess.Popen(
                list(command), env=dict(environ), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise ChildDied(f"the engine's process cannot be started: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        assert isinstance(self._process.stdout, io.BufferedReader)
        _children.add(self.pid)
        self._frames = _FrameQueue(queue_bytes)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._broken: str | None = None
        self._killed = False
        self._swept = False
        self._sweep_lock = threading.Lock()
        self._threads = [
            threading.Thread(target=target, args=(stream,), name=f"child-{self.pid}-{name}", daemon=True)
            for name, target, stream in (
                ("writer", self._write, self._process.stdin),
                ("reader", self._read, _CountingReader(self._process.stdout.detach())),
                ("stderr", self._log, self._process.stderr),
            )
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.end)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return not self._is_gone()

    @property
    def is_ended_on_purpose(self) -> bool:
        """Whether the parent killed it, or asked it to go."""
        return self._killed

    def send(self, message: JsonObject) -> None:
        """Queue a message; returns at once. A child that is gone does not raise here: ``receive`` tells."""
        frame = io.BytesIO()
        write_frame(frame, message)
        self._outbox.put(frame.getvalue())

    def receive(self, timeout_s: float) -> Frame | None:
        """The next frame; None if none came in time; raises :class:`StreamEnd` when the last one was taken."""
        frame = self._frames.get(min(timeout_s, POLL_S))
        if frame is None and not self.is_alive:
            # Something that the child started may hold its pipe open: what was sent before the end is still read.
            self._threads[1].join(EXIT_S)
            self._frames.close()
            return self._frames.get(0.0)
        return frame

    def death(self, phase: str) -> ChildDied:
        """The error that tells how the child ended; call it after :class:`StreamEnd`. Kills what is left of it."""
        self._is_gone(EXIT_S)
        status = self._process.returncode
        hint = None
        if self._killed:
            what = "was ended by its worker"
        elif status is None:
            what = "sent bytes that are no message" if self._broken else "closed its pipe and went on running"
        elif status < 0:
            what = f"was ended by {_signal_name(-status)}"
            hint = "the host may have run out of memory" if -status == signal.SIGKILL else None
        else:
            what = f"exited with code {status}"
        if self._broken and not self._killed:
            what += f" ({self._broken})"
        self.kill()
        return ChildDied(f"the engine's process {self.pid} {what} while {phase}{self.quote()}", hint=hint)

    def quote(self) -> str:
        """The last lines of stderr, for the end of a message; empty if there are none."""
        if not self.is_alive:
            self._threads[2].join(1.0)
        return "".join(["; its last lines:", *(f"\n  {line}" for line in self._last_lines)]) if self._last_lines else ""

    def kill(self) -> None:
        """SIGKILL to the child and all it started; returns when it is gone. What it has sent can still be received."""
        if self.is_alive:
            self._killed = True
            self._kill_group()
        if not self._is_gone(REAP_S):  # stuck in the kernel; it ends when the driver lets go
            log.error("child_survives_kill", extra={"pid": self.pid})

    def end(self, grace_s: float = 0.0) -> None:
        """Ask it to shut down, kill it after ``grace_s``, and let go of everything. Unread frames are dropped."""
        self._killed = self._killed or self.is_alive
        self.send({"type": "shutdown"})
        self._outbox.put(None)
        self._frames.close(drop=True)
        if grace_s > 0:
            self._is_gone(grace_s)
        self.kill()
        for thread in self._threads:
            thread.join(1.0)
        atexit.unregister(self.end)

    def _is_gone(self, timeout_s: float = 0.0) -> bool:
        """Whether the process ends within the time. What it started and left behind is killed as soon as it is seen."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        with self._sweep_lock:
            if not self._swept:  # once, and at once: later the number may be another group's
                self._swept = True
                self._kill_group()
                _children.discard(self.pid)
        return True

    def _kill_group(self) -> None:
        _kill_group(self.pid)

    def _write(self, stdin: BinaryIO) -> None:
        with contextlib.suppress(OSError):  # a broken pipe: the reader's end of stream tells
            while (data := self._outbox.get()) is not None:
                stdin.write(data)
                stdin.flush()
        with contextlib.suppress(OSError):
            stdin.close()

    def _read(self, stdout: _CountingReader) -> None:
        try:
            while (frame := read_frame(stdout)) is not None:
                self._frames.put(frame, stdout.take_count())
        except (WireError, ValueError) as error:  # ValueError: the bytes of a frame that are no JSON
            self._broken = str(error)
        self._frames.close()
        # What follows nonsense is thrown away and not refused: a broken pipe would hide what went wrong first.
        while stdout.read(LINE_BYTES):
            pass
        stdout.close()

    def _log(self, stderr: BinaryIO) -> None:
        with stderr:
            while raw := stderr.readline(LINE_BYTES):
                line = raw.decode("utf-8", "replace").rstrip()
                self._last_lines.append(line)
                log.info("child_stderr", extra={"pid": self.pid, "line": line})


def kill_children() -> None:
    """SIGKILL to every child of this process and all that they started. Takes no lock: a signal's handler may call it."""
    for pid in tuple(_children):
        _kill_group(pid)


def _kill_group(pid: int) -> None:
    # macOS: EPERM for a group whose members are all dead.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class _CountingReader(io.BufferedReader):
    """A pipe that knows how many bytes were read since last asked."""

    _count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._count += len(data)
        return data

    def take_count(self) -> int:
        count, self._count = self._count, 0
        return count


class _FrameQueue:
    """Frames in order, bounded by their bytes on the wire; closing it lets the rest be read."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._frames: deque[tuple[Frame, int]] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def put(self, frame: Frame, size: int) -> None:
        """Wait for room, then add; dropped if the queue was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._bytes or self._bytes + size <= self._limit_bytes)
            if not self._closed:
                self._frames.append((frame, size))
                self._bytes += size
                self._changed.notify_all()

    def get(self, timeout_s: float) -> Frame | None:
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._closed, timeout_s)
            if not self._frames:
                if self._closed:
                    raise StreamEnd
                return None
            frame, size = self._frames.popleft()
            self._bytes -= size
            self._changed.notify_all()
            return frame

    def close(self, *, drop: bool = False) -> None:
        with self._changed:
            self._closed = True
            if drop:
                self._frames.clear()
                self._bytes = 0
            self._changed.notify_all()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
