"""A dead neighbour on the same host is known at once, by its lock and not by a clock; a stopped one is no dead one."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from pipeline.db.states import JobStatus
from pipeline.jobs.planner import plan
from pipeline.jobs.presence import Presence
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import claim, make_service, requests, running_service
from tests.fixtures.scripted_host import ScriptedHost
from tests.fixtures.sleepers import put_to_sleep

#: Leases that no test would live to see run out.
LONG = {"lease_s": 3600.0, "renew_s": 5.0, "reconcile_s": 0.2, "poll_s": 0.2, "part_items": 2}


def test_a_neighbour_is_gone_when_its_lock_is_free(tmp_path: Path) -> None:
    mine, other = Presence(tmp_path, "mine"), Presence(tmp_path, "other")
    assert list(mine.gone()) == list(other.gone()) == []
    other.close()
    assert list(mine.gone()) == [], "who leaves in order leaves no file"
    third = Presence(tmp_path, "third")
    os.close(third._handle)  # as the kernel does for a dead process
    assert list(mine.gone()) == ["third"]
    mine.forget("third")
    assert list(mine.gone()) == []
    mine.close()


def test_a_file_of_another_host_says_nothing(tmp_path: Path) -> None:
    """Locks of a shared folder may not reach from host to host."""
    mine = Presence(tmp_path, "mine")
    (tmp_path / "run" / "far.lock").write_text("another-host")
    assert list(mine.gone()) == []
    mine.close()


def test_a_home_where_no_lock_can_be_held_names_nobody(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file, no folder")
    mine = Presence(tmp_path, "mine")
    assert list(mine.gone()) == []
    mine.close()


def test_everything_a_dead_neighbour_held_is_free_at_the_next_tick(make_house: MakeHouse, database_url: str) -> None:
    """Its shard's lease, a job's lease, the reconcile lease."""
    house = make_house(database_url=database_url, **LONG)
    dead = make_service(house, ScriptedHost())
    first, second = house.submit(requests(2)), house.submit(requests(2))
    plan(house.deployment, first, owner=dead.worker_id)
    dead.tick()  # takes the reconcile lease, and has its control thread plan
    lease = claim(house, first, dead.worker_id)
    with house.deployment.database.write() as uow:
        uow.jobs.lease(second, JobStatus.VALIDATING, dead.worker_id)
    os.close(dead._presence._handle)
    dead._presence._handle = None
    with running_service(house, ScriptedHost()) as service:
        service.tick()
        (shard,) = house.shards(first)
        assert shard.lease_token > lease.token and shard.lost_leases == 1
        with house.deployment.database.read() as uow:
            assert dead.worker_id not in [worker.id for worker in uow.workers.live()]
            named = uow.workers.named_lease("reconcile")
        assert named is not None and named.owner != dead.worker_id
        assert house.job(second).lease_owner != dead.worker_id
    dead._control_pool.shutdown()


def test_killed_workers_shard_goes_on_without_waiting_for_its_lease(make_house: MakeHouse) -> None:
    house = make_house(**LONG)
    house.add_fake_model(delay_s=0.1)
    job_id = house.submit(requests(24), shard_items=12)
    victim = house.start_worker()
    house.wait_for(lambda: house.parts(job_id), "a first part")
    os.kill(victim.pid, signal.SIGKILL)
    house.start_worker()
    job = house.wait_end(job_id)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 24)


def test_a_stopped_worker_is_not_taken_for_dead(make_house: MakeHouse) -> None:
    house = make_house(**LONG)
    house.add_fake_model(delay_s=0.1)
    job_id = house.submit(requests(12), shard_items=6)
    stopped = house.start_worker()
    house.wait_for(lambda: house.parts(job_id), "a first part")
    put_to_sleep(house, stopped.pid)
    try:
        house.start_worker()
        house.wait_for(lambda: _finished_by_others(house, job_id), "the other worker to have nothing left")
        held = [shard for shard in house.shards(job_id) if shard.lease_owner]
        assert all(shard.lost_leases == 0 for shard in held)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    assert house.wait_end(job_id).succeeded == 12


def _finished_by_others(house: House, job_id: str) -> bool:
    return sum(shard.status == "pending" for shard in house.shards(job_id)) == 0 and len(house.workers) == 2


def test_locks_are_not_inherited_by_what_a_worker_starts(tmp_path: Path) -> None:
    """A child that outlived its parent for a moment would keep the lock, and the parent would seem to live."""
    mine, other = Presence(tmp_path, "mine"), Presence(tmp_path, "other")
    with subprocess.Popen(["sleep", "30"], close_fds=False) as child:
        os.close(other._handle)
        assert list(mine.gone()) == ["other"]
        child.kill()
    mine.close()
