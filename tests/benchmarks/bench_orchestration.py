"""How much of a real job's time the child spends outside engine calls, and what parent and database cost.

    python tests/benchmarks/bench_orchestration.py MODEL_FOLDER [--requests 64] [--max-tokens 32] [--postgres]

One worker, one slot, from the first claim to the last commit on the monotonic clock. ``inside`` is the child's own trace
of engine calls; loading the model is reported by itself. CPU seconds are the operating system's: of the worker process,
and of the PostgreSQL processes where that is the database (SQLite works inside the worker). Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from pipeline.config import Settings
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.intake import IntakeOptions
from pipeline.jobs.submit import submit_items
from pipeline.specs import JobKind

SUBJECTS = ("rivers", "copper", "bees", "the moon", "bread", "glass", "winter", "bridges", "salt", "owls")
TASKS = ("Write two sentences about {}.", "List three facts about {}.", "Explain {} to a child.", "Name one use of {}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--shard-tokens", type=int, default=2048)
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL that is started for this run")
    asked = parser.parse_args()
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        database_url = stack.enter_context(_postgres()) if asked.postgres else None
        settings = Settings(home=Path(home), database_url=database_url)
        deployment = Deployment.open(settings)
        fields = {
            "kind": "generate",
            "shard_tokens": asked.shard_tokens,
            "sampling": {"max_tokens": asked.max_tokens},
        }
        options = IntakeOptions(kind=JobKind.GENERATE, model=str(asked.model))
        job_id = submit_items(deployment, io.BytesIO(_requests(asked.requests)), fields, options).job.id
        port = urlsplit(database_url).port if database_url else None
        before = _database_cpu_s(port) if port else 0.0
        cpu_s = _work_off(job_id, settings)
        report = _measure(deployment, job_id) | {
            "worker_cpu_s": round(cpu_s, 2),
            "database": "postgresql" if asked.postgres else "sqlite",
            "database_cpu_s": round(_database_cpu_s(port) - before, 2) if port else None,
            "requests": asked.requests,
        }
        deployment.close()
    print(json.dumps(report))


@contextmanager
def _postgres() -> Iterator[str]:
    """The URL of a new database at the newest schema; the server lives as long as the block."""
    from pipeline.db import migrate
    from tests.fixtures.services import find_postgres, start_postgres

    binaries = find_postgres()
    if binaries is None:
        sys.exit("no PostgreSQL on this machine")
    server = start_postgres(binaries)
    try:
        url = server.url(server.create())
        migrate.upgrade(url)
        yield url
    finally:
        server.guarded.stop()


def _requests(count: int) -> bytes:
    prompts = [TASKS[n % len(TASKS)].format(SUBJECTS[n // len(TASKS) % len(SUBJECTS)]) for n in range(count)]
    return b"".join(
        json.dumps({"custom_id": f"r{n}", "prompt": prompt}).encode() + b"\n" for n, prompt in enumerate(prompts)
    )


def _work_off(job_id: str, settings: Settings) -> float:
    """Run a worker until the job has ended; CPU seconds of the worker itself, its child not counted."""
    environ = dict(os.environ, PIPELINE_HOME=str(settings.home))
    if settings.database_url:
        environ["PIPELINE_DATABASE_URL"] = settings.database_url
    command = [sys.executable, "-m", "workers", "serve", "--until", job_id]
    process = psutil.Popen(command, env=environ, stderr=subprocess.DEVNULL)
    cpu_s = 0.0
    while process.poll() is None:
        try:
            times = process.cpu_times()
            cpu_s = times.user + times.system
        except psutil.Error:
            break
        try:
            process.wait(0.5)
        except psutil.TimeoutExpired:
            continue
    return cpu_s


def _measure(deployment: Deployment, job_id: str) -> dict[str, float | int | str]:
    with deployment.database.read() as uow:
        job = uow.jobs.get(job_id)
        rows = uow.metrics.of_job(job_id)
    assert job is not None
    sums: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        sums[row.name] += row.value
    claimed = min(row.value for row in rows if row.name == "claimed_at_monotonic_s")
    committed = max(row.value for row in rows if row.name == "committed_at_monotonic_s")
    span_s, inside_s, load_s = committed - claimed, sums["engine_busy_s"], sums["model_load_s"]
    return {
        "status": job.status.value,
        "shards": job.shards_total,
        "output_tokens": int(sums["output_tokens"]),
        "span_s": round(span_s, 2),
        "inside_engine_s": round(inside_s, 2),
        "model_load_s": round(load_s, 2),
        "outside_share": round(1 - (inside_s + load_s) / span_s, 4),
        "outside_share_load_counted_outside": round(1 - inside_s / span_s, 4),
        "output_tokens_per_s": round(sums["output_tokens"] / span_s, 1),
    }


def _database_cpu_s(port: int) -> float:
    """Of the server that listens on ``port``: its own, its ended backends' (its children's), its live ones'."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "postgres" and ["-p", str(port)] == (process.info["cmdline"] or [])[3:5]:
            own = process.cpu_times()
            live = [child.cpu_times() for child in process.children(recursive=True)]
            total = own.user + own.system + own.children_user + own.children_system
            return total + sum(times.user + times.system for times in live)
    return 0.0


if __name__ == "__main__":
    main()
