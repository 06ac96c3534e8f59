"""The child's entry, ``python -m workers.child``: one engine on the main thread, one pipe to the parent.

Frames (:mod:`pipeline.formats.messages`) go over the file descriptors the process was started with as 0 and 1; after
that 1 is the same as stderr, so that nothing a library prints can tear the stream. A reader thread owns the pipe:
``cancel`` takes effect at once, other messages wait for the main thread, and the end of the pipe ends the process,
also in the middle of a forward. Knows nothing about shards, leases or where answers go.
"""

from __future__ import annotations

import importlib
import os
import platform
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import BinaryIO, NoReturn

from pipeline import collector
from pipeline.errors import JobError, ModelUnsupported, PipelineError
from pipeline.formats.messages import (
    WireError,
    done_message,
    event_message,
    loaded_message,
    parse_load,
    parse_run,
    read_frame,
    write_frame,
)
from pipeline.ports import Engine, EngineEvent, JsonObject
from workers.engines.memory import limit_memory, process_stats

#: Which class answers a kind. Names, so that a child imports only what it was asked to hold.
ENGINES = {
    "generate": "workers.engines.generation:GenerationEngine",
    "embed": "workers.engines.embedding:EmbeddingEngine",
    "rerank": "workers.engines.reranking:RerankingEngine",
    "index": "workers.engines.indexing:IndexingEngine",
    "search": "workers.engines.indexing:IndexingEngine",
    "fake": "workers.engines.fake:FakeEngine",
}

#: Exit codes: asked to shut down; the parent is gone; the pipe carries something that is no frame.
EXIT_SHUTDOWN, EXIT_ORPHANED, EXIT_TORN = 0, 3, 4

_VERSIONS = ("mlx", "mlx-lm", "transformers", "faiss-cpu")


@dataclass(frozen=True, slots=True)
class _Received:
    """A message for the main thread. ``cancelled`` belongs to this message alone, so no cancel hits a later run."""

    message: JsonObject
    cancelled: threading.Event


class Child:
    """Answers a parent's messages until told to shut down."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._inbox: queue.SimpleQueue[_Received] = queue.SimpleQueue()
        self._engine: Engine | None = None

    def serve(self) -> None:
        """Say hello, then do what the messages ask; returns after ``shutdown``. Call on the main thread."""
        threading.Thread(target=self._read, name="pipe", daemon=True).start()
        self._send({"type": "hello", "pid": os.getpid(), "versions": _versions()})
        while True:
            received = self._inbox.get()
            match received.message["type"]:
                case "load":
                    self._attempt(self._load, received)
                case "run":
                    self._attempt(self._run, received)
                case "stats":
                    self._send({"type": "stats", **process_stats()})
                case "shutdown":
                    break
                case other:
                    self._fail(WireError(f"unknown message {other!r}"))
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _read(self) -> None:
        """The reader thread. Ends the process, not itself: the main thread may be deep in a forward."""
        current = threading.Event()
        while True:
            try:
                frame = read_frame(self._incoming)
            except (WireError, OSError, ValueError) as error:
                _leave(EXIT_TORN, f"the pipe from the parent is broken: {error}")
            if frame is None:
                _leave(EXIT_ORPHANED)
            message = frame[0]
            if message["type"] == "cancel":
                current.set()
                continue
            if message["type"] == "run":
                current = threading.Event()
            self._inbox.put(_Received(message, current))

    def _attempt(self, step: Callable[[_Received], None], received: _Received) -> None:
        try:
            step(received)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an engine raises must not end the child
            traceback.print_exc()
            self._fail(error)

    def _load(self, received: _Received) -> None:
        if self._engine is not None:
            raise RuntimeError("this child holds a model already; another model means another child")
        request = parse_load(received.message)
        if request.kind not in ENGINES:
            raise ModelUnsupported(f"no engine for the kind {request.kind!r}")
        module, _, name = ENGINES[request.kind].partition(":")
        if request.memory_bytes is not None:
            limit_memory(request.memory_bytes)
        engine: Engine = getattr(importlib.import_module(module), name)()
        collector.release()  # before the load: a cycle that loading leaves behind may hold weights
        info = engine.load(request)
        self._engine = engine
        self._send(loaded_message(info))

    def _run(self, received: _Received) -> None:
        if self._engine is None:
            raise RuntimeError("nothing is loaded")
        items, options, done = parse_run(received.message)
        stats = self._engine.run(items, options, done=done, emit=self._emit, should_stop=received.cancelled.is_set)
        self._send(done_message(stats))

    def _emit(self, event: EngineEvent) -> None:
        message, blob = event_message(event)
        self._send(message, blob)

    def _fail(self, error: BaseException) -> None:
        """``class`` tells the parent whether a retry can help; only a JobError says that none can."""
        known = error if isinstance(error, PipelineError) else None
        verdicts = [asdict(one) for one in error.verdicts] if isinstance(error, JobError) else []
        self._send(
            {
                "type": "failed",
                "class": "job" if isinstance(error, JobError) else "transient",
                "code": known.code if known else "engine_failed",
                "message": str(known) if known else f"{type(error).__name__}: {error}",
                "hint": known.hint if known else None,
                **({"verdicts": verdicts} if verdicts else {}),
            }
        )

    def _send(self, message: JsonObject, blob: bytes = b"") -> None:
        try:
            write_frame(self._outgoing, message, blob)
        except BrokenPipeError:
            _leave(EXIT_ORPHANED)


def _versions() -> JsonObject:
    versions: JsonObject = {"python": platform.python_version()}
    for name in _VERSIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _leave(code: int, reason: str | None = None) -> NoReturn:
    if reason is not None:
        os.write(2, f"workers.child: {reason}\n".encode())
    os._exit(code)


def claim_pipe() -> tuple[BinaryIO, BinaryIO]:
    """Take 0 and 1 for the frames, and give the rest of the process /dev/null and stderr in their place."""
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb")


def main() -> None:
    # Ctrl-C, or a host's shutdown, may reach every process; what happens then is the parent's to say.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    collector.hold()
    # transformers imports torch wherever it is installed: seconds and memory for nothing, and a second OpenMP runtime.
    sys.modules["torch"] = None  # type: ignore[assignment]
    Child(*claim_pipe()).serve()
    if mx := sys.modules.get("mlx.core"):
        # A thread that used MLX and does not do this sometimes aborts the process at exit.
        mx.clear_streams()


if __name__ == "__main__":
    main()
