"""How an attempt at a shard ends: each way is one transaction, guarded by the lease.

Retry classes. *Environment* (database, store, a full disk): the shard goes back, nothing is counted, and the wait
between tries grows to ``WAIT_CAP_S``. *A child that fell over its work*: the shard goes back with its suspects on
trial. *Other passing trouble*: counted, at most ``max_attempts``. *Job errors* end the job.
"""

from __future__ import annotations

import logging
import random
import threading

from pipeline.db.states import Outcome
from pipeline.db.suspicion import Suspicion
from pipeline.db.values import AttemptFailure, ItemFailure, ShardLease
from pipeline.errors import (
    ArtifactCorrupt,
    ArtifactMissing,
    ChildDied,
    EngineFailed,
    EnvironmentFault,
    JobError,
    LeaseLost,
    PipelineError,
    TransientError,
)
from pipeline.failpoints import fail_point
from pipeline.formats.items import parse_items
from pipeline.jobs.cancel import settle
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.measures import ShardMeasures

log = logging.getLogger(__name__)

#: Longest wait between two tries, in seconds.
WAIT_CAP_S = 60.0

#: Seconds between two tries to say how an attempt ended, while the database is away.
RETRY_S = 1.0


class ModelElsewhere(TransientError):
    """The model that the job pins left this host between the look and the claim."""

    code = "model_elsewhere"


class ShardGivenUp(PipelineError):
    """The shard was tried as often as it may be."""

    code = "shard_failed"


class Endings:
    """Ends one attempt. Every method raises LeaseLost when the shard is another's by now."""

    def __init__(self, deployment: Deployment, lease: ShardLease, drain: threading.Event) -> None:
        self._deployment = deployment
        self._lease = lease
        self._drain = drain

    def end_well(self, measures: ShardMeasures, *, complete: bool, ending: bool) -> None:
        """All is answered; or the job was asked to end; or the shard goes back with what is missing."""
        lease, job_id = self._lease, self._lease.shard.job_id
        with self._deployment.database.write() as uow:
            uow.metrics.add(job_id, measures.rows())
            uow.verdicts.add(lease, measures.verdicts)
            if complete:
                uow.shards.complete(lease)
            elif ending:
                uow.shards.cancel(lease)
            else:
                uow.shards.give_back(lease)
            closed = uow.jobs.close_if_drained(job_id)
            fail_point("shard.in_commit")
        fail_point("shard.after_commit")
        if closed:
            self._deployment.doorbell.finalize(job_id)
        log.info("shard_ended", extra={"job": job_id, "shard": lease.shard.ordinal, "complete": complete})

    def end_badly(self, error: Exception, suspicion: Suspicion, *, asked: bool) -> None:
        """Say in the database why, so that the next attempt, or the user, knows. While that is out of reach, wait.

        ``asked`` says that the attempt was to stop anyhow (a drain, a pause, a cancel): that is no failed attempt.
        """
        code = error.code if isinstance(error, PipelineError) else "internal_error"
        reason = f"{code}: {error}" if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
        log.warning("shard_attempt_failed", extra={"job": self._lease.shard.job_id, "reason": reason})
        while True:
            try:
                self._say(error, AttemptFailure(code, reason), suspicion, asked)
                return
            except LeaseLost as lost:
                log.warning("shard_lost", extra={"job": self._lease.shard.job_id, "reason": str(lost)})
                return
            except EnvironmentFault as away:
                log.warning("end_not_said", extra={"shard": self._lease.shard_id, "reason": str(away)})
                if self._drain.wait(RETRY_S):
                    return  # the worker leaves; the lease runs out by itself
            except TransientError as unreachable:
                log.warning("lease_left_to_expire", extra={"shard": self._lease.shard_id, "reason": str(unreachable)})
                return

    def _say(self, error: Exception, failure: AttemptFailure, suspicion: Suspicion, asked: bool) -> None:
        shard = self._lease.shard
        limit = self._deployment.settings.max_attempts
        match error:
            case JobError():
                self._fail_job(error)
            case ModelElsewhere():
                self._give_back(None, 0.0)  # the look before the next claim will not find it either
            case _ if asked:
                self._give_back(None, 0.0)
            case EngineFailed() if error.inside is not None:
                self._put_on_trial(error, failure, suspicion.after_death(error.inside))
            case EnvironmentFault():
                failure = AttemptFailure(failure.code, failure.reason, is_environment=True)
                self._give_back(failure, self._backoff_s(shard.waits))
            case ShardGivenUp():
                self._give_up(error, failure)
            case ArtifactCorrupt() if shard.attempts >= min(limit, 2):  # not passing; another host may see it whole
                self._give_up(error, failure)
            case _ if shard.attempts >= limit:
                self._give_up(error, failure)
            case _:
                died = isinstance(error, ChildDied)  # while it started or loaded: no item is to blame
                failure = AttemptFailure(failure.code, failure.reason, child_died=died)
                self._give_back(failure, self._backoff_s(shard.attempts - 1))

    def _put_on_trial(self, error: EngineFailed, failure: AttemptFailure, suspicion: Suspicion) -> None:
        """The first death costs no wait; further ones wait longer and longer, and others go on meanwhile."""
        died = isinstance(error, ChildDied)
        times = self._lease.shard.child_deaths if died else self._lease.shard.alone_deaths
        failure = AttemptFailure(failure.code, failure.reason, child_died=died)
        self._give_back(failure, self._backoff_s(times - 1) if times else 0.0, suspicion)

    def _backoff_s(self, times: int) -> float:
        base: float = self._deployment.settings.backoff_s * 2 ** min(times, 16)
        return min(base, WAIT_CAP_S) * random.uniform(0.5, 1.5)

    def _give_back(self, failure: AttemptFailure | None, delay_s: float, suspicion: Suspicion | None = None) -> None:
        with self._deployment.database.write() as uow:
            uow.shards.give_back(self._lease, failure, delay_s=delay_s, suspicion=suspicion)
            job = uow.jobs.get(self._lease.shard.job_id)
        if job is not None and job.outcome is not None:
            settle(self._deployment, job.id)  # a shard that went back to a job with an outcome ends at once

    def _give_up(self, error: Exception, failure: AttemptFailure) -> None:
        if isinstance(error, (ArtifactCorrupt, ArtifactMissing)):
            self._fail_job(error)  # its items cannot even be named
            return
        try:
            unanswered = self._unanswered(failure.reason)
        except (ArtifactMissing, ArtifactCorrupt, ValueError):
            self._fail_job(error)
            return
        with self._deployment.database.write() as uow:
            uow.shards.fail(self._lease, failure.reason, unanswered, code=failure.code)
            closed = uow.jobs.close_if_drained(self._lease.shard.job_id)
        if closed:
            self._deployment.doorbell.finalize(self._lease.shard.job_id)

    def _unanswered(self, reason: str) -> list[ItemFailure]:
        shard = self._lease.shard
        with self._deployment.database.read() as uow:
            job = uow.jobs.get(shard.job_id)
            answered = uow.parts.answered(shard.id)
        assert job is not None and job.input_uri is not None
        data = self._deployment.store.read_bytes(
            job.input_uri, start=shard.start_byte, end=shard.end_byte, sha256=shard.sha256
        )
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
            if isinstance(error, JobError):
                uow.verdicts.add(self._lease, error.verdicts)
            uow.jobs.request_outcome(job_id, Outcome.FAILED, code=code, message=str(error))
        settle(self._deployment, job_id)
