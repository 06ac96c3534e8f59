"""The same file gives the same bytes, on one machine without a server and on a fleet with two workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.db.states import JobStatus
from tests.fixtures.house import House, MakeHouse, masked

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


def submit(house: House, requests: Path) -> str:
    arguments = ("--model", "smollm2", "--max-tokens", "12", "--shard-tokens", "70", "--width", "4")
    return house.pipeline("submit", "generate", str(requests), *arguments).stdout.decode().strip()


@pytest.mark.timeout(600)
def test_embedded_and_fleet_give_the_same_output_at_temperature_0(
    make_house: MakeHouse, smollm2_path: Path, postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text(
        "".join(json.dumps({"prompt": text, "custom_id": f"p{n}"}) + "\n" for n, text in enumerate(PROMPTS))
    )

    alone = make_house()
    alone.add_model("smollm2", smollm2_path)
    first = submit(alone, requests)
    assert alone.work_off(first).status is JobStatus.COMPLETED, alone.logs()

    fleet = make_house(database_url=postgres_url, broker_url=redis_url)
    fleet.add_model("smollm2", smollm2_path)
    fleet.start_worker()
    fleet.start_worker()
    second = submit(fleet, requests)
    assert fleet.wait_end(second).status is JobStatus.COMPLETED, fleet.logs()

    assert alone.job(first).shards_total > 2
    one, other = masked(alone.results(first)), masked(fleet.results(second))
    assert json.dumps(one) == json.dumps(other)
    assert [line["custom_id"] for line in one] == [f"p{n}" for n in range(len(PROMPTS))]
