"""``pipeline plan`` as a user has it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.errors import ExitCode
from pipeline.ports import Answer, EngineEvent, JsonObject, WorkItem
from tests.fixtures.house import PATIENCE_S, House, MakeHouse
from tests.fixtures.in_process import running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost, ScriptedRun

Done = subprocess.CompletedProcess[str]

TEXT = "the quick brown fox jumps over the lazy dog"


class EchoRun(ScriptedRun):
    """Answers each request with its own words."""

    def events(self) -> Iterator[EngineEvent]:
        for item in self._items:
            yield Answer(item.index, body={"choices": [{"message": {"content": item.body["messages"][0]["content"]}}]})


class EchoHost(ScriptedHost):
    def run(self, items: Sequence[WorkItem], options: JsonObject, *, done: frozenset[int]) -> ScriptedRun:
        return EchoRun(items, done, self.hook, self.cancelled)


def pipeline(house: House, *arguments: str, columns: int = 80) -> Done:
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments],
        env={**house.environ, "COLUMNS": str(columns)},
        cwd=house.log_folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_plan_tells_what_is_possible_and_what_is_not_known(
    make_house: MakeHouse, tiny_llama_path: Path, tmp_path: Path
) -> None:
    house = make_house()
    (tmp_path / "requests.jsonl").write_text(
        "".join(json.dumps({"custom_id": str(n), "prompt": f"{TEXT} {TEXT} {n}"}) + "\n" for n in range(20))
    )
    spec = tmp_path / "job.yaml"
    spec.write_text(f"model: {tiny_llama_path}\ninput: requests.jsonl\nsampling: {{max_tokens: 16}}\nwidth: 8\n")

    # Given a finished job over the same requests, its answers are looked at.
    job = house.submit([json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()])
    with running_service(house, EchoHost()) as service:
        work_until_end(house, service, job)

    done = pipeline(house, "plan", str(spec), "--job", job, "--draft", str(tiny_llama_path), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    lines = {one["name"]: one for one in found["mechanisms"]}
    assert lines["continuous batching"]["chosen"] == "yes"
    assert found["room"]["width"] == 8
    assert lines["shared prefixes"]["possible"] == "yes"
    assert lines["full-model drafter"]["possible"] == "yes"
    assert lines["MTP head"]["why"].startswith("not built yet")
    assert found["workload"]["sampled"] == 20
    replay = found["workload"]["replay"]
    assert (replay["job"], replay["items"]) == (job, 20)
    assert replay["tokens"] > 4 * replay["forwards"]
    assert found["host"]["blas"]
    assert found["not_known"]

    # The table fits the terminal, narrow or wide, and a host is planned for that is not this one.
    for columns in (80, 120):
        done = pipeline(house, "plan", str(spec), "--memory", "64GiB", "--device", "metal", columns=columns)
        assert done.returncode == 0, done.stderr
        assert max(map(len, done.stdout.splitlines())) <= columns
        assert "64.0 GiB of memory" in done.stdout
        assert "gains on this Mac" in done.stdout.replace("\n  ", " ")


def test_plan_refuses_what_it_cannot_plan_for(make_house: MakeHouse, tiny_llama_path: Path, tmp_path: Path) -> None:
    house = make_house()
    nothing = pipeline(house, "plan")
    assert nothing.returncode == ExitCode.USAGE
    assert "hint: pipeline plan job.yaml" in nothing.stderr

    spec = tmp_path / "job.yaml"
    spec.write_text(f"model: {tiny_llama_path}\nwidht: 8\n")
    typo = pipeline(house, "plan", str(spec))
    assert typo.returncode == ExitCode.USAGE
    assert typo.stderr.splitlines() == [f"error: {spec}, line 2: unknown key widht", "hint: did you mean width?"]

    absent = pipeline(house, "plan", "--model", "nobody")
    assert absent.returncode == ExitCode.NOT_FOUND
    assert absent.stdout == ""
