"""Which shard a slot takes next. Knows jobs, models and leases, and nothing about what is done with them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from pipeline.checkpoints.digest import digest as digest_checkpoint
from pipeline.checkpoints.resolve import resolve
from pipeline.db.repository.claims import LOOK_JOBS, STARVATION_BOUND, ModelKey
from pipeline.db.session import UnitOfWork
from pipeline.db.values import Candidate, JobView, ShardLease
from pipeline.errors import JobError
from pipeline.failpoints import fail_point
from pipeline.jobs.deployment import Deployment

#: Looks of one claim: jobs whose shards others took between the look and the claim are looked at again.
CLAIM_LOOKS = 4

#: Claims that passed over the oldest job before that is written down: each writing costs as much as a claim.
COUNT_STEP = 4

#: Models of jobs, here or not, that are remembered between claims; each is looked for again at every claim.
MODELS_KEPT = 1_000


def key_of(job: Candidate | JobView) -> ModelKey:
    """What a host must hold for the job."""
    return job.model, job.model_digest, job.draft_model, job.draft_digest


class Claimer:
    """Claims for all slots of a worker. What it remembers between claims only saves looks: threads may overwrite it."""

    def __init__(
        self, deployment: Deployment, worker_id: str, kinds: Sequence[str], *, only_job: str | None = None
    ) -> None:
        """``only_job`` narrows every look to one job."""
        self._database = deployment.database
        self._settings = deployment.settings
        self._worker_id = worker_id
        self._kinds = tuple(kinds)
        self._only_job = only_job
        self._models: frozenset[ModelKey] = frozenset()
        self._passed_over = ("", 0)

    def claim(self, loaded: Sequence[tuple[str, str | None]]) -> ShardLease | None:
        """The best shard for a slot whose engines are ``loaded``, as (kind, model digest); None when there is none.

        Starved jobs come first, then priority, then a model that is loaded already, then age.
        """
        # Looking for models may take long, so it is done between transactions: those met before, then those met now.
        models = {model: self.holds(*model) for model in self._models}
        limit, lost = LOOK_JOBS, 0
        while lost < CLAIM_LOOKS:
            absent = [model for model, held in models.items() if not held]
            with self._database.write() as uow:
                found = uow.claims.candidates(
                    self._kinds,
                    self._worker_id,
                    loaded=loaded,
                    without=absent,
                    only=self._only_job,
                    limit=limit,
                )
                met = {key_of(one) for one in found} - models.keys()
                lease = None if met else self._take(uow, found, loaded)
            self._models = frozenset(models) if len(models) <= MODELS_KEPT else frozenset()
            if lease is not None:
                fail_point("claim.after_commit")
                return lease
            if not found:
                return None
            models |= {model: self.holds(*model) for model in met}
            if not met:
                lost += 1  # others took all that was found, and there may be more behind
            elif not all(models[model] for model in met):
                limit *= 4
        return None

    def _take(
        self, uow: UnitOfWork, candidates: Sequence[Candidate], loaded: Collection[tuple[str, str | None]]
    ) -> ShardLease | None:
        """A shard of the first job in order that still has one. Of jobs passed over the oldest counts, and starves first."""

        def order(one: Candidate) -> tuple[bool, int, bool, datetime, str]:
            starved = one.passed_over >= STARVATION_BOUND
            return not starved, -one.priority, (one.kind, one.model_digest) not in loaded, one.created_at, one.job_id

        for chosen in sorted(candidates, key=order):
            lease = uow.shards.claim(chosen.job_id, self._worker_id)
            fail_point("claim.in_commit")
            if lease is not None:
                self._count(uow, chosen, min(candidates, key=lambda one: (one.created_at, one.job_id)))
                return lease
        return None

    def _count(self, uow: UnitOfWork, chosen: Candidate, oldest: Candidate) -> None:
        """Count against starvation: in memory, and every few claims in the row of the job that was passed over."""
        job_id, number = self._passed_over
        number = 0 if oldest is chosen else number + 1 if job_id == oldest.job_id else 1
        if number >= COUNT_STEP or chosen.passed_over:
            uow.claims.count(chosen.job_id, oldest.job_id, number)
            number = 0
        self._passed_over = oldest.job_id, number

    def holds(self, name: str | None, digest: str | None, draft: str | None = None, pin: str | None = None) -> bool:
        """Whether the model that a job pinned is on this host, now, and the one that guesses for it.

        Jobs that pin none are taken by name.
        """
        return self._holds(name, digest) and self._holds(draft, pin)

    def _holds(self, name: str | None, digest: str | None) -> bool:
        if name is None:
            return True
        settings = self._settings
        try:
            path = resolve(name, settings, download=digest is None)
            return digest in (None, digest_checkpoint(path, settings))
        except JobError:
            return digest is None  # nobody pinned it: this host says what is wrong with it
