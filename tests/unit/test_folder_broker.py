"""The embedded broker's folder: torn and foreign files harm nobody, a message is taken once, bindings survive a race."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection, Exchange, Queue

from pipeline.config import Settings
from pipeline.jobs.dispatch import celery_options

Sent = list[dict[str, int]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


def connect(settings: Settings) -> Connection:
    options = celery_options(settings)
    return Connection(options["broker_url"], transport_options=options["broker_transport_options"])


@pytest.fixture
def link(settings: Settings) -> Iterator[Connection]:
    with connect(settings) as connection:
        yield connection


def take_all(connection: Connection, name: str = "generate") -> Sent:
    queue, found = connection.SimpleQueue(name), []
    try:
        while True:
            message = queue.get_nowait()
            message.ack()
            found.append(message.payload)
    except queue.Empty:
        return found
    finally:
        queue.close()


def send(connection: Connection, count: int, name: str = "generate") -> None:
    queue = connection.SimpleQueue(name)
    for number in range(count):
        queue.put({"n": number})
    queue.close()


def test_messages_come_in_order_and_once(link: Connection) -> None:
    send(link, 5)
    assert take_all(link) == [{"n": number} for number in range(5)]
    assert take_all(link) == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\xff", b'{"body": 1}'])
def test_message_that_cannot_be_read_is_dropped(link: Connection, settings: Settings, data: bytes) -> None:
    folder = settings.home_path / "broker" / "messages"
    (folder / "0_torn.generate.msg").write_bytes(data)
    send(link, 1)
    assert take_all(link) == [{"n": 0}]
    assert list(folder.iterdir()) == []


def test_binding_table_that_a_crash_left_empty_is_written_anew(link: Connection, settings: Settings) -> None:
    (settings.home_path / "broker" / "control" / "generate.exchange").write_bytes(b"")
    send(link, 1)
    assert take_all(link) == [{"n": 0}]


def test_readers_racing_a_writer_get_each_message_once(settings: Settings) -> None:
    found: Sent = []
    done = threading.Event()

    def read() -> None:
        with connect(settings) as connection:
            while not done.is_set():
                found.extend(take_all(connection))
            found.extend(take_all(connection))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    with connect(settings) as connection:
        send(connection, 300)
    done.set()
    for reader in readers:
        reader.join()
    assert sorted(message["n"] for message in found) == list(range(300))


def bind_many(home: Path, number: int) -> None:
    with connect(Settings(home=home)) as connection, connection.channel() as channel:
        exchange = Exchange("shared", type="direct")
        for place in range(20):
            Queue(f"q{number}-{place}", exchange, routing_key=f"r{number}-{place}").bind(channel).declare()


def test_processes_that_bind_at_once_lose_no_binding(settings: Settings) -> None:
    spawn = multiprocessing.get_context("spawn")
    binders = [spawn.Process(target=bind_many, args=(settings.home_path, number)) for number in range(3)]
    for binder in binders:
        binder.start()
    for binder in binders:
        binder.join()
    assert [binder.exitcode for binder in binders] == [0, 0, 0]
    with connect(settings) as connection, connection.channel() as channel:
        assert len(channel.get_table("shared")) == 60
