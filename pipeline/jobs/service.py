"""A worker's work, whoever calls: a doorbell's task, an idle look, reconcile. Knows slots and leases, no Celery.

A slot is one engine host. Who finds no free slot goes away: a slot that becomes free looks in the database itself.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, SimpleQueue

from pipeline.db.values import ShardLease
from pipeline.errors import PipelineError, TransientError
from pipeline.jobs.claiming import Claimer
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.dispatch import CONTROL_QUEUE
from pipeline.jobs.execution import ShardExecution
from pipeline.jobs.finalize import finalize
from pipeline.jobs.neighbours import bury
from pipeline.jobs.patience import Patience
from pipeline.jobs.planner import plan
from pipeline.jobs.presence import Presence
from pipeline.jobs.reconcile import Reconciler
from pipeline.ports import EngineHost

log = logging.getLogger(__name__)

#: Threads for planning and finalizing, beside the slots.
CONTROL_THREADS = 2

#: Seconds a running shard may take to stop when the worker drains: a child's grace to obey a cancel, and a margin.
DRAIN_S = 15.0


class WorkerService:
    """What one worker process does with the database; thread-safe."""

    def __init__(
        self,
        deployment: Deployment,
        hosts: Sequence[EngineHost],
        *,
        worker_id: str,
        queues: Sequence[str],
        device: str,
        memory_bytes: int,
        only_job: str | None = None,
        awake: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """``only_job`` makes a service that plans and serves one job; of others it mends only what reconcile finds.

        ``awake`` makes the context that work under a lease runs in: a host that would sleep does not.
        """
        self._deployment = deployment
        self._awake = awake
        self._hosts = tuple(hosts)
        self._free: SimpleQueue[EngineHost] = SimpleQueue()
        for host in hosts:
            self._free.put(host)
        self.worker_id = worker_id
        self._kinds = tuple(queue for queue in queues if queue != CONTROL_QUEUE)
        self._serves_control = CONTROL_QUEUE in queues
        self._drain = threading.Event()
        self._wake = threading.Event()
        self._ticking = threading.Lock()
        self._closed = False
        self._only_job = only_job
        self._running: set[ShardExecution] = set()
        self._patience = Patience(deployment.settings.backoff_s)
        self._idle = threading.Condition()
        self._control_pool = ThreadPoolExecutor(CONTROL_THREADS, thread_name_prefix="control")
        self._control_jobs: dict[tuple[str, str], Future[None]] = {}
        self._claimer = Claimer(deployment, worker_id, self._kinds, only_job=only_job)
        self._reconciler = Reconciler(deployment, worker_id, self.control)
        self._presence = Presence(deployment.settings.home_path, worker_id)
        with deployment.database.write() as uow:
            uow.workers.add(
                worker_id=worker_id,
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=queues,
                slots=len(self._hosts),
                device=device,
                memory=memory_bytes,
            )

    # --- slots ---

    def serve(self, queue: str | None = None) -> int:
        """With a free slot, claim and run shards until none is left; how many attempts were made.

        ``queue`` narrows the first look only: a slot that is awake serves all it can.
        """
        if self._drain.is_set() or (queue is not None and queue not in self._kinds):
            return 0
        try:
            host = self._free.get_nowait()
        except Empty:
            return 0
        attempts = 0
        try:
            while not self._drain.is_set() and not self._patience.is_waiting:
                lease = self._claim(host)
                if lease is None:
                    return attempts
                attempts += 1
                self._execute(lease, host)
            return attempts
        finally:
            self._free.put(host)

    def serve_safely(self, queue: str | None = None) -> int:
        """:meth:`serve`, with trouble logged instead of raised: the next look comes anyway."""
        try:
            return self.serve(queue)
        except PipelineError as error:
            log.warning("serve_failed", extra={"queue": queue, "reason": str(error)})
        except Exception:
            log.exception("serve_failed")  # a fault of ours must not end the slot's thread
        return 0

    def look(self) -> None:
        """Serve for as long as the process lives: one idle look every ``poll_s``, or when there is news."""
        while not self._drain.is_set():
            self._wake.wait(self._deployment.settings.poll_s)
            self._wake.clear()
            self.serve_safely()

    def _execute(self, lease: ShardLease, host: EngineHost) -> None:
        execution = ShardExecution(self._deployment, lease, host, self._drain)
        with self._idle:
            self._running.add(execution)
        try:
            with self._awake():
                execution.run()
            if execution.was_hindered:
                self._patience.hindered()
            else:
                self._patience.went_on()
        finally:
            with self._idle:
                self._running.discard(execution)
                self._idle.notify_all()

    def _claim(self, host: EngineHost) -> ShardLease | None:
        return self._claimer.claim([(request.kind, request.model_digest) for request in host.loaded])

    # --- control ---

    def plan(self, job_id: str) -> None:
        self._run_control("plan", job_id)

    def finalize(self, job_id: str) -> None:
        self._run_control("finalize", job_id)

    def control(self, work: str, job_id: str) -> None:
        """Have a job planned or finalized on a control thread; nothing when that is under way here."""
        if not self._serves_control or self._drain.is_set():
            return
        if work == "plan" and self._only_job not in (None, job_id):
            return  # any other worker plans it; finalizing is for whoever holds the reconcile lease
        key = (work, job_id)
        running = self._control_jobs.get(key)
        if running is None or running.done():
            self._control_jobs = {key: job for key, job in self._control_jobs.items() if not job.done()}
            self._control_jobs[key] = self._control_pool.submit(self._run_control, work, job_id)

    def _run_control(self, work: str, job_id: str) -> None:
        try:
            if work == "plan":
                if self._can_plan(job_id) and plan(self._deployment, job_id, owner=self.worker_id):
                    self._wake.set()
            else:
                finalize(self._deployment, job_id, owner=self.worker_id)
        except PipelineError as error:
            log.warning("control_failed", extra={"work": work, "job": job_id, "reason": str(error)})
        except Exception:
            log.exception("control_failed", extra={"work": work, "job": job_id})

    def _can_plan(self, job_id: str) -> bool:
        """A job that pins a model is planned where that model is."""
        with self._deployment.database.read() as uow:
            job = uow.jobs.get(job_id)
        if job is None or job.model is None or job.model_digest is None:
            return job is not None
        return self._claimer.holds(job.model, job.model_digest)

    # --- keeping alive ---

    def tick(self) -> None:
        """Beat and reconcile; the database being away is logged, and tried again at the next tick.

        A worker that drains beats still, lest it be taken for dead, and leaves reconciling to another.
        """
        with self._ticking:
            if self._closed:
                return
            try:
                self._beat()
                if self._drain.is_set():
                    self._reconciler.release()
                else:
                    bury(self._deployment, self._presence)
                    self._reconciler.tick()
            except TransientError as error:
                log.warning("tick_failed", extra={"reason": str(error)})
            except Exception:
                log.exception("tick_failed")  # without ticks the worker would be taken for dead

    def _beat(self) -> None:
        requests = [request for host in self._hosts for request in host.loaded]
        digests = {request.model_digest for request in requests if request.model_digest}
        status = "draining" if self._drain.is_set() else "live"
        with self._deployment.database.write() as uow:
            uow.workers.beat(self.worker_id, digests, status=status)

    def drain(self) -> None:
        """Take no more shards; those running stop soon, keep what is finished and give their leases back."""
        self._drain.set()
        self._wake.set()
        with self._idle:
            running = tuple(self._running)
        for execution in running:
            execution.stop()

    def close(self) -> None:
        """Drain, end the children, say goodbye. :meth:`tick` may be called all the while, and does nothing afterwards."""
        self.drain()
        self._say("draining")
        self._wait_idle(DRAIN_S)
        for host in self._hosts:
            host.close()  # also ends a load, which cannot be asked to stop
        self._wait_idle(DRAIN_S)
        self._control_pool.shutdown(wait=True, cancel_futures=True)
        with self._ticking:
            self._closed = True
            self._say("stopped")
            try:
                self._reconciler.release()
            except TransientError as error:
                log.warning("reconcile_lease_left_to_expire", extra={"reason": str(error)})
        self._presence.close()

    def _say(self, status: str) -> None:
        try:
            with self._deployment.database.write() as uow:
                uow.workers.set_status(self.worker_id, status)
        except TransientError as error:
            log.warning("status_not_said", extra={"status": status, "reason": str(error)})

    def _wait_idle(self, seconds: float) -> None:
        with self._idle:
            self._idle.wait_for(lambda: not self._running, seconds)
