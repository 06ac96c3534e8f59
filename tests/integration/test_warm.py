"""Several models on one host: real children of the fake engine, kept within a budget of memory."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.config import BUDGET_SHARE, Settings, load_settings
from pipeline.errors import ChildDied, ConfigError, JobError, MemoryBusy
from pipeline.ports import Answer, EngineRequest, WorkItem
from tests.fixtures.house import MakeHouse
from workers.supervisor import Supervisor
from workers.warm import BASE_BYTES, WEIGHTS_FACTOR, WarmHost, WarmPool

ENVIRON = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

GIB = 1 << 30

#: What a child of a model of ``weights`` is expected to hold.
EXPECTED = int(GIB * WEIGHTS_FACTOR) + BASE_BYTES


class Stage:
    """A pool with as many slots as are asked for, and models as large as they say."""

    def __init__(self, folder: Path, budget_bytes: int, *, slots: int = 1) -> None:
        self._folder = folder
        settings = Settings(memory_budget_bytes=budget_bytes, load_timeout_s=60, stall_timeout_s=60)
        self.started: list[Supervisor] = []
        self.pool = WarmPool(settings, host_bytes=1 << 40, start=lambda: self._start(settings), busy_wait_s=0.5)
        self.hosts = [WarmHost(self.pool) for _ in range(slots)]

    def _start(self, settings: Settings) -> Supervisor:
        self.started.append(Supervisor(settings, environ=ENVIRON))
        return self.started[-1]

    def request(
        self, name: str, *, weights: int = GIB, memory_bytes: int | None = None, **script: Any
    ) -> EngineRequest:
        """A model whose file takes no room on the disk."""
        folder = self._folder / name
        if not folder.exists():
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps({"model_type": "pipeline_fake", **script}))
            with (folder / "model.safetensors").open("wb") as file:
                file.truncate(weights)
        return EngineRequest("fake", str(folder), model_digest=name, memory_bytes=memory_bytes)

    @property
    def pids(self) -> list[int]:
        return [pid for supervisor in self.started if (pid := supervisor.pid) is not None]

    @property
    def names(self) -> tuple[str | None, ...]:
        return tuple(request.model_digest for request in self.hosts[0].loaded)


MakeStage = Callable[..., Stage]


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[MakeStage]:
    stages: list[Stage] = []

    def make(budget_bytes: int, *, slots: int = 1) -> Stage:
        stages.append(Stage(tmp_path, budget_bytes, slots=slots))
        return stages[-1]

    yield make
    for stage in stages:
        for host in stage.hosts:
            host.close()


def work(host: WarmHost, request: EngineRequest, custom_id: str = "a") -> Answer:
    """Have one item answered."""
    host.prepare(request)
    run = host.run([WorkItem(0, custom_id, {"prompt": "x"})], {"model_name": "m"}, done=frozenset())
    (answer,) = [event for event in run.events() if isinstance(event, Answer)]
    return answer


def test_two_models_alternate_without_loading_again(make_stage: MakeStage) -> None:
    stage = make_stage(8 * GIB)
    host = stage.hosts[0]
    for _ in range(3):
        for name in ("one", "other"):
            assert work(host, stage.request(name)).succeeded
    assert len(stage.started) == 2
    assert len(set(stage.pids)) == 2
    assert all(psutil.pid_exists(pid) for pid in stage.pids)
    assert stage.names == ("other", "one")


def test_who_was_used_longest_ago_goes_first(make_stage: MakeStage) -> None:
    stage = make_stage(100 * GIB)
    host = stage.hosts[0]
    for name in ("one", "two"):
        work(host, stage.request(name))
    work(host, stage.request("one"))
    pids = dict(zip(("one", "two"), stage.pids, strict=True))
    held = {name: psutil.Process(pid).memory_info().rss for name, pid in pids.items()}
    stage.pool.budget_bytes = EXPECTED + held["one"] + held["two"] // 2

    work(host, stage.request("three"))

    assert stage.names == ("three", "one")
    assert not psutil.pid_exists(pids["two"])
    assert psutil.pid_exists(pids["one"])


def test_what_a_child_shows_corrects_what_was_expected(make_stage: MakeStage) -> None:
    """By their files two would not fit; but the first has shown that it holds next to nothing."""
    stage = make_stage(2 * EXPECTED - 1)
    host = stage.hosts[0]
    work(host, stage.request("one"))
    work(host, stage.request("other"))
    assert set(stage.names) == {"one", "other"}


def test_a_model_too_large_for_the_budget_runs_alone_and_that_is_said(
    make_stage: MakeStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = make_stage(EXPECTED)
    host = stage.hosts[0]
    work(host, stage.request("small"))
    assert work(host, stage.request("large", weights=10 * GIB)).succeeded
    assert stage.names == ("large",)
    said = [record for record in caplog.records if record.message == "model_exceeds_budget"]
    assert len(said) == 1
    assert vars(said[0])["model"].endswith("large")


def test_a_dead_child_is_forgotten_and_started_again(make_stage: MakeStage) -> None:
    stage = make_stage(8 * GIB)
    host = stage.hosts[0]
    work(host, stage.request("one"))
    work(host, stage.request("other"))
    (pid,) = [supervisor.pid for supervisor in stage.started if supervisor.loaded[0].model_digest == "one"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=10)
    assert stage.names == ("other",)
    assert work(host, stage.request("one")).succeeded
    assert len(stage.started) == 3


def test_a_child_that_dies_at_work_takes_no_other_with_it(make_stage: MakeStage) -> None:
    stage = make_stage(8 * GIB)
    host = stage.hosts[0]
    work(host, stage.request("good"))
    with pytest.raises(ChildDied):
        work(host, stage.request("bad", crashes={"a": "kill"}))
    assert stage.names == ("good",)
    assert work(host, stage.request("good")).succeeded
    assert len(stage.started) == 2


def test_a_model_that_does_not_load_leaves_nothing(make_stage: MakeStage) -> None:
    stage = make_stage(8 * GIB)
    with pytest.raises(JobError):
        work(stage.hosts[0], stage.request("bad", delay_s="no number"))
    assert stage.names == ()
    assert stage.pids == []


def test_a_suspect_has_the_host_to_itself_and_its_child_goes_first(make_stage: MakeStage) -> None:
    stage = make_stage(100 * GIB)
    host = stage.hosts[0]
    work(host, stage.request("one"))
    work(host, stage.request("one", memory_bytes=4 * GIB))
    assert [request.memory_bytes for request in host.loaded] == [4 * GIB]
    work(host, stage.request("one"))
    assert [request.memory_bytes for request in host.loaded] == [None]


def test_slots_share_one_budget(make_stage: MakeStage) -> None:
    stage = make_stage(2 * EXPECTED - 1, slots=2)
    first, second = stage.hosts
    first.prepare(stage.request("one"))
    run = first.run([WorkItem(0, "a", {"prompt": "x"})], {"model_name": "m"}, done=frozenset())

    # While the first works it counts for what was expected of it, and cannot be sent away.
    with pytest.raises(MemoryBusy, match="are for engines"):
        second.prepare(stage.request("other"))
    assert second.loaded == ()

    list(run.events())
    assert work(second, stage.request("other")).succeeded
    assert len(second.loaded) == 2


def test_a_slot_uses_what_another_has_loaded_and_left(make_stage: MakeStage) -> None:
    stage = make_stage(8 * GIB, slots=2)
    first, second = stage.hosts
    work(first, stage.request("one"))
    work(second, stage.request("one"))
    assert len(stage.started) == 1
    assert work(first, stage.request("one")).succeeded


def test_slots_that_work_at_once_never_share_a_child(make_stage: MakeStage) -> None:
    stage = make_stage(100 * GIB, slots=3)
    names = [f"m{number}" for number in range(2)]
    for name in names:
        stage.request(name, delay_s=0.005)
    answers: list[Answer] = []

    def serve(host: WarmHost, number: int) -> None:
        answers.extend(work(host, stage.request(names[(number + turn) % 2]), f"{number}-{turn}") for turn in range(8))

    threads = [threading.Thread(target=serve, args=(host, number)) for number, host in enumerate(stage.hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 24
    assert len(stage.started) <= 6  # at most one of each model for each slot


def test_closing_a_slot_from_another_thread_ends_its_work_and_what_is_idle(make_stage: MakeStage) -> None:
    stage = make_stage(8 * GIB, slots=2)
    first, second = stage.hosts
    work(first, stage.request("idle"))
    second.prepare(stage.request("busy", stalls=["a"]))
    run = second.run([WorkItem(0, "a", {"prompt": "x"})], {"model_name": "m"}, done=frozenset())
    closer = threading.Thread(target=second.close)
    closer.start()
    list(run.events())
    closer.join()
    assert run.stats.cancelled
    assert stage.pids == []
    assert first.loaded == second.loaded == ()


def test_the_budget_is_a_share_of_the_host_unless_it_is_given() -> None:
    assert WarmPool(Settings(), host_bytes=100 * GIB).budget_bytes == int(100 * GIB * BUDGET_SHARE)
    assert WarmPool(Settings(memory_budget_bytes=GIB), host_bytes=100 * GIB).budget_bytes == GIB


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory_budget_bytes"):
        load_settings(environ={"PIPELINE_MEMORY_BUDGET_BYTES": "0"})


def test_a_worker_keeps_the_models_of_two_jobs_and_says_so(make_house: MakeHouse) -> None:
    house = make_house(part_items=1)
    journal = house.log_folder / "journal"
    for name in ("one", "other"):
        house.add_fake_model(name, journal=str(journal), dimension=len(name))
    jobs = []
    house.start_worker()
    for turn in range(4):
        model = ("one", "other")[turn % 2]
        jobs.append(house.submit([{"custom_id": f"{turn}", "prompt": "x"}], model=model))
        assert house.wait_end(jobs[-1]).status == "completed"
    pids = [line.split()[0] for line in journal.read_text().splitlines()]
    assert pids[0] == pids[2] != pids[1] == pids[3]
    digests = {house.job(job_id).model_digest for job_id in jobs}

    def said() -> bool:
        with house.deployment.database.read() as uow:
            return any(set(worker.loaded_models) == digests for worker in uow.workers.live())

    house.wait_for(said, "the worker to say what it holds")
