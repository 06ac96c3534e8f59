"""Run the full counts, one named check after another; resume after a stop; keep docs/verify-results.md.

A check that passed is not run again for the same commit (``.verify/`` holds the stamps). Changed files that are not
committed make every stamp stale, since nobody could tell later what was verified.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMPS = ROOT / ".verify"
RESULTS = ROOT / "docs" / "verify-results.md"


@dataclass(frozen=True, slots=True)
class Result:
    """How one check went; ``summary`` is the last line it printed, ``report`` what its tests had to say beside."""

    name: str
    commit: str
    passed: bool
    seconds: float
    summary: str
    report: str = ""


#: The check that runs what `make test` asked of one database on the other.
OTHER = "other_database"


def main() -> int:
    commit = describe_commit()
    STAMPS.mkdir(exist_ok=True)
    results = []
    for name, command in checks().items():
        stamp = STAMPS / f"{name}.json"
        result = read_stamp(stamp)
        if result is None or not result.passed or result.commit != commit or commit.endswith("+changes"):
            print(f"== {name}: {' '.join(command)}", flush=True)
            result = run(name, commit, command)
            stamp.write_text(json.dumps(asdict(result)), encoding="utf-8")
        else:
            print(f"== {name}: passed before at {commit}")
        results.append(result)
        write_table(results)
    return 0 if all(result.passed for result in results) else 1


def checks() -> dict[str, list[str]]:
    """Name to command: each file of tests that has fuller counts than an ordinary run; the rest is `make test`'s.

    Last comes what `make test` asks of one database only, on the other.
    """
    files = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").glob("*/test_*.py"))]
    full = [path for path in files if "full_counts" in (ROOT / path).read_text(encoding="utf-8")]
    named = {path.stem: [sys.executable, "-m", "pytest", "-q", str(path)] for path in full}
    return named | {
        OTHER: [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
    }


def describe_commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", ".", ":!docs/verify-results.md")
    # Committing the table itself must not make it stale.
    newest = git("log", "-1", "--format=%h", "--", ".", ":!docs/verify-results.md")
    return newest + ("+changes" if changed else "")


def read_stamp(path: Path) -> Result | None:
    try:
        return Result(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def run(name: str, commit: str, command: list[str]) -> Result:
    started = time.monotonic()
    report = STAMPS / f"{name}.md"
    report.unlink(missing_ok=True)
    environment = dict(os.environ) | {"PIPELINE_TEST_REPORT": str(report)}
    if name == OTHER:
        environment["PIPELINE_TEST_DATABASES"] = "other"
    else:
        environment |= {"PIPELINE_TEST_FULL": "1", "PIPELINE_TEST_DATABASES": "both"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    summary = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        summary = line.strip(" =\n") or summary
    passed = process.wait() == 0
    said = report.read_text(encoding="utf-8") if report.exists() else ""
    return Result(name, commit, passed, round(time.monotonic() - started, 1), summary, said)


def write_table(results: list[Result]) -> None:
    lines = [
        "# Results of `make verify`",
        "",
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}.",
        "Each line names the commit that was checked.",
        "",
        "| check | commit | result | seconds | last line |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        verdict = "passed" if result.passed else "FAILED"
        lines.append(f"| {result.name} | {result.commit} | {verdict} | {result.seconds:.0f} | {result.summary} |")
    for result in results:
        if result.report:
            lines += ["", f"## {result.name}", "", result.report.rstrip()]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
