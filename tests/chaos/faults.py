"""The faults: one function each, that does the harm at a moment somebody else has chosen, and says what recovery is.

``strike`` functions run in threads of their own, so that faults meet each other. They take what they need from a
:class:`Run` and choose with the random numbers they are given.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import redis

from pipeline.db.states import ShardStatus
from tests.chaos.disk import SmallDisk
from tests.chaos.fleet import Fleet
from tests.chaos.monitor import Monitor, ShardState, Snapshot
from tests.chaos.processes import engines_of
from tests.fixtures.house import PATIENCE_S, House
from tests.fixtures.restartable import OwnPostgres, OwnRedis
from tests.fixtures.sleepers import is_locked

#: Doorbells of one kind that are rung at once.
RINGS = 20


@dataclass(frozen=True)
class Run:
    """What a fault can lay its hands on. ``hold_s`` is how long one that lasts is kept up: from, to."""

    house: House
    job_id: str
    fleet: Fleet
    monitor: Monitor
    redis: OwnRedis | None
    postgres: OwnPostgres | None
    disk: SmallDisk | None
    hold_s: tuple[float, float]


@dataclass(frozen=True)
class Strike:
    """A fault that was done: recovery counts from ``since`` (monotonic seconds) until ``recovered``."""

    since: float
    recovered: Callable[[Snapshot], bool]
    held_s: float = 0.0


class NoTarget(Exception):
    """The job ended before there was anybody to hurt."""


# --- processes --------------------------------------------------------------------------------------------------------


def kill_child(run: Run, rng: Random) -> Strike:
    """SIGKILL of an engine's process with all it started, while its parent holds a shard."""

    def with_engine(snapshot: Snapshot) -> list[int]:
        return [pid for pid in _holders(run, snapshot) if engines_of(run.house, pid)]

    pid, held = _choose(run, rng, with_engine)
    since = time.monotonic()
    for engine in engines_of(run.house, pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the poison item, or macOS for a dead group
            os.killpg(engine.pid, signal.SIGKILL)
    return Strike(since, _taken_again(held))


def kill_parent(run: Run, rng: Random) -> Strike:
    """SIGKILL of a worker that holds a shard."""
    pid, held = _choose(run, rng)
    since = time.monotonic()
    run.fleet.kill(pid)
    return Strike(since, _taken_again(held))


def stop_parent(run: Run, rng: Random) -> Strike:
    """SIGSTOP of a worker until its shard is another's, then SIGCONT: it goes on writing, and none of it may count."""
    pid, held = _choose(run, rng)
    since = time.monotonic()
    run.fleet.put_to_sleep(pid)
    while run.postgres is None and is_locked(run.house):
        # SQLite has one write lock, and who sleeps in a transaction holds it: docs/reliability.md promises nothing there.
        run.fleet.wake(pid)
        time.sleep(rng.uniform(0.01, 0.05))
        run.fleet.put_to_sleep(pid)
    try:
        run.monitor.wait(lambda now: _taken_again(held)(now) or now.is_over, PATIENCE_S, since=since)
        time.sleep(rng.uniform(*run.hold_s) / 2)
    finally:
        run.fleet.wake(pid)
    return Strike(since, _taken_again(held), time.monotonic() - since)


def _holders(run: Run, snapshot: Snapshot) -> list[int]:
    return sorted(pid for pid in run.fleet.awake() if snapshot.leased_by(pid))


def _choose(
    run: Run, rng: Random, candidates: Callable[[Snapshot], list[int]] | None = None
) -> tuple[int, dict[int, int]]:
    """A worker that holds a shard now, and shard to token of what it holds; raises NoTarget."""
    find = candidates or (lambda snapshot: _holders(run, snapshot))
    snapshot = run.monitor.wait(lambda now: now.is_over or bool(find(now)), PATIENCE_S, since=time.monotonic())
    if snapshot is None or snapshot.is_over or not (found := find(snapshot)):
        raise NoTarget
    pid = rng.choice(found)
    return pid, snapshot.leased_by(pid)


def _taken_again(held: dict[int, int]) -> Callable[[Snapshot], bool]:
    """Every shard was claimed anew or has ended: a claim, and taking back, raise the token."""

    def is_taken(state: ShardState, token: int) -> bool:
        if state.status is ShardStatus.LEASED:
            return state.token > token
        return state.status is not ShardStatus.PENDING

    return lambda now: all(is_taken(now.shards[shard], token) for shard, token in held.items())


# --- broker -----------------------------------------------------------------------------------------------------------


def restart_broker(run: Run, rng: Random) -> Strike:
    """Stop Redis, which keeps nothing, and start it again."""
    assert run.redis is not None
    started = time.monotonic()
    run.redis.stop()
    time.sleep(rng.uniform(*run.hold_s))
    run.redis.start()
    return _held(run, started)


def flush_broker(run: Run, _rng: Random) -> Strike:
    """All messages and all bindings are gone."""
    if run.redis is not None:
        _tell(run.redis, "FLUSHALL")
    else:
        for path in (run.house.settings.home / "broker").rglob("*"):
            if path.is_file():
                path.unlink(missing_ok=True)
    return _instant(run)


def double_doorbells(run: Run, _rng: Random) -> Strike:
    """Every message many times over, those that are early or late for this job too."""
    _ring_all(run, run.job_id, "generate")
    return _instant(run)


def forge_doorbells(run: Run, rng: Random) -> Strike:
    """Messages about jobs and queues that are not there, and messages that are none."""
    _ring_all(run, f"job_{rng.getrandbits(64):016x}", "nothing")
    _ring_all(run, "../../etc", "'; DROP TABLE jobs; --")
    junk = [b"", b"{", b'{"body": 1, "properties": {}}', rng.randbytes(64)]
    for number, data in enumerate(junk):
        for queue in ("control", "generate"):
            if run.redis is not None:
                _tell(run.redis, "LPUSH", queue, data)
            else:
                folder = run.house.settings.home / "broker" / "messages"
                (folder / f"{number:020d}_forged.{queue}.msg").write_bytes(data)
    return _instant(run)


def drop_doorbells(run: Run, rng: Random) -> Strike:
    """For a while no message arrives: all are taken out as they come."""
    started = time.monotonic()
    end = started + rng.uniform(*run.hold_s)
    while time.monotonic() < end:
        if run.redis is not None:
            for queue in ("control", "generate"):
                _tell(run.redis, "DEL", queue)
        else:
            for path in (run.house.settings.home / "broker" / "messages").glob("*.msg"):
                path.unlink(missing_ok=True)
        time.sleep(0.01)
    return _held(run, started)


def _tell(server: OwnRedis, *words: str | bytes) -> None:
    """Run a command; another fault may have stopped the server, and will start it again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            server.command(*words)  # type: ignore[arg-type]
            return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


_RINGING = threading.Lock()


def _ring_all(run: Run, job_id: str, queue: str) -> None:
    with _RINGING:
        doorbell = run.house.deployment.doorbell
        for _ in range(RINGS):
            doorbell.plan(job_id)
            doorbell.finalize(job_id)
            doorbell._ring("shard.run", queue, "generate")


# --- database and disk ------------------------------------------------------------------------------------------------


def restart_database(run: Run, rng: Random) -> Strike:
    """PostgreSQL goes, in order or as in a crash, and comes back; SQLite is locked by somebody for as long."""
    started = time.monotonic()
    hold_s = rng.uniform(*run.hold_s)
    if run.postgres is not None:
        run.postgres.stop(fast=rng.random() < 0.5)
        time.sleep(hold_s)
        run.postgres.start()
    else:
        path = run.house.settings.home / "pipeline.db"
        connection = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        time.sleep(hold_s)
        connection.execute("ROLLBACK")
        connection.close()
    return _held(run, started)


def fill_disk(run: Run, rng: Random) -> Strike:
    """The store's disk is full for a while."""
    assert run.disk is not None
    started = time.monotonic()
    run.disk.fill()
    try:
        time.sleep(rng.uniform(*run.hold_s))
    finally:
        run.disk.empty()
    return _held(run, started)


# --- recovery ---------------------------------------------------------------------------------------------------------


def _instant(run: Run) -> Strike:
    return Strike(time.monotonic(), _next_part(run))


def _held(run: Run, started: float) -> Strike:
    """A fault that has just ended: what counts is the time from its end to the next sign of work."""
    now = time.monotonic()
    return Strike(now, _next_part(run), now - started)


def _next_part(run: Run) -> Callable[[Snapshot], bool]:
    """A part is registered that was not there, or nothing is left to register."""
    seen = run.monitor.wait(lambda _: True, PATIENCE_S, since=time.monotonic())
    last = 0 if seen is None else seen.last_part
    return lambda now: now.last_part > last or now.ended == now.total
