"""Named places where a test can have the process killed, so that every boundary between two durable steps is reachable.

Armed by the environment variable ``PIPELINE_FAIL_POINT=name[:N][@marker]``: the process gets SIGKILL at its N-th pass
(default 1st) of the place. ``marker`` is a file that remembers it: of all processes that share the file one is killed,
once. Unarmed, a place costs one look at a variable. Knows nothing about what happens at the places.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from pipeline.config import ENV_FAIL_POINT
from pipeline.errors import ConfigError

#: Every place and what is true there. ``*.in_*`` lie inside a transaction, behind its last statement.
FAIL_POINTS: Mapping[str, str] = {
    "submit.before_file": "the input was read and checked; its item file is not in the store under its name",
    "submit.after_file": "the item file is in the store; there is no job",
    "submit.in_insert": "the job's row is inserted and not committed",
    "submit.after_row": "the job exists; nobody was told",
    "submit.after_ring": "the doorbell was rung; the user has not seen the job's id",
    "plan.after_lease": "the job's lease for planning is held; nothing is cut",
    "plan.in_commit": "the shards are inserted and not committed",
    "plan.after_commit": "the job is queued; nobody was told",
    "claim.in_commit": "a shard is claimed and not committed",
    "claim.after_commit": "a shard is leased; nothing was done for it",
    "part.before_file": "answers are gathered and nothing of them is durable",
    "part.after_file": "the part's file is in the store; there is no row",
    "part.in_commit": "the part's row and the counts are written and not committed",
    "part.after_row": "the part is registered; the attempt goes on",
    "shard.before_commit": "all answers are registered; the shard is leased still",
    "shard.in_commit": "the shard is done, and its job perhaps finalizing, and neither is committed",
    "shard.after_commit": "the shard is done; nobody was told of a job that is finalizing now",
    "finalize.after_lease": "the job's lease for finalizing is held; nothing is written",
    "finalize.after_outputs": "output and errors are in the store under names with the token; the job does not know them",
    "finalize.in_commit": "the job has ended and it is not committed",
    "finalize.after_update": "the job has ended; the finalizer has not said so",
    "publish.after_files": "an index and its manifest are in the store; there is no row",
    "publish.in_row": "the index version's row is inserted and not committed",
    "publish.before_alias": "the job has ended, not committed, and the alias shows the version before",
    "publish.in_alias": "the alias has moved and it is not committed",
    "prune.after_mark": "a job says that it is being removed; all of its rows and files are there",
    "prune.between_rows": "some of its rows are gone, or all; its files are there",
    "prune.between_files": "a file that no row names is gone; others are there",
}

_FORM = re.compile(r"(?P<name>[a-z_.]+)(:(?P<passes>[1-9][0-9]*))?(@(?P<marker>.+))?")


class _Armed:
    """The one place that kills, and how many passes are left."""

    def __init__(self, name: str, passes: int, marker: Path | None) -> None:
        self.name = name
        self._left = passes
        self._marker = marker
        self._lock = threading.Lock()

    def pass_by(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left or not self._is_first():
                return
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # the signal may take a moment, and nothing more may happen here

    def _is_first(self) -> bool:
        """Of several processes, and over restarts, one is told yes."""
        if self._marker is None:
            return True
        try:
            self._marker.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


_armed: _Armed | None = None


def fail_point(name: str) -> None:
    """A place where the process may be killed; nothing when none is armed."""
    if _armed is not None and _armed.name == name:
        _armed.pass_by()


def arm(environ: Mapping[str, str] | None = None) -> None:
    """Arm what the environment names, or nothing; called once at the start of a process. Raises ConfigError."""
    global _armed
    text = (os.environ if environ is None else environ).get(ENV_FAIL_POINT)
    _armed = _parse(text) if text else None


def _parse(text: str) -> _Armed:
    place = f"environment variable {ENV_FAIL_POINT}"
    form = _FORM.fullmatch(text)
    if form is None:
        raise ConfigError(f"{text!r} is not name[:N][@marker]", place=place, hint="it is for tests; unset it")
    if form["name"] not in FAIL_POINTS:
        raise ConfigError(
            f"unknown fail point {form['name']!r}", place=place, hint=f"they are {', '.join(sorted(FAIL_POINTS))}"
        )
    return _Armed(form["name"], int(form["passes"] or 1), Path(form["marker"]) if form["marker"] else None)
