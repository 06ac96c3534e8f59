"""A fake engine, for testing the plumbing and nothing else: no model, answers that follow from the request alone.

A checkpoint folder whose ``config.json`` says ``"model_type": "pipeline_fake"`` asks for it; the other keys there are
its :class:`Misdeeds`. Micro-batches, boundaries, cancelling and resuming are those of the real engines.
"""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pipeline.ports import (
    Answer,
    Boundary,
    Emit,
    EngineInfo,
    EngineRequest,
    JsonObject,
    Progress,
    RunStats,
    ShouldStop,
    VectorRow,
    WorkItem,
)

#: Components of a fake vector.
DIMENSION = 16

#: Items of a fake micro-batch.
BATCH_ITEMS = 4


@dataclass(frozen=True, slots=True)
class Misdeeds:
    """What a fake model does beside answering.

    Attributes:
        load_s, delay_s: seconds to load, and before each answer.
        journal: a file that gets a line ``pid custom_id`` before each item is answered.
        err_on: custom_ids that end in an item error.
        crash_on: custom_ids that kill the process, with ``crash_signal``.
        stall_on: custom_ids at which it stops making progress for good.
    """

    load_s: float = 0.0
    delay_s: float = 0.0
    journal: str | None = None
    err_on: tuple[str, ...] = ()
    crash_on: tuple[str, ...] = ()
    crash_signal: int = int(signal.SIGABRT)
    stall_on: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: str | None, options: JsonObject) -> Misdeeds:
        """From the folder's config.json, then from load options."""
        stated: JsonObject = {}
        if folder is not None and (Path(folder) / "config.json").is_file():
            stated = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in {**stated, **options}.items() if name in known})


class FakeEngine:
    """Implements :class:`pipeline.ports.Engine` for the kinds generate, embed and rerank."""

    def __init__(self) -> None:
        self._misdeeds = Misdeeds()
        self._kind = "generate"

    def load(self, request: EngineRequest) -> EngineInfo:
        started = time.monotonic()
        self._misdeeds = Misdeeds.read(request.model_path, request.options)
        self._kind = str(request.options.get("kind", "generate"))
        time.sleep(self._misdeeds.load_s)
        recipe = {"weights": "fake", "dimension": DIMENSION, "normalize": True} if self._kind == "embed" else None
        return EngineInfo(
            kind="fake",
            model_digest=request.model_digest,
            numeric_platform={"device": "fake"},
            load_s=time.monotonic() - started,
            recipe=recipe,
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
        """See :class:`pipeline.ports.Engine`. Micro-batches are runs of ``BATCH_ITEMS`` of the whole shard."""
        started, answered, tokens = time.monotonic(), 0, 0
        for first in range(0, len(items), BATCH_ITEMS):
            batch = [item for item in items[first : first + BATCH_ITEMS] if item.index not in done]
            for item in batch:
                if should_stop():
                    return RunStats(output_tokens=tokens, busy=((started, time.monotonic()),), cancelled=True)
                emit(self._answer(item, options))
                answered, tokens = answered + 1, tokens + 1
                emit(Progress(tokens=tokens, items=answered))
            if batch:
                emit(Boundary())
        return RunStats(output_tokens=tokens, busy=((started, time.monotonic()),))

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, item: WorkItem, options: JsonObject) -> Answer:
        misdeeds = self._misdeeds
        if misdeeds.journal is not None:
            with Path(misdeeds.journal).open("a", encoding="utf-8") as journal:
                journal.write(f"{os.getpid()} {item.custom_id}\n")
        if item.custom_id in misdeeds.crash_on:
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            os.kill(os.getpid(), misdeeds.crash_signal)
        while item.custom_id in misdeeds.stall_on:
            time.sleep(1.0)
        time.sleep(misdeeds.delay_s)
        if item.custom_id in misdeeds.err_on:
            return Answer(item.index, error={"code": "fake_error", "message": "asked for by the test"})
        digest = blake2b(json.dumps([item.body, item.seed], sort_keys=True).encode(), digest_size=32).digest()
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if self._kind == "embed":
            return self._embed(item, digest, usage)
        return Answer(item.index, body=self._body(item, digest, str(options.get("model_name")), usage), usage=usage)

    def _body(self, item: WorkItem, digest: bytes, model: str, usage: JsonObject) -> JsonObject:
        if self._kind == "rerank":
            count = len(item.body.get("documents", ()))
            scores = [digest[number % len(digest)] / 255 for number in range(count)]
            order = sorted(range(count), key=lambda number: (-scores[number], number))
            results = [{"index": number, "relevance_score": scores[number]} for number in order]
            return {"object": "list", "model": model, "results": results, "usage": usage}
        message: dict[str, Any] = {"role": "assistant", "content": f"fake {digest.hex()[:16]}"}
        choice = {"index": 0, "logprobs": None, "finish_reason": "stop", "message": message}
        return {"object": "chat.completion", "model": model, "choices": [choice], "usage": usage}

    def _embed(self, item: WorkItem, digest: bytes, usage: JsonObject) -> Answer:
        """One vector of length 1 whatever the input's form."""
        raw = [byte - 127.5 for byte in digest[:DIMENSION]]
        norm = math.sqrt(sum(value * value for value in raw))
        text = json.dumps(item.body.get("input"))
        row = VectorRow(item.index, 0, norm, 1, False, 0, len(text), blake2b(text.encode(), digest_size=32).hexdigest())
        return Answer(
            item.index,
            body={"object": "list", "data": [{"object": "embedding", "index": 0}], "usage": usage},
            usage=usage,
            rows=(row,),
            dimension=DIMENSION,
            vectors=struct.pack(f"<{DIMENSION}f", *(value / norm for value in raw)),
        )
