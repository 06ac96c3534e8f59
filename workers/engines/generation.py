"""The generation engine: chat and completion requests over the scheduler. Knows nothing about jobs, parts or leases."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pipeline.errors import JobError, ModelNotFound, NoChatTemplate
from pipeline.ports import Emit, EngineInfo, EngineRequest, JsonObject, RunStats, ShouldStop, WorkItem
from pipeline.specs.base import Endpoint
from pipeline.specs.contract import Contract
from workers.engines.batching.machine import Machine
from workers.engines.chat import Dialogue
from workers.engines.contract import ContractWatch, Findings
from workers.engines.drafting import LoadedDrafter, load_drafter
from workers.engines.generation_run import GenerationRun
from workers.engines.loading import LanguageModel, load_language_model
from workers.engines.machines import build_machine
from workers.engines.platform import numeric_platform
from workers.engines.requests import ROLES, Role


class GenerationEngine:
    """Holds one language model and answers shards of requests with it.

    Load options: ``endpoint`` (with the chat endpoint a model without a chat template is refused), ``draft_path``,
    ``draft_dtype`` and ``draft_trust_code`` (a second model that guesses), ``budget_bytes`` (what this process may hold
    with all its rows, where no smaller ceiling is set). Run options are
    those of a generation spec: ``endpoint``, ``model_name`` (what answers call the model), ``sampling`` (defaults for
    items), ``width``, ``accelerate``, ``lookup``, ``draft``, ``overflow``, ``prefix_cache``, ``report_cache``, ``contract``.
    """

    def __init__(self) -> None:
        self._language_model: LanguageModel | None = None
        self._machine: Machine | None = None
        self._dialogue: Dialogue | None = None
        self._drafter: LoadedDrafter | None = None
        self._findings = Findings()
        self._load_s = 0.0

    def load(self, request: EngineRequest) -> EngineInfo:
        """Load the checkpoint and probe it; raises JobError for what no retry can mend."""
        start = time.monotonic()
        if request.model_path is None:
            raise ModelNotFound("generation needs a model")
        loaded = load_language_model(Path(request.model_path), request.dtype, trust_code=request.trust_code)
        dialogue = Dialogue(loaded.tokenizer, context_length=loaded.context_length)
        if "endpoint" in request.options:
            _check_role(request.options["endpoint"], dialogue)
        drafter = load_drafter(request.options, loaded)
        machine, probe = build_machine(loaded, request.memory_bytes or request.options.get("budget_bytes"))
        self._language_model, self._machine, self._dialogue, self._drafter = loaded, machine, dialogue, drafter
        self._load_s = time.monotonic() - start
        details: JsonObject = {
            "model_type": loaded.config["model_type"],
            "quantization": loaded.quantization,
            "dequantized": loaded.dequantized,
            "probe": {**asdict(probe), "width_limit": machine.width_limit},
            "canonical": {
                "is_on": machine.is_exact,
                "deviation": machine.bounds.seen,
                "experts": machine.routers.is_needed,
                "experts_watched": machine.routers.is_watching,
            },
        }
        return EngineInfo(
            kind="generate",
            model_digest=request.model_digest,
            numeric_platform=numeric_platform(loaded.dtype),
            load_s=self._load_s,
            context_length=loaded.context_length,
            details=details,
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
        """Answer the items; see :meth:`pipeline.ports.Engine.run`."""
        if self._machine is None or self._dialogue is None:
            raise RuntimeError("nothing is loaded")
        role = _check_role(options["endpoint"], self._dialogue)
        watch = ContractWatch(Contract(**(options.get("contract") or {})), self._findings)
        watch.ceiling("model_start_s", self._load_s)
        run = GenerationRun(self._machine, self._dialogue, self._drafter, role, options, watch, emit)
        cancelled = run.prepare((item for item in items if item.index not in done), should_stop)
        cancelled = cancelled or run.decode(should_stop)
        run.report()
        return run.stats(cancelled=cancelled)

    def forget(self) -> None:
        """Drop shared prefixes and what checks found, as if nothing had run; measured costs of steps stay."""
        self._findings = Findings()
        if self._machine is not None:
            self._machine.prefixes.clear()

    def close(self) -> None:
        self._language_model = self._machine = self._dialogue = self._drafter = None


def _check_role(endpoint: str, dialogue: Dialogue) -> Role:
    if endpoint not in ROLES:
        raise JobError(f"generation does not answer {endpoint!r}")
    role = ROLES[Endpoint(endpoint)]
    if role == "chat" and not dialogue.has_template:
        raise NoChatTemplate(hint="use an instruct model, or /v1/completions with a prompt of your own")
    return role
