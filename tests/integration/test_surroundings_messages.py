"""Messages that are no doorbells of ours: each is thrown away, once, and the worker goes on listening."""

from __future__ import annotations

import base64
import json
import pickle
import uuid
from pathlib import Path
from typing import Any

import pytest

from pipeline.db.states import JobStatus
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import requests

pytestmark = pytest.mark.timeout(180)

QUICK = {"lease_s": 3, "renew_s": 0.5, "reconcile_s": 0.2, "poll_s": 0.2, "backoff_s": 0.1}

QUEUES = ("control", "generate")


class Harm:
    """Unpickled, it would leave a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def message(
    body: Any,
    *,
    task: Any = "shard.run",
    content_type: str = "application/json",
    encoding: str = "utf-8",
    properties: dict[str, Any] | None = None,
    **headers: Any,
) -> bytes:
    """A message as Celery writes it into Redis or a file, with what a test wants wrong."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    number = str(uuid.uuid4())
    envelope = {
        "body": base64.b64encode(raw).decode(),
        "content-encoding": encoding,
        "content-type": content_type,
        "headers": {"lang": "py", "task": task, "id": number, "root_id": number, "retries": 0, **headers},
        "properties": {
            "correlation_id": number,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "generate"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid.uuid4()),
            **(properties or {}),
        },
    }
    return json.dumps(envelope).encode()


def call(*arguments: Any, **named: Any) -> list[Any]:
    """The body of a task's message."""
    return [list(arguments), named, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]


def bad_messages(harm: Path) -> dict[str, bytes]:
    """One of each kind."""
    return {
        "no JSON": b"\x80not json",
        "empty": b"",
        "a number": b"5",
        "null": b"null",
        "a list": b"[]",
        "no fields": b"{}",
        "no properties": b'{"body": "e30=", "headers": {}, "content-type": "application/json"}',
        "properties of another type": b'{"body": "e30=", "headers": [], "properties": 3}',
        "pickle": message(pickle.dumps(Harm(harm)), content_type="application/x-python-serialize", encoding="binary"),
        "yaml": message(b"!!python/object/apply:os.getpid []", content_type="application/x-yaml"),
        "unknown content type": message(call("generate"), content_type="application/x-nothing"),
        "unknown encoding": message(call("generate"), encoding="utf-99"),
        "body that is no base64": message(b"").replace(b'"body": ""', b'"body": "%%%"'),
        "unknown body encoding": message(call("generate"), properties={"body_encoding": "rot13"}),
        "body that is no JSON": message(b"{not json"),
        "body that is no UTF-8": message(b"\xff\xfe"),
        "body of another shape": message({"queue": "generate"}),
        "body that is a number": message(7),
        "unknown task": message(call("generate"), task="os.system"),
        "task that is no name": message(call("generate"), task={"a": 1}),
        "no task": message(call("generate"), task=None),
        "no argument": message(call()),
        "too many arguments": message(call("generate", 1, 2, 3)),
        "unknown keyword": message(call("generate", wait=True)),
        "argument of another type": message(call({"queue": ["generate"]})),
        "null argument": message(call(None)),
        "list argument": message(call([1, 2])),
        "no such queue": message(call("../../etc")),
        "no such job": message(call("job_nothing"), task="job.plan"),
        "job of another type": message(call({"$ne": 1}), task="job.finalize"),
        "job with a NUL": message(call("job_\x00"), task="job.finalize"),
        "job with half a character": message(call("job_\ud800"), task="job.plan"),
        "far time": message(call("generate"), eta="2999-01-01T00:00:00+00:00"),
        "further calls": message([["generate"], {}, {"callbacks": [{"task": "job.plan", "args": ["x"]}]}]),
        "time limit that is none": message(call("generate"), timelimit=["x", "y"]),
        "retries that are none": message(call("generate"), retries="many"),
        "time that is none": message(call("generate"), eta="never"),
        "expiry that is none": message(call("generate"), expires={"a": 1}),
        "unknown compression": message(call("generate"), compression="application/x-nothing"),
        "bomb that is none": message(b"no gzip", compression="application/x-gzip"),
    }


class Wire:
    """Puts bytes where a broker keeps its messages, and looks what is left."""

    def __init__(self, house: House) -> None:
        self._url = house.settings.broker_url
        self._folder = house.settings.home_path / "broker" / "messages"

    def put(self, queue: str, data: bytes) -> None:
        if self._url is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"0_{uuid.uuid4().hex}.{queue}.msg").write_bytes(data)
            return
        import redis

        with redis.Redis.from_url(self._url) as client:
            client.lpush(queue, data)

    def left(self) -> int:
        """Messages that nobody took, or that somebody took and did not acknowledge."""
        if self._url is None:
            return len([path for path in self._folder.iterdir() if path.is_file()])
        import redis

        with redis.Redis.from_url(self._url) as client:
            return sum(int(client.llen(queue)) for queue in QUEUES) + int(client.hlen("unacked"))


def test_messages_that_cannot_be_used_are_thrown_away(make_house: MakeHouse, broker_url: str, tmp_path: Path) -> None:
    house = make_house(broker_url=None if broker_url.startswith("filesystem") else broker_url, **QUICK)
    wire = Wire(house)
    harm = tmp_path / "harm"
    worker = house.start_worker()
    house.wait_for(lambda: "worker_started" in house.logs(), "the worker to start")
    bad = bad_messages(harm)
    for name, data in bad.items():
        for queue in QUEUES:
            wire.put(queue, data)
        house.wait_for(lambda: wire.left() == 0, f"{name} to be taken")
        assert worker.poll() is None, f"{name}\n{house.logs()}"
    job_id = house.submit(requests(6), shard_items=2)
    job = house.wait_end(job_id)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 6), house.logs()
    assert {shard.attempts for shard in house.shards(job_id)} == {1}
    assert house.deployment.doorbell.run("generate")
    house.wait_for(lambda: wire.left() == 0, "a good ring to be heard")
    assert not harm.exists()
    assert house.logs().count("consumer_restarted") <= 2 * len(bad)
