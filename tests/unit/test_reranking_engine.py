"""The reranking engine over a tiny random language model, in this process; its prompts and answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer

from pipeline.errors import ContextLengthExceeded, JobError, ModelUnsupported, NoChatTemplate
from pipeline.ports import EngineInfo, EngineRequest
from tests.fixtures.engine_run import Recorded
from tests.fixtures.models import TINY_CONTEXT, write_tiny_llama
from workers.engines import reranking
from workers.engines.judging import Judge, is_qwen3_reranker
from workers.engines.loading import load_language_model
from workers.engines.rerank_items import rank
from workers.engines.reranking import RerankingEngine

BODIES: list[dict[str, Any]] = [
    {"query": "hello", "documents": ["fox " * (1 + 5 * (place + n) % 17) for n in range(1 + place % 3)]}
    for place in range(9)
]


def loaded(folder: Path, **options: Any) -> tuple[RerankingEngine, EngineInfo]:
    engine = RerankingEngine()
    return engine, engine.load(EngineRequest("rerank", str(folder), options=options))


def scores(run: Recorded, index: int) -> dict[int, float]:
    return {result["index"]: result["relevance_score"] for result in run.body(index)["results"]}


@pytest.fixture(scope="module")
def judge(tiny_judge_path: Path) -> Judge:
    model = load_language_model(tiny_judge_path)
    return Judge(model.tokenizer, is_qwen3_reranker=False, max_length=TINY_CONTEXT)


# --- the prompt ---


def test_prompt_is_the_chat_template_with_both_texts_as_they_are(tiny_judge_path: Path, judge: Judge) -> None:
    judgement = judge.question(None).ask("What is {it}?", "A ⟦ {document} ⟧.", may_truncate=False)
    text = Tokenizer.from_file(str(tiny_judge_path / "tokenizer.json")).decode(
        list(judgement.ids), skip_special_tokens=False
    )
    assert text == (
        "<|start|>user\nQuestion: What is {it}?\nPassage: A ⟦ {document} ⟧.\n"
        "Does the passage answer the question? Reply Yes or No.<|end|>\n<|start|>assistant\n"
    )


def test_instruction_is_part_of_the_question(judge: Judge) -> None:
    plain = judge.question(None).ask("q", "d", may_truncate=False)
    told = judge.question("Prefer short passages.").ask("q", "d", may_truncate=False)
    assert len(told.ids) > len(plain.ids)


def test_qwen3_protocol_is_the_one_of_its_model_card(tiny_judge_path: Path) -> None:
    tokenizer = load_language_model(tiny_judge_path).tokenizer
    judge = Judge(tokenizer, is_qwen3_reranker=True, max_length=1000)
    ids = judge.question(None).ask("the query", "the document", may_truncate=False).ids
    text = Tokenizer.from_file(str(tiny_judge_path / "tokenizer.json")).decode(list(ids), skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: the query\n<Document>: the document<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert tokenizer.decode([judge.yes_id, judge.no_id]) == "yesno"


@pytest.mark.parametrize(
    ("model_type", "folder", "name", "expected"),
    [
        ("qwen3", "/m/Qwen3-Reranker-0.6B-4bit", "", True),
        ("qwen3", "/hub/models--Qwen--Qwen3-Reranker-0.6B/snapshots/abc", "", True),
        ("qwen3", "/m/abc", "mlx-community/Qwen3-Reranker-4B", True),
        ("qwen3", "/m/Qwen3-0.6B", "qwen", False),
        ("llama", "/m/Qwen3-Reranker-0.6B", "", False),
    ],
)
def test_qwen3_rerankers_are_known_by_name(
    tiny_judge_path: Path, model_type: str, folder: str, name: str, expected: bool
) -> None:
    tokenizer = load_language_model(tiny_judge_path).tokenizer
    assert is_qwen3_reranker({"model_type": model_type}, Path(folder), name, tokenizer) is expected


def test_only_the_document_is_shortened(judge: Judge) -> None:
    question = judge.question(None)
    whole = question.ask("the query", "x", may_truncate=False).ids
    cut = question.ask("the query", "lazy dog " * 200, may_truncate=True)
    assert cut.truncated
    assert TINY_CONTEXT - 2 <= len(cut.ids) <= TINY_CONTEXT
    assert cut.ids[-20:] == whole[-20:]
    assert cut.ids[:20] == whole[:20]
    with pytest.raises(ContextLengthExceeded, match=rf"\d+ tokens with the question, the model takes {TINY_CONTEXT}"):
        question.ask("the query", "lazy dog " * 200, may_truncate=False)
    with pytest.raises(ContextLengthExceeded, match="the query and the question"):
        question.ask("lazy dog " * 200, "x", may_truncate=True)


def test_model_without_a_template_or_single_tokens_is_refused(tmp_path: Path, tiny_llama_path: Path) -> None:
    base = write_tiny_llama(tmp_path / "base", chat_template=None, words=("Yes", "No"))
    with pytest.raises(NoChatTemplate):
        loaded(base)
    with pytest.raises(ModelUnsupported, match="'Yes' is 3 tokens"):
        loaded(tiny_llama_path)


def test_template_that_changes_the_text_is_refused(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    folder = write_tiny_llama(tmp_path / "loud", chat_template=template, words=("Yes", "No"))
    with pytest.raises(ModelUnsupported, match="chat template"):
        loaded(folder)


# --- the score ---


def test_score_is_yes_against_no_at_the_last_token(tiny_judge_path: Path, judge: Judge) -> None:
    engine, info = loaded(tiny_judge_path)
    run = Recorded(engine, BODIES)
    model = load_language_model(tiny_judge_path).model
    for index, body in enumerate(BODIES):
        for place, score in scores(run, index).items():
            ids = judge.question(None).ask(body["query"], body["documents"][place], may_truncate=False).ids
            logits = np.array(model(mx.array([ids]))[0, -1], dtype=np.float64)
            expected = 1 / (1 + math.exp(logits[judge.no_id] - logits[judge.yes_id]))
            assert score == pytest.approx(expected, abs=1e-5)
    assert info.details["head"] == "last_column"
    assert info.details["prompt"] == "chat"


def test_long_rows_read_in_steps_give_the_same_scores(tiny_judge_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = loaded(tiny_judge_path)
    at_once = Recorded(engine, BODIES)
    monkeypatch.setattr(reranking, "STEP_TOKENS", 16)
    in_steps = Recorded(engine, BODIES)
    for index in range(len(BODIES)):
        assert scores(in_steps, index) == pytest.approx(scores(at_once, index), abs=1e-5)
    assert len(in_steps.events) > len(at_once.events), "each step shows that something moves"


def test_parts_are_whole_groups_and_a_resume_gives_the_same_scores(tiny_judge_path: Path) -> None:
    options = {"batch_size": 4}
    engine, _ = loaded(tiny_judge_path)
    whole = Recorded(engine, BODIES, options)
    assert len(whole.parts) > 3
    assert whole.parts[-1] == set()
    for done in (whole.parts[0], whole.parts[0] | whole.parts[2], {0}, {4, 5}):
        rest = Recorded(engine, BODIES, options, done=frozenset(done))
        assert rest.answers == {index: answer for index, answer in whole.answers.items() if index not in done}


def test_truncations_are_counted_or_refused(tiny_judge_path: Path) -> None:
    engine, _ = loaded(tiny_judge_path)
    bodies = [{"query": "hello", "documents": ["fox", "lazy dog " * 200]}, {"query": "hello", "documents": ["fox"]}]
    cut = Recorded(engine, bodies)
    assert cut.stats.counters["truncated"] == 1
    assert cut.stats.counters["pairs"] == 3
    strict = Recorded(engine, bodies, {"overflow": "error"})
    assert strict.error(0)["code"] == "context_length_exceeded"
    assert strict.answers[1].succeeded


def test_head_that_is_not_all_of_the_model_is_found_out(tiny_judge_path: Path) -> None:
    model = load_language_model(tiny_judge_path).model

    class Capped:
        """As families do that cap or scale their logits after the head."""

        def __init__(self) -> None:
            self.model, self.layers = model.model, model.layers

        def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
            return mx.tanh(model(ids, cache=cache) / 2) * 2

    rows = [[5, 6, 7], [5, 6, 7, 8, 9]]
    assert reranking._choose_head(model, rows, 1e-4)[1] == "last_column"
    assert reranking._choose_head(Capped(), rows, 1e-4)[1] == "whole"


class FaultyEngine(RerankingEngine):
    """Scores of a batch are not those of its rows alone; ``broken`` makes them no numbers."""

    broken = False

    def _score(self, rows: Sequence[Sequence[int]], tick: Any) -> list[float]:
        found = super()._score(rows, tick)
        if self.broken:
            return [math.nan] * len(found)
        return found if len(rows) == 1 else [score / 2 for score in found]


def test_model_that_fails_the_probe_scores_one_pair_at_a_time(tiny_judge_path: Path) -> None:
    engine = FaultyEngine()
    info = engine.load(EngineRequest("rerank", str(tiny_judge_path)))
    assert not info.details["probe"]["passed"]
    assert info.details["batch_size"] == 1
    expected = Recorded(loaded(tiny_judge_path)[0], BODIES)
    run = Recorded(engine, BODIES)
    for index in range(len(BODIES)):
        assert scores(run, index) == pytest.approx(scores(expected, index), abs=1e-5)


def test_score_that_is_no_number_errs(tiny_judge_path: Path) -> None:
    engine = FaultyEngine()
    engine.load(EngineRequest("rerank", str(tiny_judge_path)))
    engine.broken = True
    assert Recorded(engine, BODIES[:1]).error(0)["code"] == "non_finite_score"


# --- the answer ---


def test_results_are_sorted_with_ties_by_place_and_cut_to_top_n(tiny_judge_path: Path) -> None:
    engine, _ = loaded(tiny_judge_path)
    documents: list[Any] = ["fox", {"text": "the lazy dog"}, "fox", "hello world"]
    body = {"query": "hello", "documents": documents, "top_n": 3, "return_documents": True, "user": "me"}
    run = Recorded(engine, [body, body | {"top_n": None, "return_documents": None}], {"model_name": "tiny"})
    every = run.body(1)["results"]
    order = [result["index"] for result in every]
    assert order.index(0) + 1 == order.index(2), "equal documents stay in their order"
    assert "document" not in every[0]
    best = run.body(0)
    assert best["model"] == "tiny"
    assert [result["index"] for result in best["results"]] == order[:3]
    for result in best["results"]:
        given = documents[result["index"]]
        assert result["document"] == {"text": given if isinstance(given, str) else given["text"]}
    assert best["usage"] == run.body(1)["usage"]


def test_rank_puts_the_best_first_and_ties_by_place() -> None:
    assert rank([0.1, 0.9, 0.9, 0.5], None) == [1, 2, 3, 0]
    assert rank([0.1, 0.9, 0.9, 0.5], 2) == [1, 2]
    assert rank([0.1], 5) == [0]


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"documents": []}, "invalid_value", "documents"),
        ({"documents": ["x", ""]}, "invalid_value", "documents"),
        ({"documents": [{"text": "x", "image": "y"}]}, "unsupported_parameter", "documents"),
        ({"documents": ["\ud800"]}, "invalid_value", "documents"),
        ({"query": None}, "missing_field", "query"),
        ({"query": 3}, "invalid_value", "query"),
        ({"top_n": True}, "invalid_value", "top_n"),
        ({"return_documents": "yes"}, "invalid_value", "return_documents"),
        ({"max_chunks_per_doc": 2}, "unsupported_parameter", "max_chunks_per_doc"),
    ],
)
def test_bad_items_err_with_code_and_parameter(
    tiny_judge_path: Path, change: dict[str, Any], code: str, param: str
) -> None:
    engine, _ = loaded(tiny_judge_path)
    run = Recorded(engine, [{"query": "hello", "documents": ["fox"]} | change])
    assert (run.error(0)["code"], run.error(0)["param"]) == (code, param)
    assert run.parts == [{0}, set()]


def test_options_that_are_not_known_are_refused(tiny_judge_path: Path) -> None:
    with pytest.raises(JobError, match="not valid"):
        loaded(tiny_judge_path, overflow="chunk")
