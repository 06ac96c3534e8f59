"""The generation engine: chat and completion requests over mlx-lm's batched decoding.

A shard's rows enter the batch longest first and leave when they are finished; nothing that is decided here depends on
time, so a shard takes the same way through the batch on every run. Knows nothing about jobs, parts or leases.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from mlx_lm.generate import BatchGenerator

from pipeline.errors import ItemError, JobError, ModelNotFound, ModelUnsupported, NoChatTemplate
from pipeline.ports import (
    Emit,
    EngineInfo,
    EngineRequest,
    JsonObject,
    Progress,
    RunStats,
    ShouldStop,
    Started,
    WorkItem,
)
from pipeline.specs.base import Endpoint
from pipeline.specs.generate import SamplingDefaults
from workers.engines.answers import error_answer
from workers.engines.chat import Dialogue
from workers.engines.loading import LanguageModel, load_language_model
from workers.engines.memory import peak_rss_bytes
from workers.engines.platform import numeric_platform
from workers.engines.probe import PROBE_TEXTS, probe_batching
from workers.engines.requests import ROLES, Role, parse_request
from workers.engines.rows import Row
from workers.engines.sampling import RowSampler, sample_greedy
from workers.engines.stopping import StopScanner
from workers.engines.trace import BusyTrace, Waits

#: Prompt tokens of one row read in one step; decoding rows wait no longer than that.
PREFILL_STEP_TOKENS = 512

#: Most rows whose prompts are read in one step.
PREFILL_ROWS = 8

#: Rows decoded together where the options do not say.
DEFAULT_WIDTH = 16

#: Seconds between two progress events while the engine works; a step that takes longer delays the next one.
PROGRESS_S = 0.5


class GenerationEngine:
    """Holds one language model and answers shards of requests with it.

    Load options: ``endpoint`` (with the chat endpoint a model without a chat template is refused). Run options:
    ``endpoint``, ``model_name`` (what answers call the model), ``sampling`` (defaults for items), ``width``.
    """

    def __init__(self) -> None:
        self._language_model: LanguageModel | None = None
        self._dialogue: Dialogue | None = None
        self._is_batchable = True

    def load(self, request: EngineRequest) -> EngineInfo:
        """Load the checkpoint and probe it; raises JobError for what no retry can mend."""
        start = time.monotonic()
        if request.model_path is None:
            raise ModelNotFound("generation needs a model")
        loaded = load_language_model(Path(request.model_path), request.dtype, trust_code=request.trust_code)
        dialogue = Dialogue(loaded.tokenizer, context_length=loaded.context_length)
        if "endpoint" in request.options:
            _check_role(request.options["endpoint"], dialogue)
        details: JsonObject = {
            "model_type": loaded.config["model_type"],
            "quantization": loaded.quantization,
            "dequantized": loaded.dequantized,
            "probe": self._probe(loaded),
        }
        self._language_model, self._dialogue = loaded, dialogue
        return EngineInfo(
            kind="generate",
            model_digest=request.model_digest,
            numeric_platform=numeric_platform(loaded.dtype),
            load_s=time.monotonic() - start,
            context_length=loaded.context_length,
            details=details,
        )

    def _probe(self, loaded: LanguageModel) -> JsonObject:
        prompts = [loaded.tokenizer.encode(text) for text in PROBE_TEXTS]
        try:
            result = probe_batching(loaded.model, [prompt for prompt in prompts if prompt], loaded.dtype)
        except ValueError as error:  # a cache that mlx-lm cannot put into a batch, not even alone
            raise ModelUnsupported(f"this model cannot be decoded in batches: {error}") from error
        self._is_batchable = result.passed
        return {**asdict(result), "width_limit": None if result.passed else 1}

    def run(
        self,
        items: Sequence[WorkItem],
        options: JsonObject,
        *,
        done: frozenset[int],
        emit: Emit,
        should_stop: ShouldStop,
    ) -> RunStats:
        """Answer the items; see :meth:`pipeline.ports.Engine.run`."""
        if self._language_model is None or self._dialogue is None:
            raise RuntimeError("nothing is loaded")
        role = _check_role(options["endpoint"], self._dialogue)
        wanted = int(options.get("width", DEFAULT_WIDTH))
        width = wanted if self._is_batchable else 1
        run = _Run(self._language_model, self._dialogue, role, str(options["model_name"]), width, emit)
        cancelled = run.prepare((item for item in items if item.index not in done), options, should_stop)
        cancelled = cancelled or run.decode(should_stop)
        run.report()
        return run.stats(cancelled=cancelled, counters={"width_declined": 1} if width < wanted else {})

    def close(self) -> None:
        self._language_model = self._dialogue = None


class _Run:
    """One shard's way through the batch."""

    def __init__(
        self, loaded: LanguageModel, dialogue: Dialogue, role: Role, model_name: str, width: int, emit: Emit
    ) -> None:
        self._model = loaded.model
        self._dialogue = dialogue
        self._role: Role = role
        self._model_name = model_name
        self._width = width
        self._emit = emit
        self._waiting: deque[Row] = deque()
        self._live: dict[int, Row] = {}
        self._trace = BusyTrace()
        self._token_waits = Waits()
        self._prompt_tokens = self._output_tokens = 0
        self._progress_tokens = self._progress_items = 0
        self._progress_at = time.monotonic()

    def prepare(self, items: Iterable[WorkItem], options: JsonObject, should_stop: ShouldStop) -> bool:
        """Check and tokenize; answers the bad ones at once. Returns whether it was told to stop."""
        rows: list[Row] = []
        defaults = SamplingDefaults(**options.get("sampling", {}))
        for item in items:
            if should_stop():
                return True
            try:
                request = parse_request(item, self._role, defaults)
                prompt = self._dialogue.encode(request)
            except ItemError as error:
                self._emit(error_answer(item.index, error))
                self._progress_items += 1
            else:
                scanner = StopScanner(request.stop, self._dialogue.decode) if request.stop else None
                rows.append(Row(item.index, request, prompt, scanner))
            self._report_in_time(time.monotonic(), "prefill")
        # Longest first keeps the tail short; the index makes it a function of the shard.
        self._waiting.extend(sorted(rows, key=lambda row: (-row.expected_tokens, row.index)))
        return False

    def decode(self, should_stop: ShouldStop) -> bool:
        """Step until every row is answered. Returns whether it was told to stop."""
        generator: Any = BatchGenerator(  # mlx-lm's methods have no types
            self._model,
            stop_tokens=[[token] for token in self._dialogue.end_tokens],
            sampler=sample_greedy,
            completion_batch_size=self._width,
            prefill_batch_size=min(PREFILL_ROWS, self._width),
            prefill_step_size=PREFILL_STEP_TOKENS,
        )
        try:
            while self._waiting or self._live:
                if should_stop():
                    generator.remove(list(self._live))
                    return True
                self._step(generator)
            return False
        finally:
            generator.close()

    def _step(self, generator: Any) -> None:
        self._admit(generator)
        with self._trace.call():
            read, generated = generator.next()
        now = time.monotonic()
        for response in read:
            row = self._live[response.uid]
            self._progress_tokens += response.progress[0] - row.prefilled
            row.prefilled = response.progress[0]
        for response in generated:
            self._take(generator, response.uid, response.token, response.finish_reason, now)
        self._report_in_time(now, "decode" if generated else "prefill")

    def _admit(self, generator: Any) -> None:
        """Fill the batch. Rows wait here and not in the generator, which would let more than ``width`` in."""
        rows = [self._waiting.popleft() for _ in range(min(self._width - len(self._live), len(self._waiting)))]
        if not rows:
            return
        self._emit(Started(tuple(row.index for row in rows)))
        now = time.monotonic()
        uids = generator.insert(
            [row.prompt for row in rows],
            max_tokens=[row.request.max_tokens for row in rows],
            samplers=[_sampler(row) for row in rows],
        )
        for uid, row in zip(uids, rows, strict=True):
            row.admitted_at = now
            self._live[uid] = row

    def _take(self, generator: Any, uid: int, token: int, verdict: str | None, now: float) -> None:
        """One new token of one row; a row that fails here errs alone."""
        row = self._live[uid]
        self._progress_tokens += 1
        if row.tokens:
            self._token_waits.add(now - row.last_at)
        try:
            reason = row.add(token, now, verdict)
            if reason is None:
                return
            answer = row.answer(reason, self._dialogue, self._role, self._model_name, ended=verdict == "stop")
        except Exception as error:  # noqa: BLE001 - tokenizers raise plain exceptions
            answer = error_answer(row.index, ItemError(f"the answer cannot be decoded: {error}", code="decode_failed"))
        del self._live[uid]
        if verdict is None:
            generator.remove([uid])
        self._prompt_tokens += len(row.prompt)
        self._output_tokens += len(row.tokens)
        self._progress_items += 1
        self._emit(answer)

    def _report_in_time(self, now: float, phase: Literal["prefill", "decode"]) -> None:
        if now - self._progress_at >= PROGRESS_S:
            self._progress_at = now
            self.report(phase)

    def report(self, phase: Literal["prefill", "decode"] = "decode") -> None:
        """Tokens, read and written, and items so far."""
        self._emit(Progress(tokens=self._progress_tokens, items=self._progress_items, phase=phase))

    def stats(self, *, cancelled: bool, counters: dict[str, int]) -> RunStats:
        """Token sums are of answered rows; a row that was cancelled is in none of them."""
        return RunStats(
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            busy=self._trace.spans,
            peak_rss_bytes=peak_rss_bytes(),
            counters=counters,
            measures=self._token_waits.percentiles("itl_s"),
            cancelled=cancelled,
        )


def _sampler(row: Row) -> RowSampler | None:
    """None is the batch's greedy sampler, which takes all such rows in one call."""
    return None if row.request.sampling.is_greedy else RowSampler(row.request.sampling, row.request.seed)


def _check_role(endpoint: str, dialogue: Dialogue) -> Role:
    if endpoint not in ROLES:
        raise JobError(f"generation does not answer {endpoint!r}")
    role = ROLES[Endpoint(endpoint)]
    if role == "chat" and not dialogue.has_template:
        raise NoChatTemplate(hint="use an instruct model, or /v1/completions with a prompt of your own")
    return role
