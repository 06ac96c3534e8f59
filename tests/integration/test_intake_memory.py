"""Memory of intake does not grow with the file; measured in fresh processes, as users have it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "bench_intake.py"


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["named", "distinct"])
def test_intake_of_a_large_file_stays_within_64_mib_of_a_small_one(shape: str, full_counts: bool) -> None:
    sizes = ["1000", "200000", "2000000"] if full_counts else ["1000", "200000"]
    command = [sys.executable, str(BENCHMARK), "--json", "--shapes", shape, "--lines", *sizes]
    environment = os.environ | {"PYTHONPATH": str(BENCHMARK.parents[2])}
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, timeout=280)
    rows = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [row["items"] for row in rows] == [int(size) for size in sizes]
    for row in rows:
        assert row["growth_mib"] <= 64
