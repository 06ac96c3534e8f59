"""How many shards a second many workers claim from one database, and whether each is claimed once.

    python tests/benchmarks/bench_claims.py [--processes 16] [--jobs 1000] [--shards 100] [--seconds 20] [--sqlite]

Each process is a worker's service on one database and claims as a worker does: it looks which jobs have a shard, sees
that it holds their models, takes one, and counts who was passed over. Nothing runs the shards. PostgreSQL is started
for this run, with its commits on disk (``--no-fsync`` for the tests' way). Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import select

from pipeline.checkpoints.digest import digest
from pipeline.config import Settings
from pipeline.db import migrate
from pipeline.db.models import Shard
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.service import WorkerService
from tests.fixtures.crowd import add_running
from tests.fixtures.house import build_house
from tests.fixtures.in_process import QUEUES
from tests.fixtures.scripted_host import ScriptedHost
from tests.fixtures.services import find_postgres, start_postgres

#: What makes a commit wait for the disk; a server of the tests does not.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--shards", type=int, default=100, help="of each job")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--sqlite", action="store_true")
    parser.add_argument("--no-fsync", action="store_true", help="PostgreSQL without waiting for the disk")
    parser.add_argument("--claimer", nargs=2, metavar=("HOME", "URL"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.claimer:
        claim_for(Path(asked.claimer[0]), asked.claimer[1], asked.seconds)
        return
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if asked.sqlite:
            url = f"sqlite:///{home / 'pipeline.db'}"
        else:
            url = stack.enter_context(postgres(durable=not asked.no_fsync))
        migrate.upgrade(url)
        print(json.dumps(measure(home, url, asked)))


@contextmanager
def postgres(*, durable: bool) -> Iterator[str]:
    binaries = find_postgres()
    if binaries is None:
        sys.exit("no PostgreSQL on this machine")
    server = start_postgres(binaries, **(DURABLE if durable else {}))
    try:
        yield server.url(server.create())
    finally:
        server.guarded.stop()


def measure(home: Path, url: str, asked: argparse.Namespace) -> dict[str, Any]:
    house = build_house(home / "house", database_url=url)
    model = house.add_fake_model()
    pinned = {"model": "fake", "model_digest": digest(model)}
    with house.deployment.database.engine.begin() as connection:
        add_running(connection, asked.jobs, asked.shards, **pinned)
    if not asked.sqlite:
        with house.deployment.database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM ANALYZE")
    load = round(os.getloadavg()[0], 1)
    command = [sys.executable, __file__, "--seconds", str(asked.seconds), "--claimer", str(house.settings.home), url]
    environ = house.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    claimers = [
        subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(asked.processes)
    ]
    for claimer in claimers:
        assert claimer.stdout is not None and claimer.stdout.readline() == "ready\n"
    for claimer in claimers:
        assert claimer.stdin is not None
        claimer.stdin.write("go\n")
        claimer.stdin.flush()
    reports = [json.loads(claimer.communicate()[0]) for claimer in claimers]
    won = Counter(shard for report in reports for shard in report["won"])
    seconds = [second for report in reports for second in report["seconds"]]
    with house.deployment.database.engine.connect() as connection:
        tokens = list(connection.execute(select(Shard.lease_token).where(Shard.lease_owner.is_not(None))).scalars())
    house.stop()
    spans = [report["end"] - report["start"] for report in reports]
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "database": "sqlite" if asked.sqlite else "postgresql" + (", no fsync" if asked.no_fsync else ""),
        "processes": asked.processes,
        "cores": os.cpu_count(),
        "jobs": asked.jobs,
        "shards": asked.jobs * asked.shards,
        "claims": len(seconds),
        "claims_per_s": round(len(seconds) / max(spans), 1),
        "p50_ms": round(cuts[49] * 1000, 1),
        "p95_ms": round(cuts[94] * 1000, 1),
        "worker_cpu_ms_per_claim": round(sum(report["cpu_s"] for report in reports) / len(seconds) * 1000, 2),
        "load_before": load,
        "doubled": sum(count - 1 for count in won.values()) + sum(token != 1 for token in tokens),
        "in_database": len(tokens),
        "jobs_claimed_from": len({(shard - 1) // asked.shards for shard in won}),
    }


def claim_for(home: Path, url: str, limit_s: float) -> None:
    """One claimer: warms up, waits for the word, claims until time or shards run out, reports."""
    deployment = Deployment.open(Settings(home=home, database_url=url))
    host = ScriptedHost()
    service = WorkerService(
        deployment, [host], worker_id=uuid.uuid4().hex, queues=QUEUES, device="bench", memory_bytes=0
    )
    with deployment.database.read() as uow:  # connect, and compile what every claim asks
        uow.claims.candidates(QUEUES, service.worker_id)
    print("ready", flush=True)
    sys.stdin.readline()
    won: list[int] = []
    seconds: list[float] = []
    start = now = time.monotonic()
    cpu = time.process_time()
    while now - start < limit_s:
        lease = service._claim(host)
        before, now = now, time.monotonic()
        if lease is None:
            break
        won.append(lease.shard_id)
        seconds.append(now - before)
    cpu_s = time.process_time() - cpu
    print(json.dumps({"won": won, "seconds": seconds, "start": start, "end": now, "cpu_s": cpu_s}))
    service.close()
    deployment.close()


if __name__ == "__main__":
    main()
