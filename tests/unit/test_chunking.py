"""Texts into passages: lengths, places, policies."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ContextLengthExceeded, InvalidValue, ItemError, JobError
from pipeline.specs import Overflow
from tests.fixtures.encoders import write_tiny_bert
from workers.engines.chunking import Passage, PassageCutter, load_tokenizer

LENGTH = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("chunking") / "bert")


def cutter(folder: Path, overflow: Overflow = Overflow.ERROR, **options: object) -> PassageCutter:
    return PassageCutter(load_tokenizer(folder), max_length=LENGTH, overflow=overflow, **options)  # type: ignore[arg-type]


def passages(found: list[Passage] | ItemError) -> list[Passage]:
    assert not isinstance(found, ItemError)
    return found


def test_baked_in_truncation_and_padding_are_not_honoured(folder: Path) -> None:
    (passage,) = passages(cutter(folder).cut(["the quick brown fox jumps over the lazy dog"])[0])
    assert len(passage.ids) == 11
    (short,) = passages(cutter(folder).cut(["fox"])[0])
    assert len(short.ids) == 3


def test_text_that_fits_exactly_is_whole(folder: Path) -> None:
    fits, over = cutter(folder).cut(["fox " * (LENGTH - 2), "fox " * (LENGTH - 1)])
    assert len(passages(fits)[0].ids) == LENGTH
    assert isinstance(over, ContextLengthExceeded)
    assert over.message == f"the text has {LENGTH + 1} tokens, the model takes {LENGTH}"


def test_truncated_text_keeps_its_last_special_token_and_says_where_it_ends(folder: Path) -> None:
    text = "fox " * 40
    (passage,) = passages(cutter(folder, Overflow.TRUNCATE).cut([text])[0])
    (whole,) = passages(cutter(folder).cut(["fox"])[0])
    assert len(passage.ids) == LENGTH
    assert passage.ids[-1] == whole.ids[-1]
    assert passage.truncated
    assert text[: passage.end].split() == ["fox"] * (LENGTH - 2)
    assert passage.text_hash == hashlib.sha256(text.encode()).hexdigest()


def test_prompt_is_read_before_each_passage_and_is_no_part_of_it(folder: Path) -> None:
    plain = cutter(folder, Overflow.CHUNK, overlap=2)
    prompted = cutter(folder, Overflow.CHUNK, overlap=2, prompt="hello world ")
    head = passages(plain.cut(["hello world"])[0])[0].ids[:-1]
    text = "the quick brown fox " * 10
    found = passages(prompted.cut([text])[0])
    assert all(passage.ids[: len(head)] == head for passage in found)
    assert found[0].start == 0
    assert found[0].text_hash == hashlib.sha256(text[: found[0].end].encode()).hexdigest()


def test_lone_surrogate_errs_and_its_neighbours_do_not(folder: Path) -> None:
    left, bad, right = cutter(folder).cut(["fox", "\ud800", "dog"])
    assert isinstance(bad, InvalidValue)
    assert len(passages(left)) == len(passages(right)) == 1
    assert passages(left)[0].ids != passages(right)[0].ids


def test_overlap_and_prompt_must_leave_room(folder: Path) -> None:
    with pytest.raises(JobError, match="chunk_overlap"):
        cutter(folder, Overflow.CHUNK, overlap=LENGTH - 2)
    with pytest.raises(JobError, match="prompt"):
        cutter(folder, prompt="fox " * LENGTH)
    cutter(folder, Overflow.TRUNCATE, overlap=LENGTH - 2)


@given(
    words=st.lists(st.sampled_from(["fox", "embedding", "quick", "zebra", "embeddingdingdingding"]), max_size=120),
    overlap=st.integers(0, LENGTH - 3),
)
def test_chunks_cover_the_text_within_the_limit(folder: Path, words: list[str], overlap: int) -> None:
    text = " ".join(words)
    found = passages(cutter(folder, Overflow.CHUNK, overlap=overlap).cut([text])[0])
    assert all(3 <= len(passage.ids) <= LENGTH for passage in found) or not words
    assert found[0].start == 0
    assert found[-1].end == len(text)
    for earlier, later in pairwise(found):
        assert earlier.start < later.start
        assert not text[earlier.end : later.start].strip(), "nothing between two passages is left out"
    for passage in found:
        alone = passages(cutter(folder).cut([text[passage.start : passage.end]])[0])[0]
        assert alone.ids == passage.ids
        assert alone.text_hash == passage.text_hash


def test_chunks_are_cut_at_word_starts(folder: Path) -> None:
    text = "embedding " * 30
    for passage in passages(cutter(folder, Overflow.CHUNK, overlap=3).cut([text])[0]):
        assert set(text[passage.start : passage.end].split()) == {"embedding"}
