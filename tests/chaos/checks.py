"""What must be true when a job has ended, whatever happened to it on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.config import RECONCILE_LEASE_S
from pipeline.db.models import FailedAttempt, ItemErrorRow, Lease, Part, Shard, Worker
from pipeline.db.states import JobStatus, ShardStatus
from pipeline.errors import PipelineError
from pipeline.formats.ranges import parse_ranges
from pipeline.jobs.prune import PruneOptions, prune
from tests.chaos.bytes import mask, read
from tests.chaos.plan import Options, Plan
from tests.chaos.processes import engines_of, processes_of
from tests.chaos.surroundings import Undisturbed, item_id
from tests.fixtures.house import House

#: Seconds that orphans may take to end, and a dead worker's named lease to be taken, beyond the lease itself.
SETTLE_S = 10.0


@dataclass(frozen=True)
class Audit:
    """One look at a job that has ended."""

    house: House
    job_id: str
    options: Options
    plan: Plan
    undisturbed: Undisturbed

    def of_job(self) -> Iterator[str]:
        """What is wrong with its files, rows and counts; nothing when all is well."""
        job = self.house.job(self.job_id)
        if job.status is not JobStatus.COMPLETED:
            yield f"the job is {job.status}: {job.error_code} {job.error_message}"
            return
        try:
            output, errors = read(self.house, self.job_id, "output"), read(self.house, self.job_id, "errors")
        except PipelineError as error:
            yield f"its files cannot be read: {error}"
            return
        yield from self._ids(output, errors)
        yield from self._bytes(mask(output), mask(errors))
        yield from self._counts(len(output.splitlines()), len(errors.splitlines()))
        yield from self._leases()
        yield from self._parts()

    def of_processes(self, live: Callable[[], set[int]]) -> Iterator[str]:
        """Orphans, and leases of the dead; given the time that they may take."""
        patience_s = self.house.settings.lease_s + RECONCILE_LEASE_S + SETTLE_S
        yield from self._settled(lambda: self.orphans(live()), patience_s)
        yield from self._settled(lambda: self.named_leases(live()), patience_s)

    def of_end(self) -> Iterator[str]:
        """When the last worker has been asked to go."""
        if left := processes_of(self.house):
            yield f"processes go on after their workers: {[' '.join(one.cmdline()) for one in left]}"

    def unregistered(self) -> tuple[int, list[str]]:
        """How many files no row names, as ``prune`` counts and removes them; and what is wrong after that."""
        report = prune(self.house.deployment, PruneOptions(older_than_s=10**9, keep=0, grace_s=0, dry_run=False))
        again = prune(self.house.deployment, PruneOptions(older_than_s=10**9, keep=0, grace_s=0, dry_run=True))
        wrong = []
        if again.total.count:
            wrong.append(f"prune left {again.total.count} files that no row names")
        if again.strangers.count:
            wrong.append(f"{again.strangers.count} files in the store have no name of ours")
        if again.held.count:
            wrong.append(f"{again.held.count} files count as held by a lease")
        wrong += [f"after prune: {problem}" for problem in self.of_job()]
        return report.total.count, wrong

    # --- files ---

    def _ids(self, output: bytes, errors: bytes) -> Iterator[str]:
        wanted = [item_id(ordinal) for ordinal in range(self.options.items)]
        named = [json.loads(line)["custom_id"] for data in (output, errors) for line in data.splitlines()]
        if lost := sorted(set(wanted) - set(named)):
            yield f"lost: {lost}"
        if doubled := sorted({name for name in named if named.count(name) > 1}):
            yield f"doubled: {doubled}"
        if strange := sorted(set(named) - set(wanted)):
            yield f"not asked for: {strange}"
        for data in (output, errors):
            ids = [json.loads(line)["custom_id"] for line in data.splitlines()]
            if ids != sorted(ids):
                yield "a file is not in the order of the input"

    def _bytes(self, output: bytes, errors: bytes) -> Iterator[str]:
        expected_output, expected_errors = self._expected()
        if output != expected_output:
            yield f"the output differs from the undisturbed run's:\n{differences(expected_output, output)}"
        if self.plan.poison is not None:
            errors = b"".join(self._without_message(line) for line in errors.splitlines(keepends=True))
        if errors != expected_errors:
            yield f"the errors differ from the undisturbed run's:\n{differences(expected_errors, errors)}"

    def _expected(self) -> tuple[bytes, bytes]:
        """The undisturbed files, where the poison item errs in place of its answer."""
        if self.plan.poison is None:
            return self.undisturbed.output, self.undisturbed.errors
        poison = item_id(self.plan.poison[0])
        output, errors = _by_id(self.undisturbed.output), _by_id(self.undisturbed.errors)
        line = json.loads(output.pop(poison))
        line |= {"response": None, "error": {"code": "engine_crashed"}}
        errors[poison] = self._without_message(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        return b"".join(output.values()), b"".join(errors[name] for name in sorted(errors))

    def _without_message(self, line: bytes) -> bytes:
        """A poison item's message tells of processes; its code is all that can be known before."""
        document = json.loads(line)
        assert self.plan.poison is not None
        if document["custom_id"] != item_id(self.plan.poison[0]):
            return line
        document["error"] = {"code": (document["error"] or {}).get("code")}
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"

    # --- rows ---

    def _counts(self, in_output: int, in_errors: int) -> Iterator[str]:
        job, shards = self.house.job(self.job_id), self.house.shards(self.job_id)
        said = (job.total, job.succeeded, job.errored, job.processing, job.cancelled, job.expired, job.shards_open)
        true = (self.options.items, in_output, in_errors, 0, 0, 0, 0)
        if said != true:
            yield f"the job counts {said}, its files {true}"
        of_shards = sum(shard.succeeded for shard in shards), sum(shard.errored for shard in shards)
        if of_shards != (in_output, in_errors):
            yield f"the shards count {of_shards}, the files {(in_output, in_errors)}"
        with Session(self.house.deployment.database.engine) as session:
            rows = session.scalar(
                select(func.count()).select_from(ItemErrorRow).where(ItemErrorRow.job_id == self.job_id)
            )
        if rows != in_errors:
            yield f"item_errors has {rows} rows, the file {in_errors} lines"

    def _leases(self) -> Iterator[str]:
        job = self.house.job(self.job_id)
        if job.lease_owner is not None:
            yield f"the job is leased to {job.lease_owner}"
        for shard in self.house.shards(self.job_id):
            if shard.status is not ShardStatus.DONE or shard.lease_owner is not None:
                yield f"shard {shard.ordinal} is {shard.status}, leased to {shard.lease_owner}: {shard.last_error}"

    def _parts(self) -> Iterator[str]:
        """Each item in one part; and no part of an old token behind one of a newer: late writes were discarded."""
        with Session(self.house.deployment.database.engine) as session:
            query = select(Part, Shard).join(Shard, Shard.id == Part.shard_id).where(Shard.job_id == self.job_id)
            rows = [
                (shard.ordinal, part.token, parse_ranges(part.items))
                for part, shard in session.execute(query.order_by(Part.id))
            ]
        newest: dict[int, int] = {}
        items: dict[int, set[int]] = {}
        for ordinal, token, found in rows:
            if token < newest.get(ordinal, 0):
                yield f"shard {ordinal}: a part under token {token} came after one under {newest[ordinal]}"
            newest[ordinal] = max(token, newest.get(ordinal, 0))
            if twice := items.setdefault(ordinal, set()) & found:
                yield f"shard {ordinal}: items {sorted(twice)} are in two parts"
            items[ordinal] |= found

    # --- what is left behind ---

    def orphans(self, live: set[int]) -> list[str]:
        return [
            f"engine {one.pid} has lost its worker and lives"
            for one in engines_of(self.house)
            if one.ppid() not in live
        ]

    def named_leases(self, live: set[int]) -> list[str]:
        with Session(self.house.deployment.database.engine) as session:
            pids = {worker.id: worker.pid for worker in session.scalars(select(Worker))}
            leases = list(session.scalars(select(Lease)))
        return [
            f"the lease {one.name} is a dead worker's"
            for one in leases
            if one.owner and pids.get(one.owner) not in live
        ]

    @staticmethod
    def _settled(look: Callable[[], list[str]], patience_s: float) -> list[str]:
        deadline = time.monotonic() + patience_s
        while (found := look()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def attempts(self) -> dict[str, int]:
        """How often attempts at shards failed, by code."""
        with Session(self.house.deployment.database.engine) as session:
            query = select(FailedAttempt.code, func.count()).where(FailedAttempt.job_id == self.job_id)
            return {str(code): int(number) for code, number in session.execute(query.group_by(FailedAttempt.code))}


def differences(expected: bytes, found: bytes, limit: int = 20) -> str:
    """Both texts of each line that differs, the first ones; real engines may differ where two tokens nearly tie."""
    one, other = _by_id(expected), _by_id(found)
    names = [name for name in one | other if one.get(name) != other.get(name)]
    lines = [f"{len(names)} of {len(one)} lines"]
    for name in names[:limit]:
        lines += [
            f"  expected {one.get(name, b'nothing').decode().strip()}",
            f"  found    {other.get(name, b'nothing').decode().strip()}",
        ]
    return "\n".join(lines)


def _by_id(data: bytes) -> dict[str, bytes]:
    return {json.loads(line)["custom_id"]: line for line in data.splitlines(keepends=True)}
