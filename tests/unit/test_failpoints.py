"""Arming a fail point: what is refused, which pass kills, and that a marker makes it happen once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.config import ENV_FAIL_POINT, load_settings
from pipeline.errors import ConfigError
from pipeline.failpoints import arm, fail_point

ROOT = Path(__file__).parents[2]

#: Passes each place three times and says how far it got.
WALK = """
from pipeline.failpoints import arm, fail_point
arm()
for turn in range(3):
    for name in ("plan.after_lease", "claim.after_commit"):
        fail_point(name)
        print(turn, name, flush=True)
"""


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    arm({})


def walk(armed: str) -> tuple[int, int]:
    """(exit code, places passed)."""
    command = [sys.executable, "-c", WALK]
    done = subprocess.run(command, env={ENV_FAIL_POINT: armed, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    return done.returncode, len(done.stdout.splitlines())


@pytest.mark.parametrize(
    ("armed", "passed"), [("plan.after_lease", 0), ("claim.after_commit", 1), ("plan.after_lease:3", 4)]
)
def test_process_is_killed_at_the_pass_that_is_named(armed: str, passed: int) -> None:
    assert walk(armed) == (-signal.SIGKILL, passed)


def test_place_that_is_passed_too_seldom_kills_nobody() -> None:
    assert walk("plan.after_lease:4") == (0, 6)


def test_marker_lets_one_process_be_killed_and_no_other(tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    assert walk(f"plan.after_lease:2@{marker}") == (-signal.SIGKILL, 2)
    assert walk(f"plan.after_lease:2@{marker}") == (0, 6)


@pytest.mark.parametrize(
    "armed", ["plan.after_leese", "plan.after_lease:0", "plan.after_lease:x", "plan.after_lease@", ":2"]
)
def test_what_is_no_fail_point_is_refused(armed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        arm({ENV_FAIL_POINT: armed})
    assert caught.value.place == f"environment variable {ENV_FAIL_POINT}"
    assert caught.value.hint


def test_nothing_is_armed_by_nothing() -> None:
    arm({})
    fail_point("plan.after_lease")


def test_variable_is_no_setting() -> None:
    assert load_settings(environ={ENV_FAIL_POINT: "plan.after_lease"}).origins["home"] == "default"
