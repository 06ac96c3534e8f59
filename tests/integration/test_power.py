"""A Mac at night. macOS is not where these tests run: ``caffeinate`` is a stand-in, processes and signals are real."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipeline.db.states import JobStatus
from pipeline.jobs.service import DRAIN_S
from pipeline.ports import WorkItem
from tests.fixtures.fake_macos import FakeCaffeinate
from tests.fixtures.house import PATIENCE_S, House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, requests, running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost
from workers.power import PowerAssertion


@pytest.fixture
def caffeinate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCaffeinate:
    fake = FakeCaffeinate(tmp_path / "bin")
    monkeypatch.setenv("PATH", fake.path)
    return fake


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_overlapping_leases_share_one_assertion_that_ends_after_the_last(caffeinate: FakeCaffeinate) -> None:
    power = PowerAssertion(platform="darwin", linger_s=0.2)
    inside, leave = threading.Barrier(4), threading.Event()

    def hold() -> None:
        with power.hold():
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    inside.wait()
    wait_for(lambda: caffeinate.started, "caffeinate to start")
    ((pid, arguments),) = caffeinate.started
    assert arguments == ["-i", "-w", str(os.getpid())]
    leave.set()
    for thread in threads:
        thread.join()
    wait_for(lambda: not is_running(pid), "caffeinate to end")
    assert len(caffeinate.started) == 1


def test_the_next_lease_finds_it_running_and_one_that_comes_late_starts_it_again(caffeinate: FakeCaffeinate) -> None:
    power = PowerAssertion(platform="darwin", linger_s=3600)
    for _ in range(3):
        with power.hold():
            wait_for(lambda: caffeinate.started, "caffeinate to start")
    ((pid, _),) = caffeinate.started
    assert is_running(pid)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_running(pid), "it to be gone")
    with power.hold():
        wait_for(lambda: len(caffeinate.started) == 2, "another to start")
        power.close()
        assert not is_running(caffeinate.started[1][0])


def test_it_ends_with_a_worker_that_is_killed(caffeinate: FakeCaffeinate) -> None:
    program = "import time; from workers.power import PowerAssertion\nwith PowerAssertion(platform='darwin').hold(): time.sleep(600)"
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    worker = subprocess.Popen([sys.executable, "-c", program], env=environ)
    wait_for(lambda: caffeinate.started, "caffeinate to start")
    ((pid, arguments),) = caffeinate.started
    assert arguments[2] == str(worker.pid)
    worker.kill()
    worker.wait()
    wait_for(lambda: not is_running(pid), "caffeinate to end")


@pytest.mark.parametrize("options", [{"platform": "linux"}, {"platform": "darwin", "enabled": False}])
def test_nothing_is_started_elsewhere_or_when_it_is_off(caffeinate: FakeCaffeinate, options: dict[str, object]) -> None:
    with PowerAssertion(**options).hold():  # type: ignore[arg-type]
        pass
    time.sleep(0.1)
    assert caffeinate.started == []


def test_a_missing_program_is_said_once_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    power = PowerAssertion(platform="darwin")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with power.hold():
                pass
    assert [record.message for record in caplog.records] == ["cannot_keep_awake"]
    power.close()


def test_a_service_is_awake_for_as_long_as_it_holds_a_shard(make_house: MakeHouse, caffeinate: FakeCaffeinate) -> None:
    house: House = make_house(**SHORT_LEASES)
    power = PowerAssertion(platform="darwin", linger_s=3600)
    seen: list[int] = []

    def look(item: WorkItem) -> None:
        wait_for(lambda: caffeinate.started, "caffeinate to start")
        seen.append(caffeinate.started[0][0])
        assert is_running(seen[0])

    with running_service(house, ScriptedHost(look)) as service:
        service._awake = power.hold
        service.tick()
        assert service.serve() == 0
        assert caffeinate.started == [], "no lease, no assertion"
        job_id = house.submit(requests(4), shard_items=2)
        assert work_until_end(house, service, job_id).status is JobStatus.COMPLETED
    assert len(seen) == 4
    assert len(caffeinate.started) == 1
    power.close()


def test_a_manager_waits_long_enough_for_a_drain() -> None:
    """The examples in docs/examples: what launchd and systemd wait before SIGKILL is more than a drain may take."""
    import plistlib

    from workers.supervisor import SHUTDOWN_GRACE_S

    examples = Path(__file__).parents[2] / "docs" / "examples"
    longest = 2 * DRAIN_S + SHUTDOWN_GRACE_S
    plist = plistlib.loads((examples / "local.pipeline.worker.plist").read_bytes())
    assert plist["Label"] == "local.pipeline.worker"
    assert plist["ExitTimeOut"] > longest
    assert plist["KeepAlive"] is True
    assert plist["ProcessType"] == "Interactive"
    assert plist["EnvironmentVariables"]["PIPELINE_CONFIG"].startswith("/")
    assert plist["StandardErrorPath"].startswith("/")
    assert plist["Umask"] == 0o077
    assert plist["ProgramArguments"][1:] == ["worker"]
    unit = (examples / "pipeline-worker.service").read_text()
    values = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    assert float(values["TimeoutStopSec"]) > longest
    assert values["ExecStart"].endswith("/pipeline worker")
    assert values["KillMode"] == "mixed", "the worker ends its own children"
