"""One attempt at a shard: feed what is missing, record what comes, end the lease in the way that is true."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

from pipeline.db.states import Outcome
from pipeline.db.values import ItemFailure, JobView, ShardLease
from pipeline.errors import (
    ArtifactCorrupt,
    ArtifactMissing,
    ChildDied,
    JobError,
    LeaseLost,
    ModelChanged,
    ModelNotFound,
    PipelineError,
    TransientError,
)
from pipeline.failpoints import fail_point
from pipeline.formats.items import Item, parse_items
from pipeline.formats.ranges import dump_ranges
from pipeline.jobs.cancel import settle
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.index_build import IndexBuild
from pipeline.jobs.kinds import FREE_PARTS, EngineWork, engine_work
from pipeline.jobs.leases import ShardKeeper
from pipeline.jobs.measures import ShardMeasures
from pipeline.jobs.recording import PartRecorder, space_of
from pipeline.ports import Answer, Boundary, EngineHost, EngineInfo, EngineRun, WorkItem
from pipeline.specs import IndexSpec, JobSpec, parse_spec
from pipeline.specs.seeds import item_seed

log = logging.getLogger(__name__)


class ShardExecution:
    """An attempt under one lease, in one slot. :meth:`run` never raises for what the shard can bring about."""

    def __init__(self, deployment: Deployment, lease: ShardLease, host: EngineHost, drain: threading.Event) -> None:
        self._deployment = deployment
        self._lease = lease
        self._host = host
        self._drain = drain
        self._run: EngineRun | None = None
        self._ended = threading.Event()
        self._measures = ShardMeasures(lease)

    def run(self) -> None:
        """Work until the shard is done, given back, failed, cancelled, or lost."""
        lease = self._lease
        log.info("shard_claimed", extra={"job": lease.shard.job_id, "shard": lease.shard.ordinal, "token": lease.token})
        try:
            with ShardKeeper(self._deployment, lease, moves=self._moves, on_end=self.stop) as keeper:
                self._attempt(keeper)
        except LeaseLost as error:
            log.warning("shard_lost", extra={"job": lease.shard.job_id, "reason": str(error)})
        except Exception as error:  # whatever it is, the lease must not leak
            if not isinstance(error, PipelineError):
                log.exception("shard_attempt_broke")
            self._end_badly(error)

    def stop(self) -> None:
        """Ask the attempt to end soon, keeping what was finished. Safe from any thread."""
        self._ended.set()
        run = self._run
        if run is not None:
            run.cancel()

    # --- the attempt ---

    def _attempt(self, keeper: ShardKeeper) -> None:
        job, spec, items = self._load()
        with self._deployment.database.read() as uow:
            answered = uow.parts.answered(self._lease.shard_id)
        recorder = PartRecorder(self._deployment, self._lease, items)
        invalid = {index for index, item in enumerate(items) if item.error is not None}
        for index in sorted(invalid - answered):
            recorder.add(Answer(index, error=items[index].error))
        missing = frozenset(range(len(items))) - answered - invalid
        if missing and not self._is_stopping():
            self._feed(job, spec, items, missing, recorder)
        if keeper.lost:
            raise LeaseLost(f"shard {self._lease.shard.ordinal} of {job.id} was taken by another worker")
        recorder.flush()
        self._end_well(len(answered) + recorder.recorded == len(items), keeper.ending)

    def _load(self) -> tuple[JobView, JobSpec, list[Item]]:
        shard = self._lease.shard
        if shard.attempts > self._deployment.settings.max_attempts:
            raise ShardGivenUp(shard.last_error or f"{shard.attempts - 1} attempts did not finish it")
        with self._deployment.database.read() as uow:
            job = uow.jobs.get(shard.job_id)
        assert job is not None and job.input_uri is not None
        items = parse_items(
            self._deployment.store.read_bytes(job.input_uri, start=shard.start_byte, end=shard.end_byte)
        )
        if len(items) != shard.item_count:
            raise ArtifactCorrupt(f"{job.input_uri} has {len(items)} items where its shard has {shard.item_count}")
        return job, parse_spec(job.spec), items

    def _feed(
        self, job: JobView, spec: JobSpec, items: Sequence[Item], missing: frozenset[int], recorder: PartRecorder
    ) -> None:
        with self._deployment.database.write() as uow:
            uow.shards.set_in_flight(self._lease, dump_ranges(missing))
            uow.jobs.start(job.id)
        self._measures.waited(job)
        try:
            work = engine_work(spec, job, self._deployment.settings)
        except (ModelNotFound, ModelChanged) as error:
            if job.model_digest is None:
                raise
            raise ModelElsewhere(str(error)) from error
        if isinstance(spec, IndexSpec):
            with IndexBuild.prepare(self._deployment, self._lease, spec) as build:
                recorder.also = build.register
                self._run_engine(work, [build.item], frozenset(), recorder, free=True, take=build.publish)
                recorder.flush()
            return
        whole = [
            WorkItem(index, item.custom_id, item.body, item_seed(spec.seed, item.custom_id))
            for index, item in enumerate(items)
            if item.body is not None
        ]
        done = frozenset(range(len(items))) - missing
        self._run_engine(work, whole, done, recorder, free=spec.kind in FREE_PARTS)

    def _run_engine(
        self,
        work: EngineWork,
        items: Sequence[WorkItem],
        done: frozenset[int],
        recorder: PartRecorder,
        *,
        free: bool,
        take: Callable[[Answer], Answer] = lambda answer: answer,
    ) -> None:
        """Run, and record what comes; ``free`` kinds may end a part after any answer."""
        started = time.monotonic()
        info = self._host.prepare(work.request)
        self._measures.loaded(info, time.monotonic() - started)
        self._note_engine(work, info)
        recorder.space = space_of(info)
        self._run = run = self._host.run(items, work.options, done=done)
        if self._is_stopping():
            run.cancel()
        group: list[Answer] = []
        try:
            for event in run.events():
                match event:
                    case Answer():
                        self._measures.answered(event)
                        group.append(take(event))
                    case Boundary():
                        pass
                    case _:
                        continue
                if free or isinstance(event, Boundary):
                    self._record(recorder, group)
        except LeaseLost:
            raise
        except Exception:
            recorder.flush()  # what arrived before the child died is as good as any answer
            raise
        self._measures.ran(run.stats)

    def _note_engine(self, work: EngineWork, info: EngineInfo) -> None:
        """Put on record what the answers may depend on: device, BLAS, dtype, versions, what a probe declined."""
        engine = {"kind": info.kind, "numeric_platform": info.numeric_platform, **info.details}
        with self._deployment.database.write() as uow:
            uow.shards.renew(self._lease)  # nothing is written for a shard that is another's by now
            uow.jobs.note_engine(self._lease.shard.job_id, engine)
            if info.model_digest is not None:
                uow.workers.remember_model(
                    info.model_digest,
                    name=str(work.options.get("model_name")),
                    model_type=info.details.get("model_type"),
                    dtype=info.numeric_platform.get("dtype"),
                    details=engine,
                )

    @staticmethod
    def _record(recorder: PartRecorder, group: list[Answer]) -> None:
        """Take the answers of whole micro-batches only: a part is a whole number of them (law 6)."""
        for answer in group:
            recorder.add(answer)
        group.clear()
        if recorder.is_due:
            recorder.flush()

    def _is_stopping(self) -> bool:
        return self._ended.is_set() or self._drain.is_set()

    def _moves(self) -> bool:
        """Law 2: a lease is renewed only while the child makes progress. Loading has its own limit, in the host."""
        run = self._run
        return run is None or run.seconds_since_progress() < self._deployment.settings.stall_timeout_s

    # --- how it ends ---

    def _end_well(self, complete: bool, ending: bool) -> None:
        lease = self._lease
        job_id = lease.shard.job_id
        self._measures.committing()
        fail_point("shard.before_commit")
        with self._deployment.database.write() as uow:
            uow.metrics.add(job_id, self._measures.rows())
            if complete:
                uow.shards.complete(lease)
            elif ending:
                uow.shards.cancel(lease)
            else:
                uow.shards.give_back(lease, None)
            closed = uow.jobs.close_if_drained(job_id)
            fail_point("shard.in_commit")
        fail_point("shard.after_commit")
        if closed:
            self._deployment.doorbell.finalize(job_id)
        log.info("shard_ended", extra={"job": job_id, "shard": lease.shard.ordinal, "complete": complete})

    def _end_badly(self, error: Exception) -> None:
        """Say in the database why, so that the next attempt, or the user, knows; the lease may be lost by now."""
        reason = f"{type(error).__name__}: {error}"
        log.warning("shard_attempt_failed", extra={"job": self._lease.shard.job_id, "reason": reason})
        try:
            if self._drain.is_set() and not isinstance(error, (ChildDied, JobError)):
                self._give_back(None)  # the worker leaves; that is no failed attempt
            elif isinstance(error, ModelElsewhere):
                self._give_back(None)  # the look before the next claim will not find it either
            elif isinstance(error, JobError):
                self._fail_job(error)
            elif isinstance(error, ShardGivenUp) or self._lease.shard.attempts >= self._max_attempts(error):
                self._give_up(error, reason)
            else:
                self._give_back(reason, child_died=isinstance(error, ChildDied))
        except LeaseLost as lost:
            log.warning("shard_lost", extra={"job": self._lease.shard.job_id, "reason": str(lost)})
        except TransientError as unreachable:
            log.warning("lease_left_to_expire", extra={"shard": self._lease.shard_id, "reason": str(unreachable)})

    def _max_attempts(self, error: Exception) -> int:
        """A file that is not what its row says is no passing trouble, but another host may see it whole: try twice."""
        limit = self._deployment.settings.max_attempts
        return min(limit, 2) if isinstance(error, (ArtifactCorrupt, ArtifactMissing, ValueError)) else limit

    def _give_back(self, reason: str | None, *, child_died: bool = False) -> None:
        base = self._deployment.settings.backoff_s * 2 ** (self._lease.shard.attempts - 1)
        with self._deployment.database.write() as uow:
            delay_s = base * random.uniform(0.5, 1.5)
            uow.shards.give_back(self._lease, reason, delay_s=delay_s, child_died=child_died)
            job = uow.jobs.get(self._lease.shard.job_id)
        if job is not None and job.outcome is not None:
            settle(self._deployment, job.id)  # a shard that went back to a job with an outcome ends at once

    def _give_up(self, error: Exception, reason: str) -> None:
        try:
            unanswered = self._unanswered(reason)
        except (ArtifactMissing, ArtifactCorrupt, ValueError):
            self._fail_job(error)  # its items cannot even be named
            return
        with self._deployment.database.write() as uow:
            uow.shards.fail(self._lease, reason, unanswered)
            closed = uow.jobs.close_if_drained(self._lease.shard.job_id)
        if closed:
            self._deployment.doorbell.finalize(self._lease.shard.job_id)

    def _unanswered(self, reason: str) -> list[ItemFailure]:
        shard = self._lease.shard
        with self._deployment.database.read() as uow:
            job = uow.jobs.get(shard.job_id)
            answered = uow.parts.answered(shard.id)
        assert job is not None and job.input_uri is not None
        data = self._deployment.store.read_bytes(job.input_uri, start=shard.start_byte, end=shard.end_byte)
        return [
            ItemFailure(item.custom_id, item.line, "shard_failed", reason)
            for index, item in enumerate(parse_items(data))
            if index not in answered
        ]

    def _fail_job(self, error: Exception) -> None:
        """End the whole job: this shard first, under its lease, so that a loser of the lease ends nothing."""
        job_id = self._lease.shard.job_id
        code = error.code if isinstance(error, PipelineError) else "internal_error"
        with self._deployment.database.write() as uow:
            uow.shards.cancel(self._lease)
            uow.jobs.request_outcome(job_id, Outcome.FAILED, code=code, message=str(error))
        settle(self._deployment, job_id)


class ModelElsewhere(TransientError):
    """The model that the job pins left this host between the look and the claim."""

    code = "model_elsewhere"


class ShardGivenUp(PipelineError):
    """The shard was tried as often as it may be."""

    code = "shard_failed"
