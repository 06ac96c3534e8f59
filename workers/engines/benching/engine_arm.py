"""An arm that is our own generation engine, run in this process with the options of a job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pipeline.ports import Answer, EngineEvent, WorkItem
from pipeline.specs.bench import BenchArm
from workers.engines.benching.memory_trace import MemoryTrace
from workers.engines.benching.runs import ArmRun, Outcome
from workers.engines.generation import GenerationEngine


def run_engine(engine: GenerationEngine, arm: BenchArm, items: Sequence[WorkItem]) -> ArmRun:
    """Answer all items once, with nothing kept from an earlier run."""
    engine.forget()
    answers: dict[int, tuple[Answer, float]] = {}

    def emit(event: EngineEvent) -> None:
        if isinstance(event, Answer):
            answers[event.index] = (event, time.monotonic())

    with MemoryTrace() as memory:
        start = time.monotonic()
        stats = engine.run(items, arm.options, done=frozenset(), emit=emit, should_stop=lambda: False)
        seconds = time.monotonic() - start
    engine.forget()
    return ArmRun(
        outcomes=tuple(_outcome(item, *answers[item.index], start) for item in items),
        seconds=seconds,
        memory=memory.use(),
        itl_s={name: stats.measures[f"itl_s_{name}"] for name in ("p50", "p95") if f"itl_s_{name}" in stats.measures},
        counters=stats.counters,
        verdicts=stats.verdicts,
        engine_s=sum(end - begin for begin, end in stats.busy),
    )


def _outcome(item: WorkItem, answer: Answer, at: float, start: float) -> Outcome:
    """Times before the last token are the engine's own, counted back from the moment the answer came out."""
    if answer.body is None:
        code = str((answer.error or {}).get("code", "unknown"))
        return Outcome(item.custom_id, error=code, done_s=at - start)
    ttft_s, request_s = answer.measures.get("ttft_s"), answer.measures.get("request_s")
    known = ttft_s is not None and request_s is not None
    return Outcome(
        custom_id=item.custom_id,
        tokens=answer.tokens,
        texts=tuple(_text(choice) for choice in answer.body["choices"]),
        prompt_tokens=int(answer.usage["prompt_tokens"]),
        output_tokens=int(answer.usage["completion_tokens"]),
        first_token_s=max(0.0, at - start - (request_s or 0.0) + (ttft_s or 0.0)) if known else None,
        done_s=at - start,
        ttft_s=ttft_s,
        itl_mean_s=answer.measures.get("itl_mean_s"),
    )


def _text(choice: dict[str, Any]) -> str:
    if "message" not in choice:
        return str(choice["text"])
    return str(choice["message"].get("content") or "")
