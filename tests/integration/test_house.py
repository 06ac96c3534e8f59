"""The tests' own installation: a worker that does not stop when asked is an error, not something to tidy away."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fixtures import house as house_module
from tests.fixtures.house import MakeHouse

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"


def test_worker_that_ignores_sigterm_is_killed_and_named(
    make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house_module, "STOP_S", 0.5)
    house = make_house()
    for script in (STUBBORN, "import time; print(1, flush=True); time.sleep(600)"):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        house.workers.append(process)
    stubborn, obedient = house.workers
    assert house.stop() == [stubborn.pid]
    assert obedient.returncode == -15
    assert stubborn.returncode == -9
