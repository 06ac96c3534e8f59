"""MiniLM through the embedding engine against PyTorch transformers on the same weights, and against itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.engine_child import EngineChild, engine_child, torch_values

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

#: Lengths in tokens with special ones; a mask built in blocks of 32 goes wrong at some of them. MiniLM takes 256.
LENGTHS = (127, 128, 129, 255, 256, 257, 288)
MAX_LENGTH = 256

_SENTENCES = (
    "The harbour was quiet before the boats came in.",
    "def add(a, b): return a + b",
    "¿Dónde está la biblioteca? Straße, naïve, Ångström.",
    "東京は日本の首都です。",
    "Приём, как слышно? 🙂🙂",
    "E = mc^2; 3.14159; 1,000,000 USD",
    "a",
    "THE SAME WORDS IN CAPITALS the same words in capitals",
    "tabs\tand\nnew\r\nlines   and    spaces",
    "Pneumonoultramicroscopicsilicovolcanoconiosis is a long word.",
)
EDGES = ("", " ", "\n", "🙂", "a", "x" * 100_000)


def sized(tokens: int) -> str:
    """A text of that many tokens, special ones included."""
    words = ("time", "house", "water", "light", "river", "stone", "green", "seven")
    return " ".join(words[place % len(words)] for place in range(tokens - 2))


def mixed_texts() -> list[str]:
    tails = ("", " It was late.", " Nobody knew why, and nobody asked, until the letter came from the north.")
    return [sentence + tail for tail in tails for sentence in _SENTENCES]


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / lengths)


@pytest.fixture(scope="module")
def minilm(minilm_path: Path) -> Iterator[EngineChild]:
    with engine_child("embed", minilm_path, overflow="truncate", batch_size=8) as child:
        yield child


def test_files_of_the_model_are_honoured(minilm: EngineChild) -> None:
    recipe = minilm.info.recipe
    assert recipe is not None
    assert (recipe["pooling"], recipe["normalize"], recipe["max_length"]) == ("mean", True, MAX_LENGTH)
    assert minilm.info.details["probe"]["passed"]


def test_vectors_equal_those_of_torch(minilm: EngineChild, minilm_path: Path, tmp_path: Path) -> None:
    texts = mixed_texts() + [sized(length) for length in LENGTHS] + list(EDGES[:5])
    ours = minilm.vectors(texts)
    reference = torch_values(
        tmp_path / "reference.npz", kind="embed", model=str(minilm_path), texts=texts, max_length=MAX_LENGTH
    )
    assert len(texts) == 42
    assert np.isfinite(ours).all()
    assert cosines(ours, reference).min() >= 0.9999
    assert np.abs(np.linalg.norm(ours, axis=1) - 1).max() < 1e-6
    assert minilm.stats.counters["truncated"] == 2


def test_vector_is_the_same_alone_mixed_equal_length_and_permuted(minilm: EngineChild) -> None:
    texts = [*_SENTENCES[:4], sized(128), sized(31)]
    mixed = minilm.vectors(texts)
    order = [3, 5, 0, 4, 1, 2]
    permuted = minilm.vectors([texts[place] for place in order])
    assert cosines(mixed[order], permuted).min() >= 0.9999
    alone = np.concatenate([minilm.vectors([text]) for text in texts])
    assert cosines(mixed, alone).min() >= 0.9999
    equal_length = np.stack([minilm.vectors([text] * 3)[1] for text in texts])
    assert cosines(mixed, equal_length).min() >= 0.9999


def test_edge_texts_have_vectors_and_known_counts(minilm: EngineChild) -> None:
    answers = minilm.answers([{"input": list(EDGES)}])
    (answer,) = answers
    assert answer.error is None
    # An empty text is two special tokens; white space is nothing to BERT; a word of 100,000 letters is unknown.
    assert [row.tokens for row in answer.rows] == [2, 2, 2, 3, 3, 3]
    assert not any(row.truncated for row in answer.rows)
    assert np.isfinite(np.frombuffer(answer.vectors, "<f4")).all()


def test_text_of_100000_characters_follows_each_policy(minilm_path: Path, minilm: EngineChild) -> None:
    text = ("river stone " * 8334)[:100_000]
    (cut,) = minilm.answers([{"input": text}])
    assert cut.rows[0].truncated
    assert cut.rows[0].tokens == MAX_LENGTH
    assert minilm.stats.counters["truncated"] == 1
    with engine_child("embed", minilm_path) as strict:
        refused, fine = strict.answers([{"input": text}, {"input": "short"}])
        assert refused.error is not None
        assert refused.error["code"] == "context_length_exceeded"
        assert "16670 tokens" in refused.error["message"]
        assert "256" in refused.error["message"]
        assert fine.error is None


def test_chunks_cover_a_long_text_and_equal_their_text_alone(minilm_path: Path) -> None:
    text = sized(600)
    with engine_child("embed", minilm_path, overflow="chunk", chunk_overlap=16) as child:
        (answer,) = child.answers([{"input": text}])
        assert child.stats.counters["chunked_texts"] == 1
        rows = answer.rows
        assert rows[0].start == 0
        assert rows[-1].end == len(text)
        assert all(later.start < earlier.end for earlier, later in pairwise(rows))
        assert all(row.tokens <= MAX_LENGTH for row in rows)
        alone = child.vectors([text[row.start : row.end] for row in rows])
    vectors = np.frombuffer(answer.vectors, "<f4").reshape(len(rows), answer.dimension)
    assert cosines(vectors, alone).min() >= 0.9999
