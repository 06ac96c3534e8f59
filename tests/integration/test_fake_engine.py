"""The fake engine's script: errors, deaths and silence, as a parent sees them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Settings
from pipeline.errors import ChildDied, ChildStalled, JobError
from pipeline.ports import Answer, EngineRequest, WorkItem
from tests.fixtures.encoders import write_fake_model
from workers.supervisor import Supervisor

ROOT = Path(__file__).parents[2]
ITEMS = [WorkItem(index, f"item-{index}", {"prompt": f"text {index}"}, seed=index) for index in range(10)]

MakeHost = Callable[..., Supervisor]


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[MakeHost]:
    """A supervisor that holds a fake engine with a script."""
    hosts: list[Supervisor] = []

    def make(stall_s: float = 60.0, **script: Any) -> Supervisor:
        host = Supervisor(
            Settings(stall_timeout_s=stall_s, load_timeout_s=60), environ={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        hosts.append(host)
        folder = write_fake_model(tmp_path / f"fake-{len(hosts)}", **script)
        host.prepare(EngineRequest("fake", str(folder), options={"kind": "generate"}))
        return host

    yield make
    for host in hosts:
        host.close()


def feed(host: Supervisor, found: dict[int, Answer], *, done: frozenset[int] = frozenset()) -> None:
    for event in host.run(ITEMS, {"model_name": "fake"}, done=done).events():
        if isinstance(event, Answer):
            found[event.index] = event


def test_scripted_errors_hit_their_items_alone(make_host: MakeHost) -> None:
    found: dict[int, Answer] = {}
    feed(make_host(errors={"item-3": "content_filter"}), found)
    assert {index: answer.error["code"] for index, answer in found.items() if answer.error} == {3: "content_filter"}


@pytest.mark.parametrize(("how", "name"), [("abort", "SIGABRT"), ("kill", "SIGKILL")])
def test_scripted_crash_ends_the_process_once(make_host: MakeHost, tmp_path: Path, how: str, name: str) -> None:
    host = make_host(crashes={"item-5": how}, once_folder=str(tmp_path))
    found: dict[int, Answer] = {}
    with pytest.raises(ChildDied, match=name):
        feed(host, found)
    assert set(found) == {0, 1, 2, 3, 4}
    host.prepare(EngineRequest("fake", str(tmp_path / "fake-1"), options={"kind": "generate"}))
    rest: dict[int, Answer] = {}
    feed(host, rest, done=frozenset(found))
    assert set(rest) == {5, 6, 7, 8, 9}


def test_scripted_stall_is_noticed_by_the_parent(make_host: MakeHost) -> None:
    found: dict[int, Answer] = {}
    with pytest.raises(ChildStalled):
        feed(make_host(stall_s=2.0, stalls=["item-2"]), found)
    assert set(found) == {0, 1}


def test_answers_are_a_function_of_body_and_seed(make_host: MakeHost) -> None:
    first: dict[int, Answer] = {}
    second: dict[int, Answer] = {}
    feed(make_host(batch_size=3), first)
    feed(make_host(batch_size=7, delay_s=0.001), second)
    assert first == second
    assert len({str(answer.body) for answer in first.values()}) == len(ITEMS)


def test_script_with_an_unknown_key_is_refused(make_host: MakeHost) -> None:
    with pytest.raises(JobError, match="delay"):
        make_host(delay=3)
