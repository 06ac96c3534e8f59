"""Pauses, deadlines and the same content twice, as a user has them: processes, exit codes, and what is said."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.errors import ExitCode
from pipeline.jobs.pause import pause, resume
from tests.fixtures.house import PATIENCE_S, House, MakeHouse

FAST = {"reconcile_s": 0.3, "poll_s": 0.3, "part_s": 0.5}


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **FAST)


@pytest.fixture
def local_house(make_house: MakeHouse) -> House:
    return make_house(**FAST)


def prompts(number: int) -> bytes:
    return b"".join(json.dumps({"custom_id": f"r{n}", "prompt": f"say {n}"}).encode() + b"\n" for n in range(number))


def submit(house: House, *options: str, number: int = 2, model: str = "fake") -> str:
    done = house.pipeline("submit", "generate", "-", "--model", model, *options, stdin=prompts(number))
    return done.stdout.decode().strip()


def test_everything_shows_what_is_paused_and_how_to_go_on(local_house: House) -> None:
    house = local_house
    job = submit(house)
    assert house.pipeline("pause", job[: len("job_") + 6]).stdout.decode().strip() == job
    said = json.loads(house.pipeline("pause", "generate", "--json").stdout)
    assert said == {"kind": "queue", "name": "generate", "paused": True}
    listed = house.pipeline("list")
    assert "validating, paused" in listed.stdout.decode()
    assert "the queue generate is paused: pipeline resume generate" in listed.stderr.decode()
    status = house.pipeline("status", job)
    assert "validating, paused, not ended" in status.stdout.decode()
    for line in (f"the job is paused: pipeline resume {job}", "the queue generate is paused: pipeline resume generate"):
        assert line in status.stderr.decode()
    assert json.loads(house.pipeline("workers", "--json").stdout) == {"workers": [], "paused_queues": ["generate"]}
    for name in (job, "generate"):
        house.pipeline("resume", name)
    assert house.work_off(job).status is JobStatus.COMPLETED
    for name, code in ((job, ExitCode.CONFLICT), ("nothing", ExitCode.NOT_FOUND)):
        refused = house.pipeline("pause", name, check=False)
        assert (refused.returncode, refused.stdout) == (code, b"")
        assert b"error: " in refused.stderr


@pytest.mark.timeout(300)
def test_worker_lets_go_of_a_paused_job_and_takes_it_up_again(house: House) -> None:
    house.add_fake_model(delay_s=0.2)
    house.start_worker()
    job = submit(house, number=20)
    house.wait_for(lambda: house.job(job).succeeded, "a first part")
    pause(house.deployment, job)
    house.wait_for(lambda: house.shards(job)[0].status is ShardStatus.PENDING, "the shard to be given back")
    (shard,) = house.shards(job)
    assert (shard.attempts, shard.lost_leases) == (0, 0)
    assert shard.succeeded < shard.item_count
    worker = json.loads(house.pipeline("workers", "--json").stdout)["workers"][0]
    house.pipeline("pause", worker["id"][:8])
    resume(house.deployment, job)
    assert ", paused" in house.pipeline("workers").stdout.decode()
    assert house.shards(job)[0].lease_token == shard.lease_token, "its worker is paused now"
    resume(house.deployment, worker["id"])
    assert house.wait_end(job).succeeded == 20


@pytest.mark.timeout(300)
def test_run_with_a_deadline_ends_with_its_own_code_and_names_what_is_missing(house: House) -> None:
    house.add_fake_model("slow", delay_s=0.4)
    command = ("run", "generate", "-", "--model", "slow", "--expires-in", "6s")
    done = house.pipeline(*command, stdin=prompts(60), check=False)
    assert done.returncode == ExitCode.JOB_EXPIRED, done.stderr
    (job,) = json.loads(house.pipeline("list", "--json").stdout)
    assert (job["status"], job["succeeded"] + job["expired"]) == ("expired", 60)
    assert len(done.stdout.splitlines()) == job["succeeded"]
    assert job["expired"] > 0
    errors = house.results(job["id"], "errors")
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert len(errors) == job["expired"]


def test_overdue_job_without_a_worker_is_spoken_of_and_can_be_cancelled(local_house: House) -> None:
    house = local_house
    job = submit(house, "--expires-in", "1s")
    late = f"its deadline has passed, and no worker is alive to end it: pipeline up, or pipeline cancel {job}"
    house.wait_for(lambda: late in house.pipeline("status", job).stderr.decode(), "the deadline")
    command = [sys.executable, "-m", "pipeline.cli", "watch", job]
    with subprocess.Popen(command, env=house.environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as watch:
        assert watch.stderr is not None
        said = b""
        while late.encode() not in said:
            line = watch.stderr.readline()
            assert line, f"it ended and had said: {said.decode()}"
            said += line
        house.pipeline("cancel", job)
        assert watch.wait(PATIENCE_S) == ExitCode.JOB_CANCELLED


def test_same_content_gives_the_same_job_until_it_is_cancelled(local_house: House) -> None:
    house = local_house
    first = submit(house, "--dedupe")
    again = house.pipeline("submit", "generate", "-", "--model", "fake", "--dedupe", "--json", stdin=prompts(2))
    document = json.loads(again.stdout)
    assert (document["job"]["id"], document["existing"], document["same"]) == (first, True, "content")
    assert b"same file, same options: this job was submitted" in again.stderr
    house.pipeline("cancel", first)
    assert submit(house, "--dedupe") != first


def test_duration_that_is_none_is_refused_before_the_file_is_read(local_house: House) -> None:
    house = local_house
    command = ("submit", "generate", "-", "--model", "fake", "--expires-in", "tomorrow")
    done = house.pipeline(*command, stdin=b"not json\n", check=False)
    assert done.returncode == ExitCode.USAGE
    assert "error: 'tomorrow' is no duration" in done.stderr.decode()
    assert "90s, 30m, 24h, 7d" in done.stderr.decode()
    assert "invalid_json" not in done.stderr.decode()
