"""SmolLM2 as a generative reranker against PyTorch transformers on the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.engine_child import engine_child, torch_values

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

QUERIES = {
    "Which city is the capital of France?": (
        "Paris is the capital and largest city of France.",
        "Bananas are rich in potassium.",
        "The Eiffel Tower stands in Paris, and it was the tallest tower in the world for about forty years.",
    ),
    "How do plants make oxygen?": (
        "Photosynthesis converts light to chemical energy in plants and algae, which release oxygen.",
        "Paris.",
    ),
}


def test_scores_equal_those_of_torch(smollm2_path: Path, tmp_path: Path) -> None:
    with engine_child("rerank", smollm2_path, batch_size=4) as child:
        assert child.info.details["head"] == "last_column"
        assert child.info.details["probe"]["passed"]
        answers = child.answers(
            [{"query": query, "documents": list(documents)} for query, documents in QUERIES.items()]
        )
    ours: list[float] = []
    for answer in answers:
        assert answer.body is not None
        results = answer.body["results"]
        scores = [result["relevance_score"] for result in results]
        assert scores == sorted(scores, reverse=True)
        ours += [result["relevance_score"] for result in sorted(results, key=lambda result: result["index"])]
    pairs = [[query, document] for query, documents in QUERIES.items() for document in documents]
    reference = torch_values(tmp_path / "reference.npz", kind="rerank", model=str(smollm2_path), pairs=pairs)
    assert ours == pytest.approx(list(reference), abs=1e-3)
    assert max(ours) - min(ours) > 0.05, "scores that hardly differ would prove little"
