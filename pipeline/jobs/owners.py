"""Who holds a job-level lease, as far as this host can tell: a worker by its row, a command by what its name says.

Only ever used to be quicker: whoever cannot be shown to be gone is watched for ``lease_s`` instead (law 2).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket

from pipeline.db.values import WorkerView
from pipeline.jobs.deployment import Deployment

_COMMAND = "command"


def command_owner() -> str:
    """A new owner for a command's lease: host and process can be read from it, by a command of the same host."""
    return f"{_here()}-{os.getpid()}-{secrets.token_hex(6)}"


def is_gone(deployment: Deployment, owner: str) -> bool:
    """Whether the process of this owner ran on this host and runs no more."""
    if owner.startswith(_here()):
        pid = owner.removeprefix(_here()).split("-")[1]
        return pid.isdigit() and not runs(int(pid))
    with deployment.database.read() as uow:
        workers = uow.workers.live()
    return any(worker.id == owner and is_here(worker) and not runs(worker.pid) for worker in workers)


def is_here(worker: WorkerView) -> bool:
    return worker.host == socket.gethostname()


def runs(pid: int) -> bool:
    """Whether a process of this host has the number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _here() -> str:
    return f"{_COMMAND}-{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}"
