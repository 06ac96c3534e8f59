"""The same file gives the same bytes: without a server, on a fleet with two workers, and after a worker was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import ENV_FAIL_POINT
from pipeline.db.states import JobStatus
from tests.chaos.bytes import mask, read
from tests.fixtures.house import PATIENCE_S, House, MakeHouse, masked
from tests.fixtures.in_process import SHORT_LEASES, running_service, work_until_end
from workers.supervisor import Supervisor

PROMPTS = (
    "Name the capital of France.",
    "Count from one to five.",
    "What colour is the sky on a clear day?",
    "Write one sentence about rivers.",
    "Is seven a prime number?",
    "Translate 'good morning' to Spanish.",
    "What do bees make?",
    "Name a planet with rings.",
)


def submit(house: House, requests: Path, *, full: bool) -> str:
    """Three shards of a few tokens an answer; with the full counts twice as many tokens."""
    tokens, shard_tokens = (12, 70) if full else (6, 46)
    limits = ("--max-tokens", str(tokens), "--shard-tokens", str(shard_tokens), "--width", "4")
    arguments = ("--model", "smollm2", *limits)
    return house.pipeline("submit", "generate", str(requests), *arguments).stdout.decode().strip()


@pytest.mark.timeout(600)
def test_embedded_and_fleet_give_the_same_output_at_temperature_0(
    make_house: MakeHouse,
    smollm2_path: Path,
    postgres_url: str,
    redis_url: str,
    tmp_path: Path,
    full_counts: bool,
) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text(
        "".join(json.dumps({"prompt": text, "custom_id": f"p{n}"}) + "\n" for n, text in enumerate(PROMPTS))
    )

    alone = make_house()
    alone.add_model("smollm2", smollm2_path)
    first = submit(alone, requests, full=full_counts)
    assert alone.work_off(first).status is JobStatus.COMPLETED, alone.logs()

    fleet = make_house(database_url=postgres_url, broker_url=redis_url)
    fleet.add_model("smollm2", smollm2_path)
    fleet.start_worker()
    fleet.start_worker()
    second = submit(fleet, requests, full=full_counts)
    assert fleet.wait_end(second).status is JobStatus.COMPLETED, fleet.logs()

    assert alone.job(first).shards_total > 2
    one, other = masked(alone.results(first)), masked(fleet.results(second))
    assert json.dumps(one) == json.dumps(other)
    assert [line["custom_id"] for line in one] == [f"p{n}" for n in range(len(PROMPTS))]


#: What a job uses that wants to be fast, and what one does not that decodes each row alone.
FAST = {"width": 4, "accelerate": "auto", "prefix_cache": True}
PLAIN = {"width": 1, "accelerate": "off", "prefix_cache": False}


def drawn(number: int) -> dict[str, Any]:
    """Requests that share their beginning, and repeat themselves, so that somebody can guess."""
    text = f"{'the quick brown fox jumps over the lazy dog ' * 2}{'what is your name ' * (number % 3)}{number}"
    return {"custom_id": f"r{number}", "prompt": text, "temperature": 0.3 + number % 4 * 0.3, "max_tokens": 24}


def kill_after_a_part(house: House, job_id: str) -> None:
    """A worker that dies when it has registered the second part of a shard."""
    command = [sys.executable, "-m", "workers", "serve", "--until", job_id]
    environ = house.environ | {ENV_FAIL_POINT: "part.after_row:2"}
    with (house.log_folder / "victim.log").open("wb") as log:
        done = subprocess.run(command, env=environ, stdout=log, stderr=log, timeout=PATIENCE_S, start_new_session=True)
    assert done.returncode == -signal.SIGKILL, house.logs()


@pytest.mark.timeout(600)
def test_drawn_tokens_are_the_same_after_a_kill_whatever_makes_them_fast(
    make_house: MakeHouse, tiny_llama_path: Path
) -> None:
    house = make_house(part_items=3, **SHORT_LEASES)
    house.add_model("tiny", tiny_llama_path)
    requests = [drawn(number) for number in range(12)]
    fast = house.submit(requests, model="tiny", shard_items=12, seed=5, **FAST)
    kill_after_a_part(house, fast)
    survived = {item for _, _, items in house.parts(fast) for item in items}
    assert 0 < len(survived) < len(requests)

    plain = house.submit(requests, model="tiny", shard_items=12, seed=5, **PLAIN)
    with running_service(house, Supervisor(house.settings, environ=house.environ)) as service:
        for job_id in (fast, plain):
            assert work_until_end(house, service, job_id).status is JobStatus.COMPLETED, house.logs()

    assert len({token for _, token, _ in house.parts(fast)}) == 2
    with house.deployment.database.read() as uow:
        used = {row.name for row in uow.metrics.of_job(fast) if row.value > 0}
    assert {"prefix_tokens", "governor_plain"} <= used
    lines = read(house, fast, "output")
    assert len(set(lines.splitlines())) == len(requests)
    assert mask(lines) == mask(read(house, plain, "output"))
