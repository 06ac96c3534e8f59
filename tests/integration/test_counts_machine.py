"""Random histories of a job, made of the functions that real workers and commands call: the counts add up after each.

Several workers claim, write, sleep and wake with leases that others hold by now; finalizers likewise; commands cancel,
pause and revive; files rot. At the end of each history the job is brought to its end, with each item there once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import event

from pipeline.db.session import UnitOfWork
from pipeline.db.states import JobStatus, Outcome, ShardStatus
from pipeline.db.suspicion import Suspicion
from pipeline.db.values import AttemptFailure, ItemFailure, JobLease, ShardLease, ShardView
from pipeline.errors import ArtifactCorrupt, ArtifactMissing, LeaseLost
from pipeline.formats.items import Item, parse_items
from pipeline.jobs.cancel import settle
from pipeline.jobs.finalize import finalize
from pipeline.jobs.planner import plan
from pipeline.jobs.recording import PartRecorder
from pipeline.ports import Answer
from tests.fixtures.house import House
from tests.fixtures.in_process import requests
from tests.fixtures.ledger import Ledger, keep_moves

pytestmark = pytest.mark.each_database

#: Chooses one of a list that is not known when the history is drawn, from its end: mostly what holds its lease still.
pick = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3, 5, 8])

#: True where an item succeeded.
some_answers = st.lists(st.booleans(), max_size=3)

FAILURES = (
    None,
    AttemptFailure("engine_crashed", "it died", child_died=True),
    AttemptFailure("store_unavailable", "the store is away", is_environment=True),
    AttemptFailure("stalled", "it stood still"),
)


class Histories(RuleBasedStateMachine):
    """One job each, all in one database."""

    house: House

    @initialize(
        items=st.integers(1, 7), shard_items=st.integers(1, 3), planned=st.sampled_from([True, True, True, False])
    )
    def submit(self, items: int, shard_items: int, planned: bool) -> None:
        self.ids = [f"r{index}" for index in range(items)]
        self.job_id = self.house.submit(requests(items), shard_items=shard_items)
        self.attempts: list[tuple[ShardLease, PartRecorder, list[Item]]] = []
        self.seen: list[ShardView] = []
        self.job_leases: list[JobLease] = []
        self.ended: Ledger | None = None
        self.steps, self.planned = 0, planned
        if planned:
            self.make_plan()

    # --- what the rules stand on ---

    @contextmanager
    def writing(self) -> Iterator[UnitOfWork]:
        """A transaction whose lease may be lost: then nothing in it counts."""
        with suppress(LeaseLost), self.house.deployment.database.write() as uow:
            yield uow

    def ledger(self) -> Ledger:
        with self.house.deployment.database.engine.connect() as connection:
            return Ledger.read(connection, self.job_id)

    def attempt(self, number: int) -> tuple[ShardLease, PartRecorder, list[Item]]:
        """Of all attempts there ever were: many of their leases are lost."""
        return self.attempts[-1 - number % len(self.attempts)]

    def unanswered(self, lease: ShardLease, items: list[Item]) -> list[ItemFailure]:
        with self.house.deployment.database.read() as uow:
            answered = uow.parts.answered(lease.shard_id)
        left = [item for index, item in enumerate(items) if index not in answered]
        return [ItemFailure(item.custom_id, item.line, "shard_failed", "given up") for item in left]

    # --- workers ---

    @rule()
    def make_plan(self) -> None:
        plan(self.house.deployment, self.job_id, owner="planner")

    @rule(owner=st.sampled_from(["one", "two"]), answers=some_answers)
    def claim(self, owner: str, answers: list[bool]) -> None:
        with self.house.deployment.database.write() as uow:
            lease = uow.shards.claim(self.job_id, owner)
            if lease is None:
                return
            uow.jobs.start(self.job_id)
            job = uow.jobs.get(self.job_id)
            answered = uow.parts.answered(lease.shard_id)
        assert job is not None and job.input_uri is not None
        shard = lease.shard
        data = self.house.deployment.store.read_bytes(job.input_uri, start=shard.start_byte, end=shard.end_byte)
        items = parse_items(data)
        self.attempts.append((lease, PartRecorder(self.house.deployment, lease, items, answered), items))
        self.register(0, answers, False)

    @precondition(lambda self: self.attempts)
    @rule(number=pick, answers=some_answers, last=st.booleans())
    def register(self, number: int, answers: list[bool], last: bool) -> None:
        """A part of some answers, from whichever end."""
        _, recorder, _ = self.attempt(number)
        for place, succeeded in zip(sorted(recorder.missing, reverse=last), answers, strict=False):
            error = None if succeeded else {"code": "bad", "message": "no"}
            recorder.add(Answer(place, body={"object": "x"} if succeeded else None, error=error))
        with suppress(LeaseLost):
            recorder.flush()

    @precondition(lambda self: self.attempts)
    @rule(number=pick)
    def renew(self, number: int) -> None:
        lease, recorder, _ = self.attempt(number)
        with self.writing() as uow:
            uow.shards.renew(lease)
            uow.shards.suspect(lease, Suspicion(in_flight=recorder.missing))

    @precondition(lambda self: self.attempts)
    @rule(number=pick, failure=st.sampled_from(FAILURES))
    def give_back(self, number: int, failure: AttemptFailure | None) -> None:
        lease, _, _ = self.attempt(number)
        with self.writing() as uow:
            uow.shards.give_back(lease, failure)

    @precondition(lambda self: self.attempts)
    @rule(number=pick)
    def end_well(self, number: int) -> None:
        """As an attempt ends: complete, cancelled with its job, or given back with what is missing."""
        lease, _, items = self.attempt(number)
        complete = not self.unanswered(lease, items)
        with self.writing() as uow:
            job = uow.jobs.get(self.job_id)
            assert job is not None
            if complete:
                uow.shards.complete(lease)
            elif job.outcome is not None:
                uow.shards.cancel(lease)
            else:
                uow.shards.give_back(lease)
            uow.jobs.close_if_drained(self.job_id)

    @precondition(lambda self: self.attempts)
    @rule(number=pick)
    def complete_too_soon(self, number: int) -> None:
        """A fault of ours is refused, and leaves no trace."""
        lease, _, items = self.attempt(number)
        if self.unanswered(lease, items):
            with pytest.raises((AssertionError, LeaseLost)), self.house.deployment.database.write() as uow:
                uow.shards.complete(lease)

    @precondition(lambda self: self.attempts)
    @rule(number=pick)
    def give_up(self, number: int) -> None:
        lease, _, items = self.attempt(number)
        unanswered = self.unanswered(lease, items)
        with self.writing() as uow:
            uow.shards.fail(lease, "given up", unanswered, code="shard_failed")
            uow.jobs.close_if_drained(self.job_id)

    @precondition(lambda self: self.attempts and self.steps > 16)
    @rule(number=pick)
    def fail_job(self, number: int) -> None:
        """An error of the job, found by whoever holds the shard."""
        lease, _, _ = self.attempt(number)
        with self.writing() as uow:
            uow.shards.cancel(lease)
            uow.jobs.request_outcome(self.job_id, Outcome.FAILED, code="model_not_found", message="no")

    # --- whoever reconciles ---

    @rule()
    def look_at_leases(self) -> None:
        with self.house.deployment.database.read() as uow:
            self.seen += [shard for shard in uow.shards.of_job(self.job_id) if shard.status is ShardStatus.LEASED]

    @precondition(lambda self: self.seen)
    @rule(number=pick)
    def take_back(self, number: int) -> None:
        """By what was seen some time ago: what moved since is left alone."""
        with self.house.deployment.database.write() as uow:
            uow.shards.take_back(self.seen[-1 - number % len(self.seen)], "stood still")

    @precondition(lambda self: self.attempts)
    @rule(number=pick)
    def oversleep(self, number: int) -> None:
        """A lease is taken back, another has the shard, and the sleeper goes on writing as if nothing had been."""
        sleeper = self.attempt(number)
        with self.house.deployment.database.write() as uow:
            seen = uow.shards.get(sleeper[0].shard_id)
            if seen is None or seen.lease_token != sleeper[0].token or not uow.shards.take_back(seen, "stood still"):
                return
        for _ in self.ids:
            self.claim("two", [])
            if self.attempts[-1][0].shard_id == seen.id:
                break
        self.attempts.append(sleeper)
        self.register(0, [True], False)
        self.end_well(0)
        self.attempts.pop()

    @rule()
    def settle(self) -> None:
        if self.house.job(self.job_id).outcome is not None:
            settle(self.house.deployment, self.job_id)

    @rule()
    def close(self) -> None:
        with self.house.deployment.database.write() as uow:
            uow.jobs.close_if_drained(self.job_id)

    # --- commands ---

    @precondition(lambda self: self.steps > 8 or not self.planned)
    @rule(outcome=st.sampled_from([Outcome.CANCELLED, Outcome.EXPIRED]))
    def ask_to_end(self, outcome: Outcome) -> None:
        with self.house.deployment.database.write() as uow:
            uow.jobs.request_outcome(self.job_id, outcome)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        with self.house.deployment.database.write() as uow:
            uow.pauses.set_job(self.job_id, paused)

    @rule()
    def requeue(self) -> None:
        with self.house.deployment.database.write() as uow:
            uow.shards.requeue(self.job_id)

    # --- finalizers, and files that rot ---

    @rule(status=st.sampled_from([JobStatus.VALIDATING, JobStatus.FINALIZING]))
    def lease_job(self, status: JobStatus) -> None:
        with self.house.deployment.database.write() as uow:
            lease = uow.jobs.lease(self.job_id, status, "sleeper")
        self.job_leases += [lease] if lease is not None else []

    @rule()
    def free_job(self) -> None:
        seen = self.house.job(self.job_id)
        if seen.lease_owner is not None:
            with self.house.deployment.database.write() as uow:
                uow.jobs.free_lease(seen)

    @precondition(lambda self: self.job_leases)
    @rule(number=pick)
    def wake_with_a_job(self, number: int) -> None:
        """A planner or finalizer whose lease may be gone: each of its writes counts only if it is not."""
        lease = self.job_leases[number % len(self.job_leases)]
        with self.writing() as uow:
            uow.jobs.renew(lease)
        with self.writing() as uow:
            uow.jobs.fail_unplanned(lease, code="input_invalid", message="no")
        with self.house.deployment.database.write() as uow:
            uow.jobs.note_trouble(lease, code="x", message="no")
            uow.jobs.release(lease)
        if self.house.job(self.job_id).lease_token != lease.token:
            with pytest.raises(LeaseLost), self.house.deployment.database.write() as uow:
                uow.jobs.finish(lease, JobStatus.COMPLETED, output=("nowhere", "0" * 64), errors=None)

    @rule()
    def finalize(self) -> None:
        with suppress(ArtifactCorrupt, ArtifactMissing):
            finalize(self.house.deployment, self.job_id, owner="finalizer")

    @rule(number=pick, torn=st.booleans())
    def damage(self, number: int, torn: bool) -> None:
        """A registered part's file changes, or goes."""
        ledger = self.ledger()
        parts = [part for parts in ledger.parts.values() for part in parts]
        if not parts or ledger.has_ended:
            return
        store = self.house.deployment.store
        with suppress(ArtifactMissing), store.local_path(parts[number % len(parts)]["uri"]) as path:
            if torn and path.exists():
                path.chmod(0o600)
                path.write_bytes(b"{")
            else:
                path.unlink(missing_ok=True)

    # --- what holds between any two of them ---

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "job_id"):
            return
        self.steps += 1
        ledger = self.ledger()
        ledger.check()
        if self.ended is not None:
            assert ledger == self.ended, "something changed in a job that had ended"
        elif ledger.has_ended:
            self.ended = ledger

    def teardown(self) -> None:
        if not hasattr(self, "job_id"):
            return
        for _ in range(40):
            if self.house.job(self.job_id).status.is_terminal:
                break
            self.bring_on()
            self.adds_up()
        job = self.house.job(self.job_id)
        assert job.status.is_terminal, f"{job.status} for good"
        self.adds_up()
        self.disturb()
        output = [line["custom_id"] for line in self.house.results(self.job_id)]
        errors = [line["custom_id"] for line in self.house.results(self.job_id, "errors")]
        assert sorted(output + errors) == self.ids
        assert len(output) == job.succeeded

    def disturb(self) -> None:
        """Everything that may still come to a job that has ended; nothing in it changes."""
        for outcome in (Outcome.CANCELLED, Outcome.EXPIRED):
            self.ask_to_end(outcome)
        for number in range(min(len(self.attempts), 4)):
            self.register(number, [True], False)
            self.end_well(number)
            self.fail_job(number)
        for act in (self.make_plan, self.requeue, self.settle, self.close, self.free_job, self.finalize):
            act()
        self.pause(True)
        self.claim("late", [True])
        self.adds_up()

    def bring_on(self) -> None:
        """One round of what workers do for a job that nobody disturbs."""
        self.free_job()
        self.make_plan()
        self.pause(False)
        self.seen.clear()
        self.look_at_leases()
        for number in range(len(self.seen)):
            self.take_back(number)
        self.settle()
        for _ in self.ids:
            self.claim("last", [])
        for number in range(len(self.attempts)):
            self.register(number, [True] * 3, False)
            self.end_well(number)
        self.close()
        self.finalize()


def without_sync(connection: Any, *_: object) -> None:
    connection.execute("PRAGMA synchronous=OFF").close()


@pytest.mark.timeout(1800)
def test_counts_add_up_after_every_step_of_any_history(house: House, full_counts: bool) -> None:
    if house.deployment.database.engine.dialect.name == "sqlite":
        # Nobody pulls the plug here, and thousands of transactions need not wait for the disk.
        event.listen(house.deployment.database.engine, "checkout", without_sync)
    with house.deployment.database.engine.connect() as connection:
        connection = connection.execution_options(pipeline_write=True)
        with connection.begin():
            keep_moves(connection)
    machine = type("HistoriesHere", (Histories,), {"house": house})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=200 if full_counts else 20,
            stateful_step_count=60 if full_counts else 40,
            deadline=None,
            # Each step is a transaction on a disk, and each example a job: that is what is tested.
            suppress_health_check=list(HealthCheck),
        ),
    )
