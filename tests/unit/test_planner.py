"""The cut is a function of the file and the options, keeps order, and stays within its budgets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.items import Item, dump_item, parse_items
from pipeline.jobs.planner import WordCounter, cut_shards
from pipeline.specs import EmbedSpec, ModelRef

texts = st.lists(st.integers(1, 40).map(lambda words: "w " * words), min_size=1, max_size=60)


def spec(tokens: int, items: int) -> EmbedSpec:
    return EmbedSpec(model=ModelRef(name="m"), shard_tokens=tokens, shard_items=items)


@given(texts, st.integers(1, 100), st.integers(1, 10))
def test_cut_covers_every_item_once_in_order_within_budget(words: list[str], tokens: int, items: int) -> None:
    lines = [dump_item(Item(f"i{n}", n + 1, {"input": text})) for n, text in enumerate(words)]
    cuts = list(cut_shards(lines, WordCounter(), spec(tokens, items)))
    assert cuts == list(cut_shards(lines, WordCounter(), spec(tokens, items)))
    data = b"".join(lines)
    seen = [item.custom_id for cut in cuts for item in parse_items(data[cut.start_byte : cut.end_byte])]
    assert seen == [f"i{n}" for n in range(len(words))]
    assert [cut.ordinal for cut in cuts] == list(range(len(cuts)))
    assert sum(cut.item_count for cut in cuts) == len(words)
    for cut in cuts:
        assert cut.item_count <= items
        assert cut.token_count <= tokens or cut.item_count == 1


def test_item_over_the_budget_is_a_shard_of_its_own() -> None:
    lines = [dump_item(Item(f"i{n}", n, {"input": "w " * size})) for n, size in enumerate([2, 50, 2])]
    assert [cut.item_count for cut in cut_shards(lines, WordCounter(), spec(10, 10))] == [1, 1, 1]


def test_invalid_lines_cost_something_but_are_cut_like_others() -> None:
    lines = [dump_item(Item(f"i{n}", n, error={"code": "x", "message": "y"})) for n in range(5)]
    assert [cut.item_count for cut in cut_shards(lines, WordCounter(), spec(2, 10))] == [2, 2, 1]
