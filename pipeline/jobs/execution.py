"""One attempt at a shard: feed what is missing, record what comes, end the lease in the way that is true."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from pipeline.db.states import JobStatus
from pipeline.db.values import JobView, ShardLease
from pipeline.errors import (
    ArtifactCorrupt,
    ChildDied,
    EngineFailed,
    EnvironmentFault,
    LeaseLost,
    ModelChanged,
    ModelNotFound,
    PipelineError,
)
from pipeline.failpoints import fail_point
from pipeline.formats.items import Item, parse_items
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.driving import EngineDriver
from pipeline.jobs.endings import Endings, ModelElsewhere, ShardGivenUp
from pipeline.jobs.index_build import IndexBuild
from pipeline.jobs.kinds import FREE_PARTS, EngineWork, engine_work, on_trial
from pipeline.jobs.leases import ShardKeeper
from pipeline.jobs.measures import ShardMeasures
from pipeline.jobs.recording import PartRecorder
from pipeline.jobs.trial import Trial
from pipeline.ports import Answer, EngineHost, WorkItem
from pipeline.specs import EmbedSpec, GenerateSpec, IndexSpec, JobSpec, RerankSpec, parse_spec
from pipeline.specs.seeds import item_seed

log = logging.getLogger(__name__)

#: Condemned items, without one that did no harm, after which it is not the items' fault.
HOPELESS = 8


class ShardExecution:
    """An attempt under one lease, in one slot. :meth:`run` never raises for what the shard can bring about."""

    def __init__(self, deployment: Deployment, lease: ShardLease, host: EngineHost, drain: threading.Event) -> None:
        self._deployment = deployment
        self._lease = lease
        self._drain = drain
        self._ended = threading.Event()
        self._measures = ShardMeasures(lease)
        self._trial = Trial(deployment, lease)
        self._driver = EngineDriver(deployment, lease, host, self._measures, self._is_stopping)
        self._endings = Endings(deployment, lease, drain)
        self.was_hindered = False

    def run(self) -> None:
        """Work until the shard is done, given back, failed, cancelled, or lost."""
        lease = self._lease
        log.info("shard_claimed", extra={"job": lease.shard.job_id, "shard": lease.shard.ordinal, "token": lease.token})
        try:
            with ShardKeeper(self._deployment, lease, moves=self._driver.moves, on_end=self.stop) as keeper:
                self._attempt(keeper)
        except LeaseLost as error:
            log.warning("shard_lost", extra={"job": lease.shard.job_id, "reason": str(error)})
        except Exception as error:  # whatever it is, the lease must not leak
            if not isinstance(error, PipelineError):
                log.exception("shard_attempt_broke")
            self.was_hindered = isinstance(error, EnvironmentFault)
            self._endings.end_badly(error, self._trial.suspicion, asked=self._is_stopping())

    def stop(self) -> None:
        """Ask the attempt to end soon, keeping what was finished. Safe from any thread."""
        self._ended.set()
        self._driver.stop()

    def _is_stopping(self) -> bool:
        return self._ended.is_set() or self._drain.is_set()

    def _attempt(self, keeper: ShardKeeper) -> None:
        job, spec, items = self._load()
        with self._deployment.database.read() as uow:
            answered = uow.parts.answered(self._lease.shard_id)
            crashed = uow.shards.crashed_ids(self._lease.shard_id)
        if len(crashed) >= HOPELESS and len(crashed) == len(answered) and not self._trial.suspicion.cleared:
            raise ShardGivenUp(f"each of the {len(crashed)} items that were tried ended the engine")
        self._trial.begin(answered)
        recorder = PartRecorder(self._deployment, self._lease, items, answered)
        for index, item in enumerate(items):
            if item.error is not None and index not in answered:
                recorder.add(Answer(index, error=item.error))
        self._trial.condemn(recorder)
        if recorder.missing and not self._is_stopping():
            self._begin(job)
            if isinstance(spec, IndexSpec):
                self._build(job, spec, recorder)
            else:
                self._feed(job, spec, items, crashed | recorder.condemned_ids, recorder)
        if keeper.lost:
            raise LeaseLost(f"shard {self._lease.shard.ordinal} of {job.id} was taken by another worker")
        recorder.flush()
        fail_point("shard.before_commit")
        self._measures.committing()
        self._endings.end_well(self._measures, complete=not recorder.missing, ending=keeper.ending)

    def _load(self) -> tuple[JobView, JobSpec, list[Item]]:
        shard = self._lease.shard
        if shard.attempts > self._deployment.settings.max_attempts:
            # Lost with its worker again and again before anything was fed: no item can be tried for that.
            raise ShardGivenUp(shard.last_error or f"{shard.attempts - 1} attempts did not finish it")
        with self._deployment.database.read() as uow:
            job = uow.jobs.get(shard.job_id)
        assert job is not None and job.input_uri is not None
        items = parse_items(
            self._deployment.store.read_bytes(
                job.input_uri, start=shard.start_byte, end=shard.end_byte, sha256=shard.sha256
            )
        )
        if len(items) != shard.item_count:
            raise ArtifactCorrupt(f"{job.input_uri} has {len(items)} items where its shard has {shard.item_count}")
        return job, parse_spec(job.spec), items

    def _begin(self, job: JobView) -> None:
        if job.status is JobStatus.QUEUED:
            with self._deployment.database.write() as uow:
                uow.shards.renew(self._lease)
                uow.jobs.start(job.id)
        self._measures.waited(job)

    # --- feeding ---

    def _build(self, job: JobView, spec: IndexSpec, recorder: PartRecorder) -> None:
        """An index is one item: there is nobody to suspect but it, so attempts are counted instead of trials."""
        work = engine_work(spec, job, self._deployment.settings)
        try:
            with IndexBuild.prepare(self._deployment, self._lease, spec) as build:
                recorder.also = build.register
                self._driver.prepare(work, recorder)
                self._driver.drive(work, [build.item], frozenset(), recorder, free=True, take=build.publish)
                recorder.flush()
        except EngineFailed as error:
            error.inside = None
            raise

    def _feed(
        self,
        job: JobView,
        spec: GenerateSpec | EmbedSpec | RerankSpec,
        items: Sequence[Item],
        crashed: frozenset[str],
        recorder: PartRecorder,
    ) -> None:
        """First all that nobody suspects, then the suspects one by one, then those who were cleared of it."""
        try:
            work = engine_work(spec, job, self._deployment.settings)
        except (ModelNotFound, ModelChanged) as error:
            if job.model_digest is None:
                raise
            raise ModelElsewhere(str(error)) from error
        whole = [
            WorkItem(index, item.custom_id, item.body, item_seed(spec.seed, item.custom_id))
            for index, item in enumerate(items)
            if item.body is not None and item.custom_id not in crashed
        ]
        free = spec.kind in FREE_PARTS
        self._feed_together(work, whole, recorder, free=free)
        self._try_suspects(work, whole, recorder, free=free)
        self._feed_together(work, whole, recorder, free=free)

    def _feed_together(
        self, work: EngineWork, whole: Sequence[WorkItem], recorder: PartRecorder, *, free: bool
    ) -> None:
        open_items = recorder.missing - self._trial.suspicion.suspects
        if not open_items or self._is_stopping():
            return
        self._driver.prepare(work, recorder)
        self._trial.feed(open_items)
        done = frozenset(item.index for item in whole) - open_items
        self._driver.drive(work, whole, done, recorder, free=free)
        if not self._is_stopping():
            recorder.flush()
        self._trial.fed()

    def _try_suspects(self, work: EngineWork, whole: Sequence[WorkItem], recorder: PartRecorder, *, free: bool) -> None:
        """One item at a time in a child under a smaller ceiling (law 5).

        Where answers depend on their micro-batch, a first trial only clears the item, and its answer comes from its own
        batch afterwards (law 6). A cleared item that is suspect again is answered alone: its batch cannot be run.
        """
        by_index = {item.index: item for item in whole}
        for index in sorted(self._trial.suspicion.suspects & recorder.missing):
            if self._is_stopping():
                return
            trial = self._prepare_trial(work, recorder)
            self._trial.feed(frozenset({index}))
            recorder.is_rehearsal = not free and index not in self._trial.suspicion.cleared
            try:
                stats = self._driver.drive(trial, [by_index[index]], frozenset(), recorder, free=True)
            finally:
                recorder.is_rehearsal = False
            recorder.flush()
            if stats.cancelled:
                return  # it was not tried to the end
            self._trial.clear(index)
            self._measures.count("tried_alone")

    def _prepare_trial(self, work: EngineWork, recorder: PartRecorder) -> EngineWork:
        """A child under a smaller ceiling; a higher one after a death, and none where the model does not fit."""
        trial = on_trial(work, again=self._trial.suspicion.alone_deaths > 0)
        try:
            self._driver.prepare(trial, recorder)
        except (ChildDied, EngineFailed) as error:
            log.warning("trial_without_ceiling", extra={"job": self._lease.shard.job_id, "reason": str(error)})
            self._driver.prepare(work, recorder)
            return work
        return trial
