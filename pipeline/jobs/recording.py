"""From answers to parts: file first, then the row, guarded by the token (law 4)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from pipeline.db.session import UnitOfWork
from pipeline.db.values import ItemFailure, NewPart, NewVector, NewVectors, ShardLease
from pipeline.failpoints import fail_point
from pipeline.formats.items import Item
from pipeline.formats.ranges import dump_ranges
from pipeline.jobs.deployment import Deployment
from pipeline.ports import Answer, EngineInfo, JsonObject
from pipeline.store import layout


@dataclass(frozen=True, slots=True)
class Space:
    """An embedding space as an engine's own words give it (law 8)."""

    digest: str
    recipe: JsonObject
    dimension: int
    normalized: bool


def space_of(info: EngineInfo) -> Space | None:
    """The space of an engine's vectors: its recipe with the numeric platform; None for engines without one."""
    if info.recipe is None:
        return None
    recipe = {**info.recipe, "numeric_platform": info.numeric_platform}
    digest = hashlib.sha256(orjson.dumps(recipe, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return Space(digest, recipe, int(recipe["dimension"]), bool(recipe["normalize"]))


class PartRecorder:
    """Gathers the answers of one attempt at a shard and makes them durable, part by part.

    ``items`` is the whole shard, by place, of which ``answered`` is registered already. Answers become real in
    :meth:`flush`; until then a death loses them and nothing else. ``also`` joins the transaction of each part. In a
    *rehearsal* answers are thrown away: it only shows that an item does no harm.
    """

    def __init__(
        self, deployment: Deployment, lease: ShardLease, items: Sequence[Item], answered: frozenset[int]
    ) -> None:
        self._deployment = deployment
        self._lease = lease
        self._items = items
        self._ordinal = 0
        self._pending: dict[int, Answer] = {}
        self._oldest = 0.0
        self.space: Space | None = None
        self.also: Callable[[UnitOfWork], None] | None = None
        self.is_rehearsal = False
        self.condemned_ids: frozenset[str] = frozenset()
        self._missing = set(range(len(items))) - answered

    @property
    def missing(self) -> frozenset[int]:
        """Places that have no answer yet, neither a registered one nor one that waits for its part."""
        return frozenset(self._missing)

    def add(self, answer: Answer) -> None:
        """Take an item's one answer; a second one for the same item is a fault of the engine."""
        if answer.index not in self._missing:
            raise ValueError(f"engine answered item {answer.index} twice, or there is no such item")
        if self.is_rehearsal:
            return
        self._missing.discard(answer.index)
        if not self._pending:
            self._oldest = time.monotonic()
        self._pending[answer.index] = answer

    def condemn(self, index: int, error: JsonObject) -> None:
        """End an item that no child may see again."""
        self.add(Answer(index, error=error))
        self.condemned_ids |= {self._items[index].custom_id}

    @property
    def is_due(self) -> bool:
        """Whether what is gathered is enough, or old enough, for a part."""
        settings = self._deployment.settings
        if not self._pending:
            return False
        return len(self._pending) >= settings.part_items or time.monotonic() - self._oldest >= settings.part_s

    def flush(self) -> None:
        """Write what is gathered as one part. Raises LeaseLost, StoreUnavailable, DatabaseUnavailable."""
        if not self._pending:
            return
        answers = [self._pending[index] for index in sorted(self._pending)]
        fail_point("part.before_file")
        vectors = self._write_vectors(answers)
        lines = [orjson.dumps(self._line(answer)) for answer in answers]
        artifact = self._deployment.store.put_bytes(self._name(layout.part_file), b"\n".join(lines) + b"\n")
        fail_point("part.after_file")
        part = NewPart(
            ordinal=self._ordinal,
            uri=artifact.uri,
            sha256=artifact.sha256,
            items=dump_ranges(answer.index for answer in answers),
            succeeded=sum(answer.succeeded for answer in answers),
            errored=sum(not answer.succeeded for answer in answers),
        )
        failures = [self._failure(answer) for answer in answers if not answer.succeeded]
        with self._deployment.database.write() as uow:
            uow.parts.register(self._lease, part, failures, vectors)
            if self.also is not None:
                self.also(uow)
            fail_point("part.in_commit")
        fail_point("part.after_row")
        self._ordinal += 1
        self._pending.clear()

    def _name(self, make: Callable[[str, int, int, int], str]) -> str:
        shard = self._lease.shard
        return make(shard.job_id, shard.ordinal, self._lease.token, self._ordinal)

    def _line(self, answer: Answer) -> JsonObject:
        line: dict[str, Any] = {"i": answer.index, "id": self._items[answer.index].custom_id}
        return line | ({"body": answer.body} if answer.succeeded else {"error": answer.error})

    def _failure(self, answer: Answer) -> ItemFailure:
        item, error = self._items[answer.index], answer.error or {}
        return ItemFailure(item.custom_id, item.line, str(error.get("code")), str(error.get("message")))

    def _write_vectors(self, answers: Sequence[Answer]) -> NewVectors | None:
        rows = [(answer, row) for answer in answers for row in answer.rows]
        if not rows:
            return None
        if self.space is None:
            raise ValueError("the engine gave vectors and no recipe for their space")
        from pipeline.store.vectors import write_vectors  # numpy, which a job without vectors has no use for

        space = self.space
        if {answer.dimension for answer in answers if answer.rows} != {space.dimension}:
            raise ValueError(f"the engine gave vectors of another dimension than its recipe's {space.dimension}")
        artifact = write_vectors(
            self._deployment.store,
            self._name(layout.vector_file),
            b"".join(answer.vectors for answer in answers),
            space.dimension,
            len(rows),
            {"space_digest": space.digest},
        )
        return NewVectors(
            space_digest=space.digest,
            recipe=space.recipe,
            dimension=space.dimension,
            normalized=space.normalized,
            uri=artifact.uri,
            sha256=artifact.sha256,
            rows=tuple(
                NewVector(
                    item=answer.index,
                    custom_id=self._items[answer.index].custom_id,
                    ordinal=row.ordinal,
                    text_hash=row.text_hash,
                    norm=row.norm,
                    token_count=row.tokens,
                    truncated=row.truncated,
                    start_char=row.start,
                    end_char=row.end,
                )
                for answer, row in rows
            ),
        )
