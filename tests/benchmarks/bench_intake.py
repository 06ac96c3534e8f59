"""Speed and memory of intake: lines per second and peak resident memory, each run in a fresh process.

    python tests/benchmarks/bench_intake.py [--lines 1000 200000 2000000] [--shapes named same distinct repeated]

Prints one line per run (``--json``: one object per run). ``growth`` is the peak over that of the same shape's first run; the limit is 64 MiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from pipeline.jobs.intake import IntakeOptions, intake
from pipeline.specs.base import JobKind
from pipeline.store.artifacts import ArtifactStore

_MIB = 1024 * 1024


def _batch_line(custom_id: str, number: int) -> bytes:
    message = {"role": "user", "content": f"What is the sum of {number} and one? Answer briefly."}
    body = {"model": "m", "messages": [message], "max_tokens": 32}
    return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


#: What a file is made of; the figure that counts is that of ``named``.
_SHAPES: dict[str, Callable[[int], bytes]] = {
    "named": lambda n: _batch_line(f"request-{n}", n),
    "same": lambda n: b'{"prompt":"the same text on every line, without an id"}',
    "distinct": lambda n: b'{"prompt":"text %d, without an id"}' % n,
    "repeated": lambda n: _batch_line(f"request-{n // 2}", n),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, nargs="+", default=[1_000, 200_000, 2_000_000])
    parser.add_argument("--shapes", nargs="+", choices=list(_SHAPES), default=["named"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        _measure(options.measure)
        return
    if not options.json:
        print("| shape | lines | bytes per line | lines/s | lines per CPU second | peak MiB | growth MiB |")
        print("|---|---|---|---|---|---|---|")
    for shape in options.shapes:
        first: float | None = None
        for lines in options.lines:
            row = _run(shape, lines)
            first = row["peak_mib"] if first is None else first
            row |= {"lines": lines, "growth_mib": row["peak_mib"] - first}
            print(json.dumps(row) if options.json else _table_row(shape, row), flush=True)


def _table_row(shape: str, row: dict[str, float]) -> str:
    lines = row["lines"]
    return (
        f"| {shape} | {lines:,} | {row['bytes'] / lines:.0f} | {lines / row['wall_s']:,.0f} "
        f"| {lines / row['cpu_s']:,.0f} | {row['peak_mib']:.1f} | {row['growth_mib']:.1f} |"
    )


def _run(shape: str, lines: int) -> dict[str, float]:
    """Write the input, measure it in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.jsonl"
        with path.open("wb") as file:
            file.writelines(_SHAPES[shape](number) + b"\n" for number in range(lines))
        command = [sys.executable, __file__, "--measure", str(path)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        row: dict[str, float] = json.loads(answer.stdout)
        return row


def _measure(path: Path) -> None:
    store = ArtifactStore((path.parent / "store").as_uri())
    options = IntakeOptions(kind=JobKind.GENERATE, model="m", skip_invalid=True)
    wall, cpu = time.perf_counter(), time.process_time()
    with path.open("rb") as source:
        report = intake(source, options, store, errors_path=path.parent / "errors.jsonl")
    row = {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_mib": _peak_bytes() / _MIB,
        "items": report.items,
        "bytes": path.stat().st_size,
    }
    print(json.dumps(row))


def _peak_bytes() -> int:
    """Peak resident memory. Linux's ``ru_maxrss`` may be the parent's from before exec, so its own figure is better."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


if __name__ == "__main__":
    main()
