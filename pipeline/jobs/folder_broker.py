"""The embedded broker: kombu's folder transport, made safe for several processes that share the folder.

kombu's own shows a message's name before its bytes are written, so a reader may find it empty and die of it. Here every
file appears whole, by rename, and a message that cannot be read is dropped: it was a doorbell (law 1).
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, filesystem, virtual
from kombu.utils.json import dumps, loads

from pipeline.private import make_private_folder, private_opener

log = logging.getLogger(__name__)


class Channel(filesystem.Channel):
    """Messages are ``<time>_<uuid>.<queue>.msg``; names that begin with a dot are no messages."""

    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override]
        name = f"{time.time_ns():020d}_{uuid.uuid4().hex}.{queue}.msg"
        _write_whole(Path(self.data_folder_out) / name, dumps(payload))

    def _get(self, queue: str, timeout: Any = None) -> Any:
        """The oldest message that this process could take; raises Empty."""
        del timeout  # the caller polls
        folder = Path(self.data_folder_in)
        for name in sorted(os.listdir(folder)):
            if name.partition(".")[2] != f"{queue}.msg":
                continue
            taken = folder / f".{uuid.uuid4().hex}.taken"
            try:
                (folder / name).rename(taken)
            except FileNotFoundError:
                continue  # another process was faster
            data = taken.read_bytes()
            taken.unlink()
            if (payload := _parse(data)) is not None:
                return payload
            log.warning("doorbell_unreadable", extra={"queue": queue, "file": name})
        raise Empty

    def get_table(self, exchange: str) -> list[Any]:
        file = self._exchange_file(exchange)  # type: ignore[no-untyped-call]
        try:
            return [filesystem.exchange_queue_t(*row) for row in loads(file.read_text())]
        except (FileNotFoundError, ValueError):
            return []  # nothing is bound yet, or what a crash left: binding writes it anew

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        bound = filesystem.exchange_queue_t(routing_key or "", pattern or "", queue or "")
        make_private_folder(self.control_folder)
        with _locked(self.control_folder / ".lock"):
            table = self.get_table(exchange)
            if bound not in table:
                file = self._exchange_file(exchange)  # type: ignore[no-untyped-call]
                _write_whole(file, dumps([bound, *table]))


class Transport(filesystem.Transport):
    """kombu's, over the channel above."""

    Channel = Channel

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)  # type: ignore[no-untyped-call]
        # kombu remembers bindings per process; what counts is the folder of this connection.
        self.state = virtual.BrokerState()


def install_transport() -> None:
    """Make ``filesystem://`` mean this transport in this process."""
    TRANSPORT_ALIASES["filesystem"] = f"{__name__}:Transport"


def _parse(data: bytes) -> dict[str, Any] | None:
    """A message's envelope; None for what is none."""
    try:
        payload = loads(data.decode())
    except ValueError:
        return None
    return payload if isinstance(payload, dict) and {"body", "properties"} <= payload.keys() else None


def _write_whole(target: Path, text: str) -> None:
    beside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    with open(beside, "w", opener=private_opener) as stream:
        stream.write(text)
    beside.rename(target)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w", opener=private_opener) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
