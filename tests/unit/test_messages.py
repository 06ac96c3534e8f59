"""The wire between parent and child: whole frames, torn frames, foreign bytes."""

from __future__ import annotations

import io
import struct
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats import messages
from pipeline.formats.messages import WireError, read_frame, write_frame
from pipeline.ports import (
    Answer,
    Boundary,
    EngineEvent,
    EngineInfo,
    EngineRequest,
    Progress,
    RunStats,
    VectorRow,
    WorkItem,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
FRAMES = st.lists(
    st.tuples(TEXT, st.dictionaries(TEXT, TEXT | st.none() | st.booleans()), st.binary(max_size=30)), max_size=4
)


def through_wire(message: dict[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
    stream = io.BytesIO()
    write_frame(stream, message, blob)
    stream.seek(0)
    frame = read_frame(stream)
    assert frame is not None
    assert read_frame(stream) is None
    return frame


class Trickle(io.BytesIO):
    """A pipe that gives one byte at a time."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 1))


@given(FRAMES)
def test_frames_survive_a_stream(frames: list[tuple[str, dict[str, Any], bytes]]) -> None:
    sent = [({"type": kind, "payload": payload}, blob) for kind, payload, blob in frames]
    stream = io.BytesIO()
    for message, blob in sent:
        write_frame(stream, message, blob)
    for reader in (io.BytesIO(stream.getvalue()), Trickle(stream.getvalue())):
        assert [read_frame(reader) for _ in sent] == sent
        assert read_frame(reader) is None


def test_a_torn_frame_is_an_error_at_every_byte() -> None:
    stream = io.BytesIO()
    write_frame(stream, {"type": "answer"}, b"blob")
    whole = stream.getvalue()
    for size in range(1, len(whole)):
        with pytest.raises(WireError, match="inside a frame"):
            read_frame(io.BytesIO(whole[:size]))


@pytest.mark.parametrize(
    "data",
    [b"Traceback (most recent call last):\n", b"warning: something\n", b"\xff" * 64, b"mlx says hello to the pipe"],
)
def test_foreign_bytes_are_no_frame(data: bytes) -> None:
    with pytest.raises(WireError, match="something else wrote"):
        read_frame(io.BytesIO(data))


@pytest.mark.parametrize("json", [b"[]", b"{}", b'"type"', b"null"])
def test_a_frame_without_a_type_is_refused(json: bytes) -> None:
    with pytest.raises(WireError, match="no type"):
        read_frame(io.BytesIO(struct.pack(">II", len(json), 0) + json))


def test_a_frame_over_the_limit_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_FRAME_BYTES", 100)
    stream = io.BytesIO()
    with pytest.raises(WireError, match="over 100"):
        write_frame(stream, {"type": "answer"}, b"x" * 101)
    assert stream.getvalue() == b""


def test_requests_to_a_child_survive_the_wire() -> None:
    request = EngineRequest("embed", "/models/m", "d" * 64, "float32", {"a": [1, None]})
    assert messages.parse_load(through_wire(messages.load_message(request))[0]) == request
    items = [WorkItem(0, "a", {"input": "x"}, 2**62), WorkItem(1, "\U0001f600", {"input": ["y"]})]
    run = messages.run_message(items, {"width": 4}, frozenset({1}))
    assert messages.parse_run(through_wire(run)[0]) == (items, {"width": 4}, frozenset({1}))


@pytest.mark.parametrize(
    "event",
    [
        Answer(3, body={"object": "list"}, usage={"total_tokens": 5}, measures={"ttft_s": 0.1}),
        Answer(4, error={"code": "invalid_value", "message": "no"}),
        Answer(
            5,
            body={},
            rows=(VectorRow(0, 0, 1.5, 7, False, 0, 20, "h"), VectorRow(0, 1, 2.0, 8, True, 20, 30, "i")),
            dimension=2,
            vectors=struct.pack("<4f", 1, 2, 3, 4),
        ),
        Progress(7, 2, "prefill"),
        Boundary(),
    ],
)
def test_events_survive_the_wire(event: EngineEvent) -> None:
    assert messages.parse_event(*through_wire(*messages.event_message(event))) == event


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(WireError, match="not an event"):
        messages.parse_event({"type": "gossip"}, b"")


def test_engine_info_and_stats_survive_the_wire() -> None:
    info = EngineInfo("generate", "d" * 64, {"device": "cpu"}, 1.5, 2048, {"pooling": "mean"}, {"probe": True})
    assert messages.parse_loaded(through_wire(messages.loaded_message(info))[0]) == info
    stats = RunStats(10, 20, ((1.0, 2.5), (3.0, 4.0)), 1 << 30, {"truncated": 2}, cancelled=True)
    assert messages.parse_done(through_wire(messages.done_message(stats))[0]) == stats


def test_reading_from_a_closed_pipe_ends_cleanly() -> None:
    assert read_frame(cast(Any, io.BytesIO(b""))) is None
