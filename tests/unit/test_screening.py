"""Which messages a worker rings on, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.jobs.dispatch import FINALIZE, PLAN, RUN
from tasks.screening import TASKS, find_fault

BODY: Any = [["generate"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]


def fault(payload: Any = BODY, **headers: Any) -> str | None:
    given = {"task": RUN, "eta": None, "expires": None, "retries": 0, **headers}
    return find_fault(SimpleNamespace(headers=given, properties={}, payload=payload))


def test_rings_of_ours_pass() -> None:
    assert frozenset({PLAN, RUN, FINALIZE}) == TASKS
    assert [fault(task=task) for task in TASKS] == [None, None, None]
    assert fault([["job_0123"], {}, {}]) is None


@pytest.mark.parametrize("name", ["eta", "expires", "group"])
def test_a_ring_asks_for_one_call_now(name: str) -> None:
    assert name in (fault(**{name: "2999-01-01T00:00:00+00:00"}) or "")


@pytest.mark.parametrize(
    "payload",
    [
        None,
        7,
        {},
        [],
        [[], {}, {}],
        [["a", "b"], {}, {}],
        [[None], {}, {}],
        [[{"a": 1}], {}, {}],
        [[""], {}, {}],
        [["x" * 1000], {}, {}],
        [["\ud800"], {}, {}],
        [["generate"], {"wait": True}, {}],
        [["generate"], {}, {"chain": [{"task": "job.plan"}]}],
        [["generate"], {}],
    ],
)
def test_what_is_no_name_is_thrown_away(payload: Any) -> None:
    assert fault(payload) is not None


def test_payload_that_raises_is_thrown_away() -> None:
    class Message:
        headers: dict[str, Any] = {"task": RUN}
        properties: dict[str, Any] = {}

        @property
        def payload(self) -> Any:
            raise RuntimeError("no such codec")

    assert "RuntimeError" in (find_fault(Message()) or "")
    assert "no mapping" in (find_fault(SimpleNamespace(headers=None, properties={}, payload=BODY)) or "")
