"""An arm that is mlx-lm's own batch call over the same model, prompts and lengths.

``mlx_lm.batch_generate`` inserts all prompts into a ``BatchGenerator`` and steps it to the end; so does this, which can
look at the clock after each step. Knows nothing of penalties, stop strings or several choices: such items are refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import make_sampler

from pipeline.errors import ItemError, UsageError
from pipeline.ports import WorkItem
from pipeline.specs.base import Endpoint
from pipeline.specs.bench import BenchArm
from pipeline.specs.generate import SamplingDefaults
from workers.engines.benching.memory_trace import MemoryTrace
from workers.engines.benching.runs import ArmRun, Outcome, percentile
from workers.engines.chat import Dialogue
from workers.engines.requests import ROLES, GenerationRequest, Sampling, parse_request

#: What a body may say for this arm to answer it as our engine would.
UNDERSTOOD = frozenset(
    {
        *("messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p"),
        *("seed", "model", "user", "metadata", "store"),
    }
)

#: Prompts that mlx-lm reads together unless it is told otherwise; a smaller width is also its bound.
PREFILL_ROWS = 8


@dataclass(slots=True)
class _Row:
    request: GenerationRequest
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    began_at: float = 0.0
    times: list[float] = field(default_factory=list)
    is_ended: bool = False


def check_understood(arm: BenchArm, items: Sequence[WorkItem]) -> None:
    """Raises UsageError for defaults or a request that this arm would answer otherwise than they ask."""
    usual = SamplingDefaults().model_dump()
    for name, value in arm.options.get("sampling", {}).items():
        if name not in UNDERSTOOD and value != usual[name]:
            raise UsageError(f"the arm mlx_lm knows no {name}", hint="leave mlx_lm out of --arms")
    for item in items:
        strange = sorted({name for name, value in item.body.items() if value is not None} - UNDERSTOOD)
        if strange:
            raise UsageError(
                f"the arm mlx_lm cannot answer {item.custom_id}: it knows no {', '.join(strange)}",
                hint="leave mlx_lm out of --arms, or such items out of the input",
            )


def run_library(model: Any, dialogue: Dialogue, arm: BenchArm, items: Sequence[WorkItem]) -> ArmRun:
    """Answer all items once, first come first served. Reading requests and writing texts counts, as in our engine."""
    # mlx-lm samples from MLX's own state: the same noise in each repetition.
    mx.random.seed(items[0].seed & 0xFFFFFFFF)
    with MemoryTrace() as memory:
        start = time.monotonic()
        prepared = prepare_rows(dialogue, arm, items)
        rows = [row for row in prepared if isinstance(row, _Row)]
        steps = _generate(model, dialogue, int(arm.options["width"]), rows)
        outcomes = tuple(
            _outcome(item, row, dialogue, start)
            if isinstance(row, _Row)
            else Outcome(item.custom_id, error=row.item_code)
            for item, row in zip(items, prepared, strict=True)
        )
        seconds = time.monotonic() - start
    waits = [after - before for row in rows for before, after in zip(row.times, row.times[1:], strict=False)]
    found = {f"p{share}": percentile(waits, share) for share in (50, 95)}
    return ArmRun(
        outcomes=outcomes,
        seconds=seconds,
        memory=memory.use(),
        itl_s={name: value for name, value in found.items() if value is not None},
        counters={"decode_steps": steps},
    )


def prepare_rows(dialogue: Dialogue, arm: BenchArm, items: Sequence[WorkItem]) -> list[_Row | ItemError]:
    """Each item's prompt tokens, or why it has none."""
    role = ROLES[Endpoint(arm.options["endpoint"])]
    defaults = SamplingDefaults(**arm.options.get("sampling", {}))
    rows: list[_Row | ItemError] = []
    for item in items:
        try:
            request = parse_request(item, role, defaults)
            rows.append(_Row(request, dialogue.encode(request)))
        except ItemError as error:
            rows.append(error)
    return rows


def prompt_of(dialogue: Dialogue, options: Mapping[str, Any], item: WorkItem) -> tuple[list[int], bool]:
    """An item's prompt tokens, and whether it takes the best token each time; raises ItemError."""
    request = parse_request(item, ROLES[Endpoint(options["endpoint"])], SamplingDefaults(**options.get("sampling", {})))
    return dialogue.encode(request), request.sampling.is_greedy


def margin_at(model: Any, prompt: Sequence[int], token: int, other: int) -> float:
    """Gap between two tokens' logits after ``prompt``, by one plain forward of one row."""
    logits = model(mx.array([list(prompt)]))[0, -1].astype(mx.float32)
    return abs(float(logits[token].item()) - float(logits[other].item()))


def _generate(model: Any, dialogue: Dialogue, width: int, rows: Sequence[_Row]) -> int:
    """Fills the rows in; how many steps said something."""
    steps = 0
    generator: Any = BatchGenerator(  # mlx-lm's methods have no types
        model,
        stop_tokens=[[token] for token in dialogue.end_tokens],
        completion_batch_size=width,
        prefill_batch_size=min(PREFILL_ROWS, width),
    )
    try:
        uids = generator.insert(
            [row.prompt for row in rows],
            [row.request.max_tokens for row in rows],
            samplers=[_sampler(row.request.sampling) for row in rows],
        )
        live = dict(zip(uids, rows, strict=True))
        while live:
            before = time.monotonic()
            read, generated = generator.next()
            now = time.monotonic()
            steps += bool(generated)
            for response in read:
                row = live[response.uid]
                row.began_at = row.began_at or before
            for response in generated:
                row = live[response.uid]
                row.tokens.append(response.token)
                row.times.append(now)
                if response.finish_reason is not None:
                    row.is_ended = response.finish_reason == "stop"
                    del live[response.uid]
    finally:
        generator.close()
    return steps


def _sampler(sampling: Sampling) -> Any:
    """None leaves the row to the batch's greedy sampler, which takes all such rows in one call."""
    if sampling.is_greedy:
        return None
    make: Any = make_sampler  # has no types
    return make(temp=sampling.temperature, top_p=sampling.top_p, min_p=sampling.min_p, top_k=sampling.top_k)


def _outcome(item: WorkItem, row: _Row, dialogue: Dialogue, start: float) -> Outcome:
    spread = row.times[-1] - row.times[0]
    return Outcome(
        custom_id=item.custom_id,
        tokens=(tuple(row.tokens),),
        texts=(dialogue.decode(row.tokens[:-1] if row.is_ended else row.tokens),),
        prompt_tokens=len(row.prompt),
        output_tokens=len(row.tokens),
        first_token_s=row.times[0] - start,
        done_s=row.times[-1] - start,
        ttft_s=row.times[0] - row.began_at,
        itl_mean_s=spread / (len(row.tokens) - 1) if len(row.tokens) > 1 else None,
    )
