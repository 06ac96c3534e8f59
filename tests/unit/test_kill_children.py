"""What a second signal does to the engines: all of them, what they started, and without a lock."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from workers.process import ChildProcess, kill_children

#: Starts another process that ignores the end of its pipes, writes both ids, and stands still.
SCRIPT = "trap '' HUP TERM; sleep 600 <&- >&- 2>&- & echo $$ $! > {file}.new; mv {file}.new {file}; wait"

PATIENCE_S = 30.0


def is_gone(pid: int) -> bool:
    """Or a zombie that somebody else has to reap."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until(condition: object, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_children_and_what_they_started_are_gone_and_are_forgotten(tmp_path: Path) -> None:
    files = [tmp_path / f"child-{number}" for number in range(2)]
    children = [ChildProcess(["/bin/sh", "-c", SCRIPT.format(file=file)], dict(os.environ)) for file in files]
    wait_until(lambda: all(file.exists() for file in files), "the children to start")
    pids = [int(word) for file in files for word in file.read_text().split()]
    assert len(pids) == 4
    assert not any(map(is_gone, pids))
    # As in a handler that interrupts the very thread that holds them.
    with children[0]._sweep_lock, children[1]._sweep_lock:
        kill_children()
        wait_until(lambda: all(map(is_gone, pids)), "all four to be gone")
    for child in children:
        child.end()
    kill_children()  # their numbers may be others' by now


@pytest.mark.parametrize("ends", ["exit 0", "kill -9 $$"])
def test_child_that_is_seen_to_be_gone_is_not_killed_again(ends: str) -> None:
    from workers import process

    child = ChildProcess(["/bin/sh", "-c", ends], dict(os.environ))
    assert child.pid in process._children
    wait_until(lambda: not child.is_alive, "its end")
    assert child.pid not in process._children
    child.end()
