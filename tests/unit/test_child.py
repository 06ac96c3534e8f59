"""The child's entry as a real process, with an engine that misbehaves on request."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from pipeline.formats.messages import load_message, parse_done, parse_loaded, read_frame, run_message, write_frame
from pipeline.ports import EngineRequest, JsonObject, WorkItem
from workers.child import ENGINES, EXIT_ORPHANED, EXIT_SHUTDOWN, EXIT_TORN

ROOT = Path(__file__).parents[2]

_PROGRAM = (
    "from workers import child\nchild.ENGINES['fake'] = 'tests.fixtures.unruly_engine:UnrulyEngine'\nchild.main()\n"
)

#: Long enough never to be reached by a working child.
FAR_S = 60.0


class ChildUnderTest:
    """The parent's end of a child, without any of the parent's care."""

    def __init__(self, stderr: BinaryIO) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout

    def send(self, message: JsonObject) -> None:
        write_frame(self._stdin, message)

    def send_raw(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def receive(self) -> JsonObject:
        frame = read_frame(self._stdout)
        assert frame is not None, "the child ended"
        return frame[0] | ({"blob": frame[1]} if frame[1] else {})

    def load(self, **options: Any) -> JsonObject:
        self.send(load_message(EngineRequest("fake", None, "digest", options=options)))
        return self.receive()

    def run(self, *actions: str) -> list[JsonObject]:
        """Send a run and read to its end."""
        self.start(*actions)
        messages = [self.receive()]
        while messages[-1]["type"] not in ("done", "failed"):
            messages.append(self.receive())
        return messages

    def start(self, *actions: str) -> None:
        items = [WorkItem(index, f"item-{index}", {"do": action}) for index, action in enumerate(actions)]
        self.send(run_message(items, {}, frozenset()))

    def hang_up(self) -> None:
        self._stdin.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def wait(self) -> int:
        return self.process.wait(timeout=FAR_S)


@pytest.fixture
def stderr_file(tmp_path: Path) -> Path:
    return tmp_path / "stderr"


@pytest.fixture
def child(stderr_file: Path) -> Iterator[ChildUnderTest]:
    with stderr_file.open("wb") as stderr:
        child = ChildUnderTest(stderr)
        yield child
        child.close()


@pytest.fixture
def loaded(child: ChildUnderTest) -> ChildUnderTest:
    assert child.receive()["type"] == "hello"
    assert child.load()["type"] == "loaded"
    return child


def test_hello_comes_first_and_names_process_and_versions(child: ChildUnderTest) -> None:
    hello = child.receive()
    assert hello["type"] == "hello"
    assert hello["pid"] == child.process.pid
    assert {"python", "mlx"} <= set(hello["versions"])


def test_load_answers_with_what_the_engine_says(child: ChildUnderTest) -> None:
    child.receive()
    info = parse_loaded(child.load(colour="red"))
    assert info.model_digest == "digest"
    assert info.details == {"colour": "red"}


def test_load_of_a_job_error_says_that_no_retry_helps_and_the_child_lives(child: ChildUnderTest) -> None:
    child.receive()
    failed = child.load(fail="job")
    assert failed == {
        "type": "failed",
        "class": "job",
        "code": "model_not_found",
        "message": "no such model",
        "hint": "look elsewhere",
    }
    assert child.load()["type"] == "loaded"


@pytest.mark.parametrize(("fail", "text"), [("crash", "ZeroDivisionError: it was zero"), ("exit", "SystemExit: 7")])
def test_load_of_anything_else_is_transient_and_the_child_lives(
    child: ChildUnderTest, stderr_file: Path, fail: str, text: str
) -> None:
    child.receive()
    failed = child.load(fail=fail)
    assert (failed["type"], failed["class"], failed["message"]) == ("failed", "transient", text)
    assert child.load()["type"] == "loaded"
    assert "Traceback" in stderr_file.read_text()


def test_load_of_an_unknown_kind_is_a_job_error(child: ChildUnderTest) -> None:
    child.receive()
    child.send({**load_message(EngineRequest("fake", None)), "kind": "poetry"})
    failed = child.receive()
    assert (failed["class"], failed["code"]) == ("job", "model_unsupported")


def test_second_load_is_refused(loaded: ChildUnderTest) -> None:
    assert loaded.load()["class"] == "transient"
    assert loaded.run("answer")[-1]["type"] == "done"


def test_run_without_a_model_fails(child: ChildUnderTest) -> None:
    child.receive()
    assert [message["type"] for message in child.run("answer")] == ["failed"]


def test_run_streams_answers_and_ends_with_stats(loaded: ChildUnderTest) -> None:
    first, second, done = loaded.run("answer", "answer")
    assert [first["index"], second["index"]] == [0, 1]
    assert first["body"] == {"id": "item-0"}
    assert first["blob"] == b"\x00\x01" * 3
    assert parse_done(done).measures == {"itl_s_p50": 0.5}


def test_prints_of_a_library_go_to_stderr_and_do_not_tear_the_stream(loaded: ChildUnderTest, stderr_file: Path) -> None:
    assert [message["type"] for message in loaded.run("print", "answer", "print")] == ["answer"] * 3 + ["done"]
    text = stderr_file.read_text()
    assert "imported: a line of text" in text
    assert text.count("raw bytes on descriptor 1") == text.count("through the original stdout") == 2


def test_engine_cannot_read_the_parents_messages(loaded: ChildUnderTest) -> None:
    assert loaded.run("read")[-1]["type"] == "done"


@pytest.mark.parametrize("action", ["raise", "exit"])
def test_run_that_raises_fails_alone(loaded: ChildUnderTest, action: str) -> None:
    answer, failed = loaded.run("answer", action)
    assert answer["type"] == "answer"
    assert (failed["type"], failed["class"]) == ("failed", "transient")
    assert loaded.run("answer")[-1]["type"] == "done"


def test_cancel_ends_a_run_at_once_and_not_the_next(loaded: ChildUnderTest) -> None:
    loaded.start("wait")
    assert loaded.receive()["type"] == "progress"
    loaded.send({"type": "cancel"})
    assert parse_done(loaded.receive()).cancelled
    # A cancel that comes too late belongs to the run that is over.
    loaded.send({"type": "cancel"})
    assert not parse_done(loaded.run("answer")[-1]).cancelled


def test_cancel_right_behind_its_run_is_not_lost(loaded: ChildUnderTest) -> None:
    loaded.start("wait")
    loaded.send({"type": "cancel"})
    messages = [loaded.receive(), loaded.receive()]
    assert parse_done(messages[-1]).cancelled


def test_messages_behind_a_run_wait_for_its_end(loaded: ChildUnderTest) -> None:
    loaded.start("answer")
    loaded.send({"type": "stats"})
    assert [loaded.receive()["type"] for _ in range(3)] == ["answer", "done", "stats"]


def test_stats_tell_the_resident_size(loaded: ChildUnderTest) -> None:
    loaded.send({"type": "stats"})
    stats = loaded.receive()
    assert 1 << 20 < stats["rss_bytes"] <= stats["peak_rss_bytes"] * 1.1


def test_unknown_message_fails_and_the_child_lives(loaded: ChildUnderTest) -> None:
    loaded.send({"type": "dance"})
    assert "dance" in loaded.receive()["message"]
    assert loaded.run("answer")[-1]["type"] == "done"


def test_shutdown_closes_the_engine_and_exits_clean(loaded: ChildUnderTest, stderr_file: Path) -> None:
    loaded.send({"type": "shutdown"})
    assert loaded.wait() == EXIT_SHUTDOWN
    assert stderr_file.read_text().endswith("closed\n")


@pytest.mark.parametrize("action", [None, "sleep", "wait"])
def test_end_of_the_pipe_ends_the_child_whatever_it_does(loaded: ChildUnderTest, action: str | None) -> None:
    if action is not None:
        loaded.start(action)
        assert loaded.receive()["type"] == "progress"
    loaded.hang_up()
    assert loaded.wait() == EXIT_ORPHANED


def test_foreign_bytes_on_the_pipe_end_the_child(loaded: ChildUnderTest, stderr_file: Path) -> None:
    loaded.send_raw(b"GET / HTTP/1.1\r\n\r\n")
    assert loaded.wait() == EXIT_TORN
    assert "the pipe from the parent is broken" in stderr_file.read_text()


def test_interrupt_from_the_terminal_is_the_parents_matter(loaded: ChildUnderTest) -> None:
    loaded.process.send_signal(signal.SIGINT)
    assert loaded.run("answer")[-1]["type"] == "done"


def test_every_kind_has_an_engine_named_by_module_and_class() -> None:
    assert set(ENGINES) == {"generate", "embed", "rerank", "index", "search", "fake"}
    assert all(path.startswith("workers.engines.") and path.count(":") == 1 for path in ENGINES.values())
