"""``python -m tests.chaos``: seeds against one combination of database, broker and engine; exit 1 when a check failed."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from tests.chaos import report
from tests.chaos.driver import forget_environment, run_seed
from tests.chaos.plan import DatabaseKind, Options
from tests.chaos.surroundings import Surroundings

ROOT = Path(__file__).parents[2]

#: Reports, and what is kept of runs that failed; git ignores it.
FOLDER = ROOT / ".chaos"


def main() -> int:
    given = _parser().parse_args()
    forget_environment()
    logging.basicConfig(level=logging.ERROR)  # what the driver's own doorbells warn of is what it does to them
    os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    databases: list[DatabaseKind] = ["sqlite", "postgresql"] if given.database == "both" else [given.database]
    runs: list[report.RunRecord] = []
    started = time.monotonic()
    path = FOLDER / f"report-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json"
    for database in databases:
        options = Options(
            database=database,
            broker=given.broker or ("redis" if database == "postgresql" else "embedded"),
            engine=given.engine,
            items=given.items or (40 if given.engine == "smollm2" else 300),
            workers=given.workers,
            default_settings=given.default_settings,
            work_s=given.work_s or (120.0 if given.default_settings else 12.0),
        )
        with Surroundings.open(options) as surroundings:
            for seed in range(given.first_seed, given.first_seed + given.seeds):
                record = run_seed(surroundings, seed, FOLDER)
                runs.append(record)
                report.write(path, runs)
                _say(record)
    print(f"\n{report.table(runs)}\n\n{report.summary(runs)}; {time.monotonic() - started:.0f} s")
    for name, reason in sorted({pair for run in runs for pair in run.left_out.items()}):
        print(f"left out: {name}: {reason}")
    print(f"report: {path}")
    return 1 if any(run.wrong for run in runs) else 0


def _say(record: report.RunRecord) -> None:
    verdict = "FAILED" if record.wrong else "held"
    print(
        f"  {verdict} in {record.seconds:.0f} s, {len(record.faults)} faults, {record.workers_started} workers",
        flush=True,
    )
    for problem in record.wrong:
        print("    " + problem.replace("\n", "\n    "), flush=True)
    if record.kept:
        print(f"    kept in {record.kept}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds [default: 1]")
    parser.add_argument("--first-seed", type=int, default=1, help="the first of them [default: 1]")
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both")
    parser.add_argument(
        "--broker", choices=["embedded", "redis"], help="default: redis beside PostgreSQL, else embedded"
    )
    parser.add_argument("--engine", choices=["fake", "smollm2"], default="fake")
    parser.add_argument("--items", type=int, help="default: 300, and 40 for smollm2")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--work-s", type=float, help="seconds that the fake engine takes undisturbed")
    parser.add_argument("--default-settings", action="store_true", help="leases as they are shipped, not short ones")
    return parser


if __name__ == "__main__":
    sys.exit(main())
