"""The processes of one installation, found by the home they were given, whoever their parents are by now."""

from __future__ import annotations

import psutil

from tests.fixtures.house import HOUSE_MARK, House


def processes_of(house: House) -> list[psutil.Process]:
    """Workers and engines that live, with all they started; not the process that asks."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and _home(process) == str(house.settings.home):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def engines_of(house: House, parent: int | None = None) -> list[psutil.Process]:
    """Children that hold an engine; with ``parent`` those under one worker."""
    return [one for one in processes_of(house) if "workers.child" in _words(one) and parent in (None, _parent(one))]


def _home(process: psutil.Process) -> str | None:
    return process.environ().get(HOUSE_MARK)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None
