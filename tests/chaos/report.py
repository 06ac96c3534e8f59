"""What runs found, for people as a table and for programs as JSON.

``python -m tests.chaos.report FILE...`` prints one table for each kind of run in the reports together.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class FaultRecord:
    """A fault that was done.

    Attributes:
        at_s: seconds from the job's first submit.
        held_s: how long the fault was kept up.
        recovery_s: from the fault (of one that lasts: of a server or a disk, from its end) to the next sign of the
            work that it hit; None when the job ended first, or nobody was hit.
        outcome: ``recovered``, ``job ended first``, ``no target`` or ``not reached``.
    """

    fault: str
    at_s: float
    held_s: float
    recovery_s: float | None
    outcome: str


@dataclass(frozen=True)
class RunRecord:
    """One seed. ``wrong`` is empty when every check held; ``settings`` are ``short`` or ``default`` ones."""

    seed: int
    database: str
    broker: str
    engine: str
    settings: str
    plan: str
    seconds: float
    faults: Sequence[FaultRecord]
    wrong: Sequence[str]
    left_out: Mapping[str, str]
    attempts_failed: Mapping[str, int] = field(default_factory=dict)
    files_unregistered: int = 0
    workers_started: int = 0
    workers_left: Sequence[int] = ()
    kept: str | None = None


def table(runs: Sequence[RunRecord]) -> str:
    """Fault, how often it was done, how often work had to recover, median and worst seconds; as Markdown."""
    return "\n".join(_rows(runs))


def _rows(runs: Sequence[RunRecord]) -> Iterator[str]:
    yield "| fault | done | recovery measured | median s | worst s |"
    yield "|---|---|---|---|---|"
    records = [record for run in runs for record in run.faults]
    for name in sorted({record.fault for record in records}):
        done = [one for one in records if one.fault == name and one.outcome in ("recovered", "job ended first")]
        times = [one.recovery_s for one in done if one.recovery_s is not None]
        median = f"{statistics.median(times):.2f}" if times else ""
        worst = f"{max(times):.2f}" if times else ""
        yield f"| {name} | {len(done)} | {len(times)} | {median} | {worst} |"


def summary(runs: Sequence[RunRecord]) -> str:
    """One line: seeds, what was wrong, files that no row named, attempts that failed."""
    bad = [run.seed for run in runs if run.wrong]
    failed: dict[str, int] = {}
    for run in runs:
        for code, number in run.attempts_failed.items():
            failed[code] = failed.get(code, 0) + number
    words = [f"{len(runs)} seeds, {len(bad)} failed" + (f": {bad}" if bad else "")]
    words.append(f"{sum(len(run.faults) for run in runs)} faults")
    words.append(f"{sum(run.files_unregistered for run in runs)} files that no row named, gone by prune")
    words.append("failed attempts " + (", ".join(f"{code} {failed[code]}" for code in sorted(failed)) or "none"))
    return "; ".join(words)


def write(path: Path, runs: Sequence[RunRecord]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(run) for run in runs], indent=1), encoding="utf-8")


def read(path: Path) -> list[RunRecord]:
    found = json.loads(path.read_text(encoding="utf-8"))
    return [RunRecord(**{**run, "faults": [FaultRecord(**fault) for fault in run["faults"]]}) for run in found]


def main(paths: Sequence[Path]) -> None:
    kinds: dict[str, list[RunRecord]] = {}
    for run in (run for path in paths for run in read(path)):
        kinds.setdefault(f"{run.database}, {run.broker}, {run.engine}, {run.settings} settings", []).append(run)
    for kind, runs in sorted(kinds.items()):
        print(f"### {kind}\n\n{summary(runs)}; {sum(run.seconds for run in runs) / 60:.1f} min\n\n{table(runs)}\n")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
