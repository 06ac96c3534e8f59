"""What every engine that answers items promises, asked of each in a real child.

To add an engine, add an :class:`EngineCase` to ``CASES``. An engine whose package files are absent skips, with the
reason. The indexing engine differs in kind (one item is one build) and has a suite of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config import Settings
from pipeline.ports import Answer, EngineEvent, EngineRequest, JsonObject, Progress, RunStats, WorkItem
from workers.supervisor import Supervisor

ROOT = Path(__file__).parents[2]


def content(answer: Answer) -> tuple[object, ...]:
    """What a user sees of an answer; measures and times are not part of it."""
    return answer.body, answer.error, answer.usage, answer.rows, answer.vectors


def check_equal(left: Answer, right: Answer) -> None:
    assert content(left) == content(right)


def check_near_vectors(left: Answer, right: Answer) -> None:
    """Padding may move the last digits of a vector, and nothing else of the answer."""
    one, other = (np.frombuffer(answer.vectors, "<f4").reshape(-1, answer.dimension) for answer in (left, right))
    assert ((one * other).sum(axis=1) >= 0.9999).all()
    for first, second in zip(left.rows, right.rows, strict=True):
        assert replace(first, norm=second.norm) == second
    assert left.usage == right.usage


def check_near_scores(left: Answer, right: Answer) -> None:
    assert left.body is not None
    assert right.body is not None
    one, other = ({row["index"]: row["relevance_score"] for row in answer.body["results"]} for answer in (left, right))
    assert one == pytest.approx(other, abs=1e-5)
    assert left.usage == right.usage


@dataclass(frozen=True, slots=True)
class EngineCase:
    """One engine and how to ask it.

    Attributes:
        model: name of the fixture that gives the model's folder.
        body: the body of item ``n``; neighbours should differ in length.
        bad: bodies that err, each with the error's code.
        long: a body that takes long enough to be cancelled, repeated as needed.
    """

    name: str
    model: str
    load_options: JsonObject
    run_options: JsonObject
    body: Callable[[int], JsonObject]
    bad: Sequence[tuple[JsonObject, str]]
    long: JsonObject
    kind: Any = "generate"
    #: Compares an answer given alone with one given among others; exact where digits do not depend on padding.
    check_same: Callable[[Answer, Answer], None] = check_equal

    def items(self, count: int) -> list[WorkItem]:
        return [WorkItem(index, f"item-{index}", self.body(index), seed=1000 + index) for index in range(count)]


def _chat(text: str, **parameters: Any) -> JsonObject:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12, **parameters}


CHAT = EngineCase(
    name="generation-chat",
    model="tiny_llama_path",
    load_options={"endpoint": "/v1/chat/completions"},
    run_options={"endpoint": "/v1/chat/completions", "model_name": "tiny", "width": 3},
    # Every third one is sampled, so that both kinds of row share batches.
    body=lambda n: _chat("hello " * (1 + 5 * n % 17), **({"temperature": 0.9, "top_p": 0.95} if n % 3 == 0 else {})),
    bad=[
        (_chat("x", audio={}), "unsupported_parameter"),
        (_chat("x", temperature=-1), "invalid_value"),
        (_chat("x", max_tokens=100_000), "context_length_exceeded"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_value"),
    ],
    long=_chat("x", max_tokens=200),
)
COMPLETION = EngineCase(
    name="generation-completion",
    model="tiny_base_path",
    load_options={"endpoint": "/v1/completions"},
    run_options={"endpoint": "/v1/completions", "model_name": "tiny", "width": 4},
    body=lambda n: {"prompt": "the quick brown fox " * (1 + n % 4), "max_tokens": 4 + n},
    bad=[
        ({"prompt": "x", "echo": True}, "unsupported_parameter"),
        ({"prompt": ""}, "invalid_value"),
        ({}, "missing_field"),
    ],
    long={"prompt": "x", "max_tokens": 200},
)
EMBED = EngineCase(
    name="embedding",
    kind="embed",
    model="tiny_bert_path",
    load_options={"overflow": "chunk", "chunk_overlap": 4, "batch_size": 3, "model_name": "tiny", "inline": True},
    run_options={"overflow": "chunk", "chunk_overlap": 4, "batch_size": 3, "model_name": "tiny", "inline": True},
    # Single texts, lists, and texts of several passages.
    body=lambda n: {"input": ["hello " * (1 + 11 * n % 50)] * (1 + n % 2)},
    bad=[
        ({"input": "x", "truncate": 3}, "unsupported_parameter"),
        ({"input": []}, "invalid_value"),
        ({}, "missing_field"),
        ({"input": "x", "dimensions": 5}, "invalid_value"),
        ({"input": ["hello", "hello poison"]}, "non_finite_vector"),
    ],
    long={"input": ["hello world " * 12] * 8},
    check_same=check_near_vectors,
)
RERANK = EngineCase(
    name="reranking",
    kind="rerank",
    model="tiny_judge_path",
    load_options={"model_name": "tiny", "batch_size": 3},
    run_options={"model_name": "tiny", "batch_size": 3},
    body=lambda n: {"query": "hello", "documents": ["fox " * (1 + 7 * n % 19 + place) for place in range(1 + n % 4)]},
    bad=[
        ({"query": "x", "documents": ["y"], "texts": []}, "unsupported_parameter"),
        ({"query": "", "documents": ["y"]}, "invalid_value"),
        ({"documents": ["y"]}, "missing_field"),
        ({"query": "x", "documents": ["y"], "top_n": 0}, "invalid_value"),
        ({"query": "fox " * 300, "documents": ["y"]}, "context_length_exceeded"),
    ],
    long={"query": "hello", "documents": ["the lazy dog " * 8] * 6},
    check_same=check_near_scores,
)
FAKES = [
    EngineCase(
        name=f"fake-{kind}",
        kind="fake",
        model="fake_model_path",
        load_options={"kind": kind},
        run_options={"model_name": "fake"},
        body=body,
        bad=[({}, "missing_field")],
        long=body(3),
    )
    for kind, body in {
        "generate": CHAT.body,
        "embed": EMBED.body,
        "rerank": RERANK.body,
    }.items()
]
CASES = [CHAT, COMPLETION, EMBED, RERANK, *FAKES]


class EngineUnderTest:
    """A case with its child."""

    def __init__(self, case: EngineCase, request: EngineRequest) -> None:
        self.case = case
        settings = Settings(stall_timeout_s=120, load_timeout_s=120)
        self._host = Supervisor(settings, environ={**os.environ, "PYTHONPATH": str(ROOT)})
        self.info = self._host.prepare(request)

    def run(
        self, items: Sequence[WorkItem], *, done: frozenset[int] = frozenset(), cancel_after: int | None = None
    ) -> tuple[list[EngineEvent], RunStats]:
        """All events of a run; with ``cancel_after`` it is cancelled once that many have come."""
        shard = self._host.run(items, self.case.run_options, done=done)
        events: list[EngineEvent] = []
        for event in shard.events():
            events.append(event)
            if len(events) == cancel_after:
                shard.cancel()
        return events, shard.stats

    def answers(self, items: Sequence[WorkItem], *, done: frozenset[int] = frozenset()) -> dict[int, Answer]:
        events, stats = self.run(items, done=done)
        assert not stats.cancelled
        return by_index(events)

    def close(self) -> None:
        self._host.close()


def by_index(events: Sequence[EngineEvent]) -> dict[int, Answer]:
    found = [event for event in events if isinstance(event, Answer)]
    assert len(found) == len({answer.index for answer in found}), "an item was answered twice"
    return {answer.index: answer for answer in found}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def engine(request: pytest.FixtureRequest) -> Iterator[EngineUnderTest]:
    case: EngineCase = request.param
    path = request.getfixturevalue(case.model)
    engine = EngineUnderTest(case, EngineRequest(case.kind, str(path), "digest", "auto", case.load_options))
    yield engine
    engine.close()


def test_load_names_the_engine_and_its_numeric_platform(engine: EngineUnderTest) -> None:
    assert engine.info.model_digest == "digest"
    assert engine.info.load_s > 0
    assert {"device", "dtype"} <= set(engine.info.numeric_platform)


def test_every_item_is_answered_exactly_once(engine: EngineUnderTest) -> None:
    items = engine.case.items(8)
    answers = engine.answers(items)
    assert set(answers) == set(range(8))
    assert all(answer.succeeded and answer.body is not None for answer in answers.values())


def test_usage_is_in_the_sums_of_the_run(engine: EngineUnderTest) -> None:
    events, stats = engine.run(engine.case.items(5))
    usages = [answer.usage for answer in by_index(events).values()]
    assert stats.prompt_tokens == sum(usage["prompt_tokens"] for usage in usages) > 0
    assert stats.output_tokens == sum(usage.get("completion_tokens", 0) for usage in usages)
    assert stats.peak_rss_bytes > 0
    assert all(start <= end for start, end in stats.busy)
    assert all(left[1] <= right[0] for left, right in zip(stats.busy, stats.busy[1:], strict=False))


def test_empty_shard_ends_without_answers(engine: EngineUnderTest) -> None:
    assert engine.answers([]) == {}


def test_items_that_are_done_are_left_out(engine: EngineUnderTest) -> None:
    items = engine.case.items(6)
    assert set(engine.answers(items, done=frozenset({0, 2, 5}))) == {1, 3, 4}
    assert engine.answers(items, done=frozenset(range(6))) == {}


def test_bad_items_err_alone_with_their_code(engine: EngineUnderTest) -> None:
    good = engine.case.items(4)
    expected = engine.answers(good)
    bad = [WorkItem(4 + place, f"bad-{place}", body) for place, (body, _) in enumerate(engine.case.bad)]
    mixed = [item for pair in zip(bad, good, strict=False) for item in pair] + bad[len(good) :] + good[len(bad) :]
    answers = engine.answers(mixed)
    assert set(answers) == {item.index for item in mixed}
    for item, (_, code) in zip(bad, engine.case.bad, strict=True):
        error = answers[item.index].error
        assert error is not None
        assert error["code"] == code
        assert error["message"]
    for item in good:
        engine.case.check_same(answers[item.index], expected[item.index])


def test_answer_does_not_depend_on_order_or_neighbours(engine: EngineUnderTest) -> None:
    items = engine.case.items(7)
    together = engine.answers(items)
    permuted = engine.answers([items[place] for place in (3, 6, 0, 5, 2, 4, 1)])
    for index, answer in together.items():
        assert content(permuted[index]) == content(answer)
    for index in (0, 4):
        alone = engine.answers([items[index]])
        engine.case.check_same(alone[index], together[index])


def test_resume_gives_the_same_as_an_undisturbed_run(engine: EngineUnderTest) -> None:
    items = engine.case.items(6)
    whole = engine.answers(items)
    rest = engine.answers(items, done=frozenset({1, 2}))
    assert {index: content(answer) for index, answer in rest.items()} == {
        index: content(whole[index]) for index in (0, 3, 4, 5)
    }


def test_cancel_ends_the_run_early_and_the_next_one_is_whole(engine: EngineUnderTest) -> None:
    items = [WorkItem(index, f"long-{index}", engine.case.long) for index in range(400)]
    events, stats = engine.run(items, cancel_after=1)
    assert stats.cancelled
    assert len(by_index(events)) < len(items)
    assert set(engine.answers(engine.case.items(3))) == {0, 1, 2}


def test_progress_grows_and_tells_items(engine: EngineUnderTest) -> None:
    items = [WorkItem(index, f"long-{index}", engine.case.long) for index in range(12)]
    events, _ = engine.run(items)
    progress = [event for event in events if isinstance(event, Progress)]
    assert [event.tokens for event in progress] == sorted(event.tokens for event in progress)
    assert progress[-1].items == len(items)
