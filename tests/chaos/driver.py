"""One run: a job over some workers, attacked as a plan says, then audited. The seed makes the plan; moments are real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from random import Random

from sqlalchemy import select

from pipeline.config import ENV_FAIL_POINT
from pipeline.db.base import Base
from tests.chaos import faults
from tests.chaos.checks import Audit
from tests.chaos.disk import SmallDisk
from tests.chaos.fleet import Fleet
from tests.chaos.monitor import Monitor
from tests.chaos.plan import FINALIZER, MIDDLE, POISON, SUBMITTER, Options, Plan, Planned, make_plan
from tests.chaos.report import FaultRecord, RunRecord
from tests.chaos.surroundings import Surroundings, add_model, submit_words
from tests.fixtures.house import PATIENCE_S, House

#: Seconds a job may take in all; reaching it is a failure, and never a measurement.
JOB_S = 600.0


def run_seed(surroundings: Surroundings, seed: int, keep: Path) -> RunRecord:
    """Attack one job; what is left of a run that failed is copied to a folder in ``keep``."""
    options = surroundings.options
    plan = make_plan(seed, options, surroundings.no_disk)
    print(f"seed {seed} on {options.database}, {options.broker}, {options.engine}: {plan}", flush=True)
    surroundings.undisturbed()
    with surroundings.house(f"seed-{seed}") as (house, small):
        attack = Attack(surroundings, plan, house, small)
        record = attack.run()
        if record.wrong:
            kept = keep_house(house, keep / f"{options.database}-{options.engine}-{seed}", record)
            record = RunRecord(**{**vars(record), "kept": str(kept)})
    return record


class Attack:
    """One job under one plan."""

    def __init__(self, surroundings: Surroundings, plan: Plan, house: House, small: SmallDisk | None) -> None:
        self._surroundings = surroundings
        self._options: Options = surroundings.options
        self._plan = plan
        self._house = house
        self._disk = small
        self._marker = house.settings.home / "finalizer-killed"
        self._records: list[FaultRecord] = []
        self._wrong: list[str] = []
        self._lock = threading.Lock()
        self._started = time.monotonic()

    def run(self) -> RunRecord:
        """Never raises for what the pipeline can bring about; all of that is in the record."""
        unregistered, attempts, fleet, audit = 0, {}, None, None
        try:
            add_model(self._house, self._options, self._plan)
            environ = (
                {ENV_FAIL_POINT: f"{self._plan.finalize_point}@{self._marker}"} if self._plan.finalize_point else {}
            )
            fleet = Fleet(self._house, self._options.workers, environ)
            job_id = "" if self._plan.workers_first else self._submit()
            with fleet:
                job_id = job_id or self._submit()
                audit = self._audit(job_id)
                self._disturb(fleet, job_id)
                self._wrong += audit.of_job()
                self._wrong += audit.of_processes(fleet.awake)
            if stubborn := self._house.stop():
                self._wrong.append(f"workers {stubborn} did not end after SIGTERM")
            self._wrong += audit.of_end()
            unregistered, problems = audit.unregistered()
            self._wrong += problems
            attempts = audit.attempts()
        except Exception:  # noqa: BLE001  (whatever it is, it is what this run found)
            self._wrong.append(traceback.format_exc())
        finally:
            self._house.stop()
        return RunRecord(
            seed=self._plan.seed,
            database=self._options.database,
            broker=self._options.broker,
            engine=self._options.engine,
            settings="default" if self._options.default_settings else "short",
            plan=str(self._plan),
            seconds=round(time.monotonic() - self._started, 1),
            faults=self._records,
            wrong=self._wrong,
            left_out=self._plan.left_out,
            attempts_failed=attempts,
            files_unregistered=unregistered,
            workers_started=len(self._house.workers),
            workers_left=fleet.left if fleet is not None else (),
        )

    def _audit(self, job_id: str) -> Audit:
        return Audit(self._house, job_id, self._options, self._plan, self._surroundings.undisturbed())

    # --- submitting ---

    def _submit(self) -> str:
        """Submit, be killed, submit again with the same key; the job's id."""
        words = submit_words(self._house, self._options)
        killed_at = [at for how in self._plan.submit_kills if (at := self._killed_submit(words, how)) is not None]
        job_id = self._house.pipeline(*words).stdout.decode().strip()
        now = time.monotonic()
        for since in killed_at:
            self._note(SUBMITTER, since, 0.0, now - since, "recovered")
        jobs = json.loads(self._house.pipeline("list", "--json").stdout)
        if len(jobs) != 1:
            self._wrong.append(f"one key made {len(jobs)} jobs: {jobs}")
        return job_id

    def _killed_submit(self, words: tuple[str, ...], how: str | float) -> float | None:
        """When the submitter was killed; None when it was done before that."""
        environ = self._house.environ | ({ENV_FAIL_POINT: how} if isinstance(how, str) else {})
        command = [sys.executable, "-m", "pipeline.cli", *words]
        with (self._house.log_folder / "submit.log").open("ab") as log:
            process = subprocess.Popen(command, env=environ, cwd=self._house.log_folder, stdout=log, stderr=log)
            try:
                process.wait(PATIENCE_S if isinstance(how, str) else how)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.returncode not in (0, -signal.SIGKILL):
            self._wrong.append(f"submit ended with {process.returncode}; see submit.log")
        return time.monotonic() if process.returncode == -signal.SIGKILL else None

    # --- the middle, and the end ---

    def _disturb(self, fleet: Fleet, job_id: str) -> None:
        """Everything that strikes while the job runs; returns when it has ended and all that was done is undone."""
        with Monitor(self._house.deployment.database, job_id) as monitor:
            run = faults.Run(
                self._house,
                job_id,
                fleet,
                monitor,
                self._surroundings.redis,
                self._surroundings.postgres,
                self._disk,
                self._options.hold_s,
            )
            first = monitor.wait(lambda _: True, PATIENCE_S)
            begun = first.progress if first is not None else 0.0
            threads = [
                threading.Thread(target=self._strike, args=(run, one, begun + one.at * (1 - begun)), name=one.name)
                for one in self._plan.middle
            ]
            threads.append(threading.Thread(target=self._watch_finalizer, args=(run,), name=FINALIZER))
            for thread in threads:
                thread.start()
            if monitor.wait(lambda now: now.is_over, JOB_S) is None:
                self._wrong.append(f"the job did not end in {JOB_S:.0f} s")
            for thread in threads:
                thread.join()
        if len(self._records) + len(self._wrong) < len(self._plan.middle):
            self._add_wrong("a fault's thread ended without a word")
        if self._plan.poison is not None:
            self._note(POISON, self._started, 0.0, None, "recovered")

    def _strike(self, run: faults.Run, planned: Planned, at: float) -> None:
        rng = Random(planned.rng_seed)
        try:
            reached = run.monitor.wait(lambda now: now.progress >= at or now.is_over, JOB_S)
            time.sleep(rng.uniform(0.0, 0.3))
            if reached is None or reached.is_over:
                self._note(planned.name, time.monotonic(), 0.0, None, "not reached")
                return
            strike = MIDDLE[planned.name][0](run, rng)
            snapshot = run.monitor.wait(
                lambda now: strike.recovered(now) or now.is_over, PATIENCE_S, since=strike.since
            )
            if snapshot is None:
                self._add_wrong(f"{planned.name}: no recovery in {PATIENCE_S:.0f} s")
                return
            took = snapshot.at - strike.since if strike.recovered(snapshot) else None
            outcome = "recovered" if took is not None else "job ended first"
            self._note(planned.name, strike.since, strike.held_s, took, outcome)
        except faults.NoTarget:
            self._note(planned.name, time.monotonic(), 0.0, None, "no target")
        except Exception:  # noqa: BLE001  (likewise)
            self._add_wrong(f"{planned.name}: {traceback.format_exc()}")

    def _watch_finalizer(self, run: faults.Run) -> None:
        """The first finalizer kills itself at its fail point, and leaves a marker that says when."""
        if self._plan.finalize_point is None:
            return
        if run.monitor.wait(lambda now: self._marker.exists() or now.is_over, JOB_S) is None:
            return
        if not self._marker.exists():
            self._add_wrong("the job ended and its finalizer was not killed")
            return
        since = time.monotonic() - (time.time() - self._marker.stat().st_mtime)
        snapshot = run.monitor.wait(lambda now: now.is_over, PATIENCE_S, since=since)
        if snapshot is None:
            self._add_wrong(f"{FINALIZER}: no recovery in {PATIENCE_S:.0f} s")
        else:
            self._note(FINALIZER, since, 0.0, max(0.0, snapshot.at - since), "recovered")

    def _note(self, fault: str, since: float, held_s: float, recovery_s: float | None, outcome: str) -> None:
        took = None if recovery_s is None else round(recovery_s, 3)
        record = FaultRecord(fault, round(since - self._started, 3), round(held_s, 3), took, outcome)
        with self._lock:
            self._records.append(record)

    def _add_wrong(self, text: str) -> None:
        with self._lock:
            self._wrong.append(text)


def keep_house(house: House, target: Path, record: RunRecord) -> Path:
    """Copy what is left of a run: its home, its store, its tables, and what was wrong."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(house.settings.home, target, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
    (target / "wrong.txt").write_text("\n\n".join([record.plan, *record.wrong]), encoding="utf-8")
    tables: Mapping[str, list[dict[str, str]]] = {}
    try:
        with house.deployment.database.engine.connect() as connection:
            tables = {
                name: [
                    {key: str(value) for key, value in row.items()}
                    for row in connection.execute(select(one)).mappings()
                ]
                for name, one in Base.metadata.tables.items()
            }
    except Exception as error:  # noqa: BLE001  (whatever became of the database, the rest is kept)
        (target / "wrong.txt").open("a").write(f"\n\nthe tables cannot be read: {error}")
    (target / "tables.json").write_text(json.dumps(tables, indent=1), encoding="utf-8")
    return target


def forget_environment() -> None:
    """No setting of whoever calls reaches a run."""
    for name in [name for name in os.environ if name.startswith("PIPELINE_")]:
        del os.environ[name]
