"""The speeds that bulk generation is held to: our engine against mlx-lm's batch call, guesses against plain decoding.

    python -m tests.benchmarks.bench_generate [--only mixed,lookup] [--repeat 3] [--out FOLDER] [--model FOLDER]

Every workload runs in a process of its own, which loads the model once (SmolLM2-135M in float32 unless another is
named) and measures its arms in turn. Writes a JSON document and a page for each into ``--out``, and prints a table for
``docs/benchmarks.md``. ``auto`` is held against whichever fixed arm was fastest, workload by workload and over all.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.config import Settings
from pipeline.errors import PipelineError
from pipeline.jobs.benchmark import bench_request
from pipeline.reports.bench_page import bench_page
from pipeline.reports.bench_words import findings
from pipeline.specs import GenerateSpec
from tests.benchmarks.generation_workloads import Workload, all_workloads
from tests.fixtures.models import make_smollm2
from workers.blas import blas_environment
from workers.engines.benching.intervals import Ratio, paired_ratio

HEADINGS = ("date", "workload", "width", "arm", "output tokens/s", "against", "ratio", "range", "95 % interval", "bar")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated beginnings of names: " + ", ".join(_names()))
    parser.add_argument("--repeat", type=int, help="measured runs of each arm, in place of each workload's own")
    parser.add_argument("--out", type=Path, default=Path("bench-output"), help="folder for documents and pages")
    parser.add_argument("--model", type=Path, help="a checkpoint's folder")
    parser.add_argument("--arms", help="comma-separated, the baseline first, in place of each workload's own")
    asked = parser.parse_args()
    chosen = [one for one in all_workloads() if _is_chosen(one, asked.only)]
    if not chosen:
        parser.error(f"no workload begins with {asked.only}; there are {', '.join(_names())}")
    model = asked.model.absolute() if asked.model else make_smollm2()
    asked.out.mkdir(parents=True, exist_ok=True)
    begun, documents = time.monotonic(), {}
    for workload in chosen:
        print(f"--- {workload.name}: {workload.title} (bar: {workload.bar})", file=sys.stderr)
        documents[workload.name] = _measure(workload, model, asked)
        for finding in findings(documents[workload.name]):
            print(finding.text, file=sys.stderr)
    print(table(chosen, documents))
    print(f"{(time.monotonic() - begun) / 60:.1f} minutes", file=sys.stderr)
    return 0 if all(document["is_comparable"] for document in documents.values()) else 1


def _names() -> list[str]:
    return [one.name for one in all_workloads()]


def _is_chosen(workload: Workload, only: str | None) -> bool:
    return only is None or workload.name.startswith(tuple(only.split(",")))


def _measure(workload: Workload, model: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Run one workload; its document, which is also written, with its page."""
    arms = asked.arms.split(",") if asked.arms else workload.arms
    name = model.name if asked.model else "SmolLM2-135M-Instruct"
    spec = GenerateSpec.model_validate({"model": {"name": name}, "width": workload.width, **workload.spec})
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home), models={name: str(model)})
        request = bench_request(
            spec,
            arms,
            workload.items(model),
            settings,
            title=workload.title,
            repeat=asked.repeat or workload.repeat,
            warm_up_items=workload.warm_up_items,
        )
    command = [sys.executable, "-m", "workers.engines.benching"]
    done = subprocess.run(
        command,
        env={**os.environ, **blas_environment()},
        input=request.model_dump_json().encode(),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise PipelineError(f"{workload.name} ended with {done.returncode}; it says why above")
    document: dict[str, Any] = json.loads(done.stdout)
    (asked.out / f"{workload.name}.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    (asked.out / f"{workload.name}.html").write_text(bench_page(document), encoding="utf-8")
    return document


# --- the table --------------------------------------------------------------------------------------------------------


def table(chosen: list[Workload], documents: dict[str, dict[str, Any]]) -> str:
    """Markdown: a row for each arm that has a ratio or was refused one, and auto over all its workloads."""
    rows = []
    pooled: list[float] = []
    for workload in chosen:
        document = documents[workload.name]
        rows += _rows(workload, document)
        if workload.name.startswith("auto-") and (best := against_best(document)):
            name, ratio = best
            pooled += ratio.per_run
            rows.append(_row(workload, _arm(document, "auto"), f"{name} (best fixed)", ratio, workload.bar))
    if pooled:
        ratio = paired_ratio(pooled, [1.0] * len(pooled))
        rows.append(("", "auto, all of these", "", "auto", "", "best fixed", *_show(ratio), "interval above 0.95"))
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def against_best(document: dict[str, Any]) -> tuple[str, Ratio] | None:
    """Which fixed arm was fastest, by the geometric mean of its runs, and auto's ratio to it; None without both."""
    arms = {arm["name"]: arm for arm in document["arms"] if not arm["refused"]}
    fixed = {name: _rates(arm) for name, arm in arms.items() if name in ("plain", "lookup", "draft", "prefix_cache")}
    if not fixed or "auto" not in arms:
        return None
    best = max(fixed, key=lambda name: math.prod(fixed[name]))
    return best, paired_ratio(_rates(arms["auto"]), fixed[best])


def _rows(workload: Workload, document: dict[str, Any]) -> list[tuple[str, ...]]:
    baseline = document["method"]["baseline"]
    rows = []
    for arm in document["arms"]:
        if arm["refused"]:
            row = _row(workload, arm, baseline, None, arm["refused"])
        elif arm["name"] == baseline:
            row = _row(workload, arm, "", None, "")
        else:
            values = {name: tuple(value) if isinstance(value, list) else value for name, value in arm["ratio"].items()}
            bar = "" if workload.name.startswith("auto-") else workload.bar
            row = _row(workload, arm, baseline, Ratio(**values), bar)
        rows.append(row)
    return rows


def _row(workload: Workload, arm: dict[str, Any], against: str, ratio: Ratio | None, bar: str) -> tuple[str, ...]:
    rate = f"{arm['summary']['tokens_per_s']['median']:.1f}"
    day = datetime.now(UTC).date().isoformat()
    return (day, workload.title, str(workload.width), arm["name"], rate, against, *_show(ratio), bar)


def _show(ratio: Ratio | None) -> tuple[str, str, str]:
    if ratio is None:
        return "", "", ""
    interval = f"{ratio.interval[0]:.2f} to {ratio.interval[1]:.2f}" if ratio.interval else ""
    return f"**{ratio.median:.2f}**", f"{ratio.low:.2f} to {ratio.high:.2f}", interval


def _rates(arm: dict[str, Any]) -> list[float]:
    return [float(run["tokens_per_s"]) for run in arm["runs"]]


def _arm(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(arm for arm in document["arms"] if arm["name"] == name)


if __name__ == "__main__":
    sys.exit(main())
