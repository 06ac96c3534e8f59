"""A benchmark from its request to its document: load once, warm up, interleave, compare."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from pipeline.errors import PipelineError
from pipeline.ports import EngineInfo, EngineRequest, WorkItem
from pipeline.specs.bench import BenchArm, BenchRequest
from workers.engines.benching.comparison import MarginOf
from workers.engines.benching.engine_arm import run_engine
from workers.engines.benching.library_arm import check_understood, margin_at, prompt_of, run_library
from workers.engines.benching.runs import ArmRun
from workers.engines.chat import Dialogue
from workers.engines.generation import GenerationEngine

#: Told of each run as it ends: (what it was, the arm, the run).
Report = Callable[[str, BenchArm, ArmRun], None]


class BenchFailed(PipelineError):
    """A benchmark could not be run to its end."""

    code = "bench_failed"


@dataclass(frozen=True, slots=True)
class Session:
    """All that was measured. ``runs`` by arm, in repetitions; ``order`` is the arms' order in each repetition."""

    request: BenchRequest
    info: EngineInfo
    load_s: float
    loaded_bytes: int
    runs: dict[str, list[ArmRun]]
    order: list[list[str]]
    margin_of: MarginOf


def run_session(request: BenchRequest, report: Report) -> Session:
    """Measure. Raises JobError for a model that cannot be loaded, UsageError for items that an arm cannot answer."""
    items = [WorkItem(number, item.custom_id, item.body, item.seed) for number, item in enumerate(request.items)]
    for arm in request.arms:
        if arm.runner == "mlx_lm":
            check_understood(arm, items)
    engine = GenerationEngine()
    start = time.monotonic()
    info = engine.load(
        EngineRequest(
            "generate",
            request.model_path,
            request.model_digest,
            request.dtype,
            dict(request.load_options),
            trust_code=request.trust_code,
        )
    )
    load_s = time.monotonic() - start
    loaded_bytes = psutil.Process().memory_info().rss
    bench = _Bench(engine, items)
    try:
        runs, order = _repeat(bench, request, report)
        return Session(request, info, load_s, loaded_bytes, runs, order, bench.margin_of(request))
    finally:
        engine.close()


def _repeat(bench: _Bench, request: BenchRequest, report: Report) -> tuple[dict[str, list[ArmRun]], list[list[str]]]:
    """The warm-ups, then every arm once in each repetition, another one first each time."""
    arms = list(request.arms)
    if request.warm_up_items:
        for arm in arms:
            report("warm-up", arm, bench.run(arm, request.warm_up_items))
    runs: dict[str, list[ArmRun]] = {arm.name: [] for arm in arms}
    order = []
    for repetition in range(request.repeat):
        turn = repetition % len(arms)
        turned = [*arms[turn:], *arms[:turn]]
        order.append([arm.name for arm in turned])
        for arm in turned:
            run = bench.run(arm, None)
            runs[arm.name].append(run)
            report(f"{repetition + 1}/{request.repeat}", arm, run)
    return runs, order


class _Bench:
    """One loaded engine and the items."""

    def __init__(self, engine: GenerationEngine, items: list[WorkItem]) -> None:
        self._engine = engine
        self._items = items
        loaded = engine._language_model
        assert loaded is not None
        self._model: Any = loaded.model
        self._dialogue = Dialogue(loaded.tokenizer, context_length=loaded.context_length)

    def run(self, arm: BenchArm, first: int | None) -> ArmRun:
        items = self._items[:first]
        if arm.runner == "mlx_lm":
            return run_library(self._model, self._dialogue, arm, items)
        return run_engine(self._engine, arm, items)

    def margin_of(self, request: BenchRequest) -> MarginOf:
        """Gaps between logits by plain forwards of one row; infinite for an item whose tokens are drawn."""
        options = request.arms[0].options

        def margin(item: int, shared: Sequence[int], token: int, other: int) -> float:
            prompt, is_greedy = prompt_of(self._dialogue, options, self._items[item])
            return margin_at(self._model, [*prompt, *shared], token, other) if is_greedy else math.inf

        return margin
