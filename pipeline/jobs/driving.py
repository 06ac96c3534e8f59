"""Driving one engine for one attempt: have it hold the model, run items through it, record what comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pipeline.db.values import ShardLease
from pipeline.errors import EnvironmentFault, LeaseLost
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.kinds import EngineWork
from pipeline.jobs.measures import ShardMeasures
from pipeline.jobs.recording import PartRecorder, space_of
from pipeline.ports import Answer, Boundary, EngineHost, EngineInfo, EngineRequest, EngineRun, RunStats, WorkItem

#: Longest time that taking or recording answers counts as progress, in seconds: an index may be large, a store slow.
RECORDING_S = 900.0


class EngineDriver:
    """``stop`` and ``moves`` are safe from any thread, the rest belongs to the slot's."""

    def __init__(
        self,
        deployment: Deployment,
        lease: ShardLease,
        host: EngineHost,
        measures: ShardMeasures,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._deployment = deployment
        self._lease = lease
        self._host = host
        self._measures = measures
        self._is_stopping = is_stopping
        self._run: EngineRun | None = None
        self._prepared: EngineRequest | None = None
        self._recording_since: float | None = None

    def stop(self) -> None:
        """End the run, or the load, that is under way."""
        run = self._run
        if run is not None:
            run.cancel()
        self._host.interrupt()

    def moves(self) -> bool:
        """Law 2: a lease is renewed only while the work makes progress. Loading has its own limit, in the host."""
        run, since = self._run, self._recording_since
        if since is not None:
            return time.monotonic() - since < RECORDING_S
        return run is None or run.seconds_since_progress() < self._deployment.settings.stall_timeout_s

    def prepare(self, work: EngineWork, recorder: PartRecorder) -> None:
        """Have a child that holds the model; raises what :meth:`pipeline.ports.EngineHost.prepare` does."""
        started = time.monotonic()
        info = self._host.prepare(work.request)
        recorder.space = space_of(info)
        if work.request != self._prepared:  # a trial asks for its child again before each suspect
            self._prepared = work.request
            self._measures.loaded(info, time.monotonic() - started)
            self._note_engine(work, info)

    def drive(
        self,
        work: EngineWork,
        items: Sequence[WorkItem],
        done: frozenset[int],
        recorder: PartRecorder,
        *,
        free: bool,
        take: Callable[[Answer], Answer] = lambda answer: answer,
    ) -> RunStats:
        """Run, and record what comes; ``free`` runs may end a part after any answer."""
        self._run = run = self._host.run(items, work.options, done=done)
        if self._is_stopping():
            run.cancel()
        group: list[Answer] = []
        try:
            for event in run.events():
                if not isinstance(event, (Answer, Boundary)):
                    continue
                with self._recording():
                    if isinstance(event, Answer):
                        self._measures.answered(event)
                        group.append(take(event))
                    if free or isinstance(event, Boundary):
                        _record(recorder, group)
        except (LeaseLost, EnvironmentFault):
            raise
        except Exception:
            recorder.flush()  # what arrived before the child died is as good as any answer
            raise
        finally:
            self._run = None
        self._measures.ran(run.stats)
        return run.stats

    def _note_engine(self, work: EngineWork, info: EngineInfo) -> None:
        """Put on record what the answers may depend on: device, BLAS, dtype, versions, what a probe declined."""
        engine = {"kind": info.kind, "numeric_platform": info.numeric_platform, **info.details}
        with self._deployment.database.write() as uow:
            uow.shards.renew(self._lease)  # nothing is written for a shard that is another's by now
            uow.jobs.note_engine(self._lease.shard.job_id, engine | work.marks)
            if info.model_digest is not None:
                uow.workers.remember_model(
                    info.model_digest,
                    name=str(work.options.get("model_name")),
                    model_type=info.details.get("model_type"),
                    dtype=info.numeric_platform.get("dtype"),
                    details=engine,
                )

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """The child waits for this process, and is not to blame."""
        self._recording_since = time.monotonic()
        try:
            yield
        finally:
            self._recording_since = None


def _record(recorder: PartRecorder, group: list[Answer]) -> None:
    """Take the answers of whole micro-batches only: a part is a whole number of them (law 6)."""
    for answer in group:
        recorder.add(answer)
    group.clear()
    if recorder.is_due:
        recorder.flush()
