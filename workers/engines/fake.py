"""A deterministic engine without a model, FOR TESTING THE PLUMBING ONLY: its answers mean nothing.

It obeys the contract of the real engines (each item once, frozen micro-batches, boundaries, cancel) and can be told to
be slow, to err, to hang or to die at a given item. What it answers is a function of the item's body and seed alone.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import orjson
from pydantic import Field, ValidationError

from pipeline.errors import ItemError, JobError, ModelNotFound
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
    VectorRow,
    WorkItem,
)
from pipeline.specs.base import Frozen
from pipeline.specs.contract import Contract
from workers.engines.answers import error_answer
from workers.engines.contract import ContractWatch, Findings
from workers.engines.rerank_items import rank
from workers.engines.tally import Tally

#: Seconds a stalled item sleeps between two looks at whether the process should end; it never looks at anything else.
_STALL_STEP_S = 3600.0

FakeKind = Literal["generate", "embed", "rerank"]

Misdeed = Literal["abort", "kill", "parent"]


class FakeScript(Frozen):
    """How the engine behaves: the keys of the model folder's `config.json` beside ``model_type``.

    ``errors``, ``crashes``, ``raises`` and ``stalls`` name items by custom_id; a crash may take the parent along.
    ``crashes_together`` ends the process where all of these items are in one batch. With ``once_folder`` each crash and stall happens
    only the first time, by whichever process comes first: a file in that folder remembers it. ``mismatches`` are what
    checks of a generate job's accelerations find in each run, until the contract has switched the mechanism off.
    """

    load_s: float = Field(default=0.0, ge=0.0)
    delay_s: float = Field(default=0.0, ge=0.0, description="time that each item takes")
    batch_size: int = Field(default=4, ge=1, description="items between two boundaries")
    dimension: int = Field(default=8, ge=1)
    errors: Mapping[str, str] = Field(default_factory=dict, description="custom_id to error code")
    crashes: Mapping[str, Misdeed] = Field(default_factory=dict)
    crashes_together: frozenset[str] = frozenset()
    raises: tuple[str, ...] = ()
    stalls: tuple[str, ...] = ()
    mismatches: tuple[tuple[str, str, str], ...] = Field(default=(), description="mechanism, code, reason")
    levels: Mapping[str, float] = Field(default_factory=dict, description="what each ceiling's measurement shows")
    once_folder: str | None = None
    journal: str | None = Field(default=None, description="file that gets `pid custom_id` before each item is played")


class FakeEngine:
    """Implements :class:`pipeline.ports.Engine` for any kind of item."""

    def __init__(self) -> None:
        self._script = FakeScript()
        self._kind: FakeKind = "generate"
        self._findings = Findings()

    def load(self, request: EngineRequest) -> EngineInfo:
        """Read the script; ``options["kind"]`` is the kind of job to play. Raises JobError, ModelNotFound."""
        started = time.monotonic()
        kind = request.options.get("kind", "generate")
        if kind not in ("generate", "embed", "rerank"):
            raise JobError(f"the fake engine does not play {kind!r}")
        self._kind = kind
        if request.model_path is not None:
            self._script = _read_script(Path(request.model_path) / "config.json")
        time.sleep(self._script.load_s)
        recipe = {"fake": True, "dimension": self._script.dimension, "normalize": True} if kind == "embed" else None
        return EngineInfo(
            kind="fake",
            model_digest=request.model_digest,
            numeric_platform={"device": f"fake {platform.machine()}", "dtype": "float32"},
            load_s=time.monotonic() - started,
            recipe=recipe,
            details={"warning": "a fake engine for testing the plumbing; its answers mean nothing"},
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
        """See :class:`pipeline.ports.Engine`. Items that a script does not name all succeed, if they have a body."""
        tally = Tally("decode")
        watch = self._check_contract(options)
        ordered = sorted(items, key=lambda item: item.index)
        for start in range(0, len(ordered), self._script.batch_size):
            group = [item for item in ordered[start : start + self._script.batch_size] if item.index not in done]
            if group:
                emit(Started(tuple(item.index for item in group)))
                together = self._script.crashes_together
                if together and together <= {item.custom_id for item in group}:
                    _die("abort")
            for item in group:
                if should_stop():
                    return self._stats(tally, watch, cancelled=True)
                with tally.call():
                    answer = self._play(item, str(options.get("model_name", "fake")))
                tally.add_answer(answer)
                tally.add_tokens(int(answer.usage.get("total_tokens", 0)))
                emit(answer)
                emit(tally.progress())
            if group:
                emit(Boundary())
        return self._stats(tally, watch)

    def close(self) -> None:
        """Nothing is held."""

    def _check_contract(self, options: JsonObject) -> ContractWatch | None:
        """Find what the script says; raises ContractViolated, CeilingExceeded."""
        if options.get("contract") is None:
            return None
        watch = ContractWatch(Contract(**options["contract"]), self._findings)
        for name, value in self._script.levels.items():
            watch.ceiling(name, value)
        for mechanism, code, reason in self._script.mismatches:
            if watch.allows(mechanism):
                watch.mismatch(mechanism, code, reason)
        return watch

    def _stats(self, tally: Tally, watch: ContractWatch | None, *, cancelled: bool = False) -> RunStats:
        stats = tally.stats(cancelled=cancelled)
        if watch is None:
            return stats
        levels = {f"peak_{name}": int(value) for name, value in self._script.levels.items() if name == "kv_bytes"}
        return replace(stats, verdicts=watch.verdicts(), counters={**stats.counters, **levels})

    def _play(self, item: WorkItem, model_name: str) -> Answer:
        script = self._script
        if script.journal is not None:
            with Path(script.journal).open("a", encoding="utf-8") as journal:
                journal.write(f"{os.getpid()} {item.custom_id}\n")
        time.sleep(script.delay_s)
        if item.custom_id in script.crashes and self._is_due("crash", item.custom_id):
            _die(script.crashes[item.custom_id])
        if item.custom_id in script.raises:
            raise RuntimeError("the script of this fake engine says so")
        if item.custom_id in script.stalls and self._is_due("stall", item.custom_id):
            while True:
                time.sleep(_STALL_STEP_S)
        if item.custom_id in script.errors:
            error = ItemError("the script of this fake engine says so", code=script.errors[item.custom_id])
            return error_answer(item.index, error)
        if not item.body:
            return error_answer(item.index, ItemError("the body is empty", code="missing_field"))
        match self._kind:
            case "generate":
                return _generate(item, model_name)
            case "embed":
                return _embed(item, model_name, script.dimension)
            case "rerank":
                return _rerank(item, model_name)

    def _is_due(self, what: str, custom_id: str) -> bool:
        """Whether a misdeed is to happen now; of several processes that ask at once, one is told yes."""
        if self._script.once_folder is None:
            return True
        marker = Path(self._script.once_folder) / f"{what}-{_hash(custom_id)}"
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _read_script(path: Path) -> FakeScript:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelNotFound(f"{path} does not exist") from error
    try:
        return FakeScript.model_validate({key: value for key, value in config.items() if key != "model_type"})
    except ValidationError as error:
        raise JobError(f"the fake engine does not understand its script: {error}", place=str(path)) from error


def _die(how: Misdeed) -> None:
    if how == "abort":
        os.abort()
    if how == "parent":
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(_STALL_STEP_S)  # the signal may take a moment


def _hash(*values: object) -> str:
    return blake2b(orjson.dumps(values, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def _usage(body: JsonObject, output: str = "") -> dict[str, int]:
    """Words in the place of tokens."""
    prompt = max(1, len(orjson.dumps(body).split()))
    completion = len(output.split())
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + completion}
    return usage | ({"completion_tokens": completion} if output else {})


def _generate(item: WorkItem, model_name: str) -> Answer:
    text = f"fake answer {_hash(item.body, item.seed)}"
    usage = _usage(item.body, text)
    choice: JsonObject = {"index": 0, "logprobs": None, "finish_reason": "stop"}
    if "messages" in item.body:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    kind = "chat.completion" if "messages" in item.body else "text_completion"
    body = {"object": kind, "model": model_name, "choices": [choice], "usage": usage}
    return Answer(index=item.index, body=body, usage=usage)


def _embed(item: WorkItem, model_name: str, dimension: int) -> Answer:
    import numpy as np  # a third of what this child's start would take

    given = item.body.get("input")
    texts = given if isinstance(given, list) else [given]
    rows: list[VectorRow] = []
    vectors = np.empty((len(texts), dimension), dtype="<f4")
    for ordinal, text in enumerate(texts):
        digest = blake2b(str(text).encode("utf-8", "surrogatepass"), digest_size=32)
        raw = np.random.default_rng(int.from_bytes(digest.digest()[:8], "big")).normal(size=dimension)
        norm = float(np.linalg.norm(raw))
        vectors[ordinal] = raw / norm
        tokens = len(str(text).split()) + 2
        rows.append(VectorRow(item.index, ordinal, norm, tokens, False, 0, len(str(text)), digest.hexdigest()))
    tokens = sum(row.tokens for row in rows)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    data = [{"object": "embedding", "index": row.ordinal, "tokens": row.tokens} for row in rows]
    body = {"object": "list", "model": model_name, "data": data, "usage": usage}
    return Answer(item.index, body, usage=usage, rows=tuple(rows), dimension=dimension, vectors=vectors.tobytes())


def _rerank(item: WorkItem, model_name: str) -> Answer:
    documents = item.body.get("documents") or []
    query = item.body.get("query")
    scores = [int(_hash(query, document), 16) / 2**64 for document in documents]
    results = [{"index": place, "relevance_score": scores[place]} for place in rank(scores, item.body.get("top_n"))]
    usage = _usage(item.body)
    body = {"object": "list", "model": model_name, "results": results, "usage": usage}
    return Answer(index=item.index, body=body, usage=usage)
