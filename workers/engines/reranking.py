"""The reranking engine: a language model is asked whether a document answers a query; the score is how sure its yes is.

Score = sigmoid(logit of yes - logit of no) at the last prompt token. Micro-batches of pairs are frozen by the shard.
Knows nothing about files other than the model's folder.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from pydantic import ValidationError

from pipeline.errors import ItemError, JobError
from pipeline.ports import (
    Answer,
    Boundary,
    Emit,
    EngineInfo,
    EngineRequest,
    JsonObject,
    RunStats,
    ShouldStop,
    Started,
    WorkItem,
)
from pipeline.specs import Overflow
from workers.engines.answers import error_answer
from workers.engines.judging import Judge, Judgement, is_qwen3_reranker
from workers.engines.loading import LanguageModel, load_language_model
from workers.engines.microbatches import Group, freeze_groups, pad_right
from workers.engines.platform import numeric_platform
from workers.engines.rerank_items import RerankOptions, RerankRequest, parse_body, rerank_answer
from workers.engines.tally import Tally

#: Most tokens of one pair with its question, whatever the model allows.
HARD_LENGTH_LIMIT = 8192

#: Largest change of a score, alone against in a batch, that the probe lets pass, by the type computed in.
PROBE_TOLERANCE = {"float32": 1e-4}
PROBE_TOLERANCE_HALF = 2e-2

#: Most tokens of a row in one forward.
STEP_TOKENS = 1024

_PROBE_QUERY = "What is the capital of France?"
_PROBE_DOCUMENTS = (
    "Paris.",
    "Bananas are rich in potassium.",
    "The seat of government has been in Paris for most of the country's history, apart from a few years of war.",
)

#: Called between the steps of a long forward, for whoever watches that something moves.
Tick = Callable[[], None]

#: [B, L] right-padded ids and [B] lengths to [B, V] logits at each row's last token.
LastLogits = Callable[[mx.array, mx.array, Tick], mx.array]


def _no_tick() -> None:
    """Nobody watches while a model is loaded."""


class RerankingEngine:
    """Holds one generative reranker. Implements :class:`pipeline.ports.Reranker`."""

    def __init__(self) -> None:
        self._language_model: LanguageModel | None = None
        self._last_logits: LastLogits | None = None

    def load(self, request: EngineRequest) -> EngineInfo:
        """Load a language model folder; raises NoChatTemplate, ModelUnsupported, or JobError for strange options."""
        started = time.monotonic()
        if request.model_path is None:
            raise JobError("a reranking engine needs a model")
        folder = Path(request.model_path)
        options = _parse_options(request.options)
        loaded = load_language_model(folder, request.dtype, trust_code=request.trust_code)
        self._judge = Judge(
            loaded.tokenizer,
            is_qwen3_reranker=is_qwen3_reranker(loaded.config, folder, options.model_name, loaded.tokenizer),
            max_length=min(loaded.context_length or HARD_LENGTH_LIMIT, HARD_LENGTH_LIMIT),
        )
        rows = [
            self._judge.question(None).ask(_PROBE_QUERY, document, may_truncate=True).ids
            for document in _PROBE_DOCUMENTS
        ]
        tolerance = PROBE_TOLERANCE.get(loaded.dtype, PROBE_TOLERANCE_HALF)
        self._last_logits, head = _choose_head(loaded.model, rows, tolerance)
        self._language_model = loaded
        deviation = self._probe(rows)
        is_batchable = deviation <= tolerance
        self._widest = None if is_batchable else 1
        return EngineInfo(
            kind="rerank",
            model_digest=request.model_digest,
            numeric_platform=numeric_platform(loaded.dtype),
            load_s=time.monotonic() - started,
            context_length=self._judge.max_length,
            details={
                "model_type": loaded.config["model_type"],
                "quantization": loaded.quantization,
                "dequantized": loaded.dequantized,
                "prompt": self._judge.protocol,
                "head": head,
                "probe": {"passed": is_batchable, "deviation": deviation if math.isfinite(deviation) else None},
                "batch_size": self._widest or options.batch_size,
            },
        )

    def run(
        self,
        items: Sequence[WorkItem],
        options: JsonObject,
        *,
        done: frozenset[int],
        emit: Emit,
        should_stop: ShouldStop,
    ) -> RunStats:
        """See :class:`pipeline.ports.Engine`."""
        chosen = _parse_options(options)
        tally = Tally("score")
        requests, judgements = self._prepare(items, chosen, done, emit, tally)
        rows_of = {index: [pair.ids for pair in pairs] for index, pairs in judgements.items()}
        for group in freeze_groups(rows_of, self._widest or chosen.batch_size):
            if group.is_answered(done):
                continue
            emit(Started(group.items))
            scores = self._score_group(group, tally, emit, should_stop)
            if scores is None:
                return tally.stats(cancelled=True)
            for index in group.items:
                if index in done:
                    continue
                pairs = judgements[index]
                answer = _answer(index, requests[index], scores[index], pairs, chosen)
                tally.add_answer(answer)
                if answer.succeeded:
                    tally.count("truncated", sum(pair.truncated for pair in pairs))
                    tally.count("pairs", len(pairs))
                emit(answer)
            emit(tally.progress())
            emit(Boundary())
        return tally.stats()

    def close(self) -> None:
        self._language_model = None
        self._last_logits = None
        gc.collect()
        mx.clear_cache()

    # --- one shard ---

    def _prepare(
        self, items: Sequence[WorkItem], options: RerankOptions, done: frozenset[int], emit: Emit, tally: Tally
    ) -> tuple[dict[int, RerankRequest], dict[int, list[Judgement]]]:
        """Read every item of the shard and write its prompts; answers those that cannot be scored."""
        question = self._judge.question(options.instruction)
        may_truncate = options.overflow is Overflow.TRUNCATE
        requests: dict[int, RerankRequest] = {}
        judgements: dict[int, list[Judgement]] = {}
        has_told = False
        for item in items:
            try:
                request = parse_body(item.body)
                judgements[item.index] = [
                    question.ask(request.query, document, may_truncate=may_truncate) for document in request.documents
                ]
                requests[item.index] = request
            except ItemError as error:
                if item.index not in done:
                    answer = error_answer(item.index, error)
                    tally.add_answer(answer)
                    emit(answer)
                    has_told = True
        if has_told:
            emit(tally.progress())
            emit(Boundary())
        return requests, judgements

    def _score_group(
        self, group: Group, tally: Tally, emit: Emit, should_stop: ShouldStop
    ) -> dict[int, list[float]] | None:
        """The scores of each item's documents in their order; None when told to stop."""
        found: dict[tuple[int, int], float] = {}
        for batch in group.batches:
            if should_stop():
                return None
            with tally.call():
                scores = self._score([row.ids for row in batch], lambda: emit(tally.progress()))
            for row, score in zip(batch, scores, strict=True):
                found[row.item, row.ordinal] = score
            tally.add_tokens(sum(len(row.ids) for row in batch))
            tally.count("padded_tokens", len(batch) * max(len(row.ids) for row in batch))
            emit(tally.progress())
        return {item: [found[key] for key in sorted(found) if key[0] == item] for item in group.items}

    def _score(self, rows: Sequence[Sequence[int]], tick: Tick) -> list[float]:
        """Probability of yes against no for each row."""
        assert self._last_logits is not None
        # What fills a row up stands behind its last token and, as the model is causal, before nothing that is read.
        ids, lengths = pad_right(rows, pad_id=0)
        logits = self._last_logits(ids, lengths, tick).astype(mx.float32)
        scores: Any = mx.sigmoid(logits[:, self._judge.yes_id] - logits[:, self._judge.no_id]).tolist()
        return [float(score) for score in scores]

    def _probe(self, rows: Sequence[Sequence[int]]) -> float:
        """Largest change of a score between alone and in one batch; infinite where a score is not a number."""
        pairs = zip(self._score(rows, _no_tick), (self._score([row], _no_tick)[0] for row in rows), strict=True)
        changes = [abs(together - alone) for together, alone in pairs]
        return max(changes) if all(map(math.isfinite, changes)) else math.inf


def _answer(
    index: int, request: RerankRequest, scores: list[float], pairs: Sequence[Judgement], options: RerankOptions
) -> Answer:
    if not all(0.0 <= score <= 1.0 for score in scores):  # a NaN is in no range
        return error_answer(index, ItemError("the model gave a score that is not a number", code="non_finite_score"))
    return rerank_answer(index, request, scores, sum(len(pair.ids) for pair in pairs), options)


def _parse_options(options: JsonObject) -> RerankOptions:
    try:
        return RerankOptions.model_validate(options)
    except ValidationError as error:
        raise JobError(f"the options of this rerank job are not valid: {error}") from error


def _choose_head(model: Any, rows: Sequence[Sequence[int]], tolerance: float) -> tuple[LastLogits, str]:
    """How to get logits at the last token only, and its name.

    The vocabulary's matrix over every token would cost more than the question needs, so it is applied to one column
    where the model's parts allow that; the model's own whole forward decides whether the result is the same.
    """

    def whole(ids: mx.array, lengths: mx.array, tick: Tick) -> mx.array:
        return _read_last(model, model, ids, lengths, tick)

    body = getattr(model, "model", None)
    head = getattr(model, "lm_head", None) or getattr(getattr(body, "embed_tokens", None), "as_linear", None)
    if body is None or head is None:
        return whole, "whole"

    def last_column(ids: mx.array, lengths: mx.array, tick: Tick) -> mx.array:
        logits: mx.array = head(_read_last(model, body, ids, lengths, tick))
        return logits

    ids, lengths = pad_right(rows, pad_id=0)
    # A model that scales or caps its logits does so after the head, and fails here.
    same = mx.allclose(
        last_column(ids, lengths, _no_tick), whole(ids, lengths, _no_tick), rtol=tolerance, atol=tolerance
    )
    return (last_column, "last_column") if same.item() else (whole, "whole")


def _read_last(model: Any, part: Any, ids: mx.array, lengths: mx.array, tick: Tick) -> mx.array:
    """[B, ...]: what ``part`` of the model gives at each row's last token.

    Rows longer than a step are read in several, with a cache, so that memory grows with a step times a row and not
    with the square of a row.
    """
    B, L = ids.shape
    last = lengths - 1
    if L <= STEP_TOKENS:
        states: mx.array = part(ids)
        return states[mx.arange(B), last]
    cache = make_prompt_cache(model)
    found: mx.array | None = None
    for start in range(0, L, STEP_TOKENS):
        states = part(ids[:, start : start + STEP_TOKENS], cache=cache)
        here = states[mx.arange(B), mx.clip(last - start, 0, states.shape[1] - 1)]
        # A row that ended in an earlier step keeps what was found there.
        found = here if found is None else mx.where((last >= start)[:, None], here, found)
        mx.eval(found, [layer.state for layer in cache])
        tick()
    assert found is not None
    return found
