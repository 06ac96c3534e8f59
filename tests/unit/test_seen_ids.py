"""Ids that lines bring, and ids that are made for them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.jobs.seen_ids import SeenIds


def made_ids(bodies: list[dict[str, Any]]) -> list[str]:
    with SeenIds() as seen:
        return [seen.id_of_content(body) for body in bodies]


def test_an_id_is_taken_once() -> None:
    with SeenIds() as seen:
        assert seen.take("a", 1) == 1
        assert seen.take("b", 2) == 2
        assert seen.take("a", 3) == 1


def test_made_ids_are_these() -> None:
    """Users join on them, so they may not change. The digest is what `b2sum -l 128` says of the body's JSON."""
    body = {"input": "hello"}
    assert made_ids([body, body]) == [
        "auto-d5c15bc63dd60404df8536d01e4ae53d",
        "auto-d5c15bc63dd60404df8536d01e4ae53d-2",
    ]


def test_made_ids_do_not_depend_on_the_order_of_keys() -> None:
    assert made_ids([{"a": 1, "b": {"c": 2, "d": 3}}])[0] == made_ids([{"b": {"d": 3, "c": 2}, "a": 1}])[0]


@settings(max_examples=40)
@given(st.lists(st.fixed_dictionaries({"input": st.sampled_from(["", "a", "b", "c d"])}), max_size=8), st.randoms())
def test_made_ids_are_unique_and_the_same_in_any_order(bodies: list[dict[str, Any]], chance: Any) -> None:
    shuffled = list(bodies)
    chance.shuffle(shuffled)
    ids = made_ids(bodies)
    assert len(set(ids)) == len(ids)
    assert sorted(ids) == sorted(made_ids(shuffled))


def test_an_invalid_line_never_takes_an_id_that_is_in_use() -> None:
    with SeenIds() as seen:
        seen.take("invalid-line-5", 1)
        seen.take("invalid-line-5-2", 2)
        assert seen.take_for_invalid(5) == "invalid-line-5-3"
        assert seen.take_for_invalid(6) == "invalid-line-6"
