"""Taking away what nobody needs any more: old jobs, files that no row names, workers that are long gone.

Rows first, then files (law 9 backwards): a file of a job whose rows are gone is one that no row names, and those are
found by looking at the store. So a crash anywhere leaves nothing dangling; the next prune goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from pipeline.db.values import JobView
from pipeline.failpoints import fail_point
from pipeline.jobs.deployment import Deployment
from pipeline.store.artifacts import StoredFile
from pipeline.store.inventory import FOLDERS, FileKind, Name, read_name

log = logging.getLogger(__name__)

#: Rows of one transaction.
ROWS = 1_000

#: Files that the database is asked about at a time.
FILES = 500

#: Old jobs that are named with what needs them; of the others only the number is known.
KEPT_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOptions:
    """What is old enough to go.

    Attributes:
        older_than_s: jobs that ended, and workers that left, longer ago than this.
        keep: so many of the youngest ended jobs stay, however old they are.
        grace_s: a file that no row names stays until it is this old: its row may be on the way.
        dry_run: look, and take nothing away.
    """

    older_than_s: float
    keep: int = 0
    grace_s: float
    dry_run: bool = False


@dataclass(slots=True)
class Tally:
    """Files, and their bytes together."""

    count: int = 0
    size: int = 0

    def add(self, file: StoredFile) -> None:
        self.count += 1
        self.size += file.size


@dataclass(slots=True)
class PruneReport:
    """What went, or under ``dry_run`` would go.

    Attributes:
        jobs: how many; ``rows`` are theirs, by table.
        kept: how many old jobs stay because something needs them; ``reasons`` says what, for the first of them.
        files: what went, by kind.
        waiting: files that no row names, within the grace period.
        held: older ones that the holder of a lease may still register.
        strangers: files in the store's folders whose names are none of ours; they stay.
        workers: rows of processes that are gone.
    """

    dry_run: bool
    jobs: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    files: dict[FileKind, Tally] = field(default_factory=dict)
    waiting: Tally = field(default_factory=Tally)
    held: Tally = field(default_factory=Tally)
    strangers: Tally = field(default_factory=Tally)
    workers: int = 0

    def add_rows(self, counts: Mapping[str, int]) -> None:
        for table, count in counts.items():
            self.rows[table] = self.rows.get(table, 0) + count

    @property
    def total(self) -> Tally:
        """All files that went."""
        return Tally(sum(one.count for one in self.files.values()), sum(one.size for one in self.files.values()))


def prune(deployment: Deployment, options: PruneOptions) -> PruneReport:
    """One round; raises DatabaseUnavailable, StoreUnavailable, and can be started again after either."""
    report = PruneReport(options.dry_run)
    with deployment.database.read() as uow:
        cutoff = uow.retention.clock() - timedelta(seconds=options.older_than_s)
    gone = _JobPruning(deployment, options, cutoff, report).run()
    _FilePruning(deployment, options, gone, report).run()
    with deployment.database.write() as uow:
        count = uow.retention.count_gone_workers if options.dry_run else uow.retention.delete_gone_workers
        report.workers = count(cutoff)
    return report


class _StillNeeded(Exception):
    """Something began to point at a job while it was decided about."""


class _JobPruning:
    """Decides about jobs that ended before ``cutoff``, and takes the rows of those that nothing needs."""

    def __init__(self, deployment: Deployment, options: PruneOptions, cutoff: datetime, report: PruneReport) -> None:
        self._database = deployment.database
        self._options = options
        self._cutoff = cutoff
        self._report = report
        self._gone: set[str] = set()
        self._protected: frozenset[str] = frozenset()
        self._sources: dict[str, str] = {}

    def run(self) -> set[str]:
        """The ids of the jobs that went. Builds of indexes first: with them goes the need for their sources."""
        if self._options.keep:
            with self._database.read() as uow:
                self._protected = frozenset(uow.retention.newest_ended(self._options.keep))
        for indexes in (True, False):
            with self._database.read() as uow:
                users = [user for user in uow.retention.index_sources() if user[0] not in self._gone]
            self._sources = {source: index_job for index_job, sources in users for source in sources}
            for job_id in self._old_jobs(indexes=indexes):
                if job_id not in self._gone:
                    self._decide(job_id)
        return self._gone

    def _old_jobs(self, *, indexes: bool) -> Iterator[str]:
        after = ""
        while True:
            with self._database.read() as uow:
                page = uow.retention.ended_before(self._cutoff, indexes=indexes, after=after)
            yield from page
            if not page:
                return
            after = page[-1]

    def _decide(self, job_id: str) -> None:
        """A job goes with all that it retries and that retry it, or not at all: together they are one answer."""
        with self._database.read() as uow:
            family = uow.retention.family(job_id)
        if not family:
            return  # another prune was quicker
        if not any(member.pruned_at for member in family):
            reason = next(filter(None, (self._reason(member, job_id) for member in family)), None)
            if reason is None and not self._options.dry_run and not self._mark(family):
                reason = "something began to need it just now"
            if reason is not None:
                self._report.kept += 1
                if len(self._report.reasons) < KEPT_SHOWN:
                    self._report.reasons[job_id] = reason
                return
            fail_point("prune.after_mark")
        for member in reversed(family):
            self._take(member.id)

    def _reason(self, member: JobView, job_id: str) -> str | None:
        """Why a member of the family has to stay."""
        who = "" if member.id == job_id else f"{member.id} of the same retries "
        if not member.status.is_terminal:
            return f"{who}is {member.status}"
        if member.ended_at is None or member.ended_at >= self._cutoff:
            return f"{who}ended later"
        if member.id in self._protected:
            return f"{who}is among the {self._options.keep:,} youngest"
        if member.id in self._sources:
            return f"{who}gave its vectors to the index of {self._sources[member.id]}"
        if member.kind == "index":
            with self._database.read() as uow:
                aliases = uow.retention.aliases_of(member.id)
            for name, live in aliases:
                return f"{who}{'is live as' if live else 'is what can be gone back to from'} {name}"
        return None

    def _mark(self, family: Sequence[JobView]) -> bool:
        """From here on nothing may point at these jobs; False when something does by now.

        Whoever points at a job holds its row first, so that one of the two sees the other.
        """
        ids = {member.id for member in family}
        try:
            with self._database.write() as uow:
                uow.retention.mark(ids)
                now = {member.id for member in uow.retention.family(family[0].id)}
                needed = {
                    source
                    for job_id, sources in uow.retention.index_sources()
                    for source in sources
                    if job_id not in self._gone | ids
                }
                if now != ids or ids & needed:
                    raise _StillNeeded
        except _StillNeeded:
            return False
        return True

    def _take(self, job_id: str) -> None:
        self._gone.add(job_id)
        self._report.jobs += 1
        if self._options.dry_run:
            with self._database.read() as uow:
                self._report.add_rows(uow.retention.count_rows(job_id))
            return
        while True:
            with self._database.write() as uow:
                removed = uow.retention.delete_some(job_id, ROWS)
            if not removed:
                break
            self._report.add_rows(removed)
            fail_point("prune.between_rows")
        log.info("job_pruned", extra={"job": job_id})


class _FilePruning:
    """Takes the files that no row names. ``gone`` are jobs whose rows count as gone already (in a dry run they are not)."""

    def __init__(self, deployment: Deployment, options: PruneOptions, gone: set[str], report: PruneReport) -> None:
        self._database = deployment.database
        self._store = deployment.store
        self._options = options
        self._gone = gone
        self._report = report

    def run(self) -> None:
        for folder in FOLDERS:
            files = self._store.files(folder)
            while batch := list(islice(files, FILES)):
                self._sort_out([(file, name) for file in batch if (name := self._name_of(file)) is not None])

    def _name_of(self, file: StoredFile) -> Name | None:
        name = read_name(file.uri)
        if name is None:
            self._report.strangers.add(file)
        return name

    def _sort_out(self, files: Sequence[tuple[StoredFile, Name]]) -> None:
        job_ids = {name.job_id for _, name in files if name.job_id is not None}
        shards = {name.shard for _, name in files if name.shard is not None}
        inputs = [file.uri for file, name in files if name.kind is FileKind.INPUT]
        with self._database.read() as uow:
            # Writers first: who is none now registers nothing later, and what he registered before is a row now.
            writers = uow.retention.open_writers(job_ids, shards)
            owners = uow.retention.owners([file.uri for file, _ in files], job_ids, shards)
            users = uow.retention.users_of_inputs(inputs)
        emptied: set[str] = set()
        for file, name in files:
            if (owners.get(file.uri, set()) | users.get(file.uri, set())) - self._gone:
                continue
            if file.age_s < self._options.grace_s:
                self._report.waiting.add(file)
            elif self._is_held(name, writers):
                self._report.held.add(file)
            elif self._options.dry_run or self._remove(file, name):
                self._report.files.setdefault(name.kind, Tally()).add(file)
                emptied.update(filter(None, [name.job_id]))
        if emptied and not self._options.dry_run:
            self._remove_folders(emptied)

    @staticmethod
    def _is_held(name: Name, writers: Mapping[tuple[str, int | None], int]) -> bool:
        """Whether the file may yet be registered: its token is that of a lease which is held at this moment."""
        if name.job_id is None or name.token is None:
            return False
        token = writers.get((name.job_id, name.shard))
        return token is not None and name.token >= token

    def _remove(self, file: StoredFile, name: Name) -> bool:
        """False for an item file that somebody submits again at this moment: its name follows from its content."""
        if name.kind is FileKind.INPUT:
            again = next(iter(self._store.files(file.uri)), None)
            if again is None or again.age_s < self._options.grace_s:
                return False
            with self._database.read() as uow:
                if uow.retention.users_of_inputs([file.uri]):
                    return False
        self._store.delete(file.uri)
        fail_point("prune.between_files")
        return True

    def _remove_folders(self, job_ids: Collection[str]) -> None:
        """Of jobs that are no more: in the folders of others somebody may be about to write."""
        with self._database.read() as uow:
            present = uow.retention.existing(job_ids)
        for job_id in set(job_ids) - present:
            for folder in (f"jobs/{job_id}", f"indexes/{job_id.replace('job_', 'idx_', 1)}"):
                self._store.remove_empty_folders(folder)
