"""Parts: a row is what makes a file real (law 4)."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import insert, select

from pipeline.db.models import EmbeddingSpace, Part, Vector, VectorFile
from pipeline.db.repository.base import Repository, to_value, utc_now
from pipeline.db.repository.shards import ShardRepository
from pipeline.db.values import ItemFailure, NewPart, NewVectors, PartView, ShardLease
from pipeline.formats.ranges import parse_ranges


class PartRepository(Repository):
    """The ``parts`` table and what is registered with a part."""

    def of_shard(self, shard_id: int) -> Sequence[PartView]:
        """The parts of a shard, in the order they were written."""
        query = select(Part).where(Part.shard_id == shard_id).order_by(Part.id)
        return [to_value(row, PartView) for row in self._session.scalars(query)]

    def answered(self, shard_id: int) -> frozenset[int]:
        """Places in the shard that a registered part holds."""
        query = select(Part.items).where(Part.shard_id == shard_id)
        return frozenset().union(*(parse_ranges(text) for text in self._session.scalars(query)))

    def register(
        self,
        lease: ShardLease,
        part: NewPart,
        failures: Sequence[ItemFailure] = (),
        vectors: NewVectors | None = None,
    ) -> None:
        """Make a part real, with its counts, its errors and its vectors, in this transaction; raises LeaseLost."""
        shards = ShardRepository(self._session)
        shards.count_part(lease, succeeded=part.succeeded, errored=part.errored)  # first: it is what the lease guards
        row = Part(
            shard_id=lease.shard_id,
            token=lease.token,
            ordinal=part.ordinal,
            uri=part.uri,
            sha256=part.sha256,
            items=part.items,
            succeeded=part.succeeded,
            errored=part.errored,
            created_at=utc_now(),
        )
        self._session.add(row)
        shards.add_errors(lease, failures)
        self._session.flush()
        if vectors is not None:
            self._add_vectors(lease, row.id, vectors)
        # Last: parts of other shards of the job wait for its row no longer than they must.
        shards.count_in_job(lease, succeeded=part.succeeded, errored=part.errored)

    def _add_vectors(self, lease: ShardLease, part_id: int, vectors: NewVectors) -> None:
        space = {
            "digest": vectors.space_digest,
            "recipe": vectors.recipe,
            "dimension": vectors.dimension,
            "normalized": vectors.normalized,
            "created_at": utc_now(),
        }
        self._insert_missing(EmbeddingSpace, space)
        file = VectorFile(
            job_id=lease.shard.job_id,
            part_id=part_id,
            space_digest=vectors.space_digest,
            uri=vectors.uri,
            sha256=vectors.sha256,
            count=len(vectors.rows),
        )
        self._session.add(file)
        self._session.flush()
        self._session.execute(
            insert(Vector),
            [
                {
                    "file_id": file.id,
                    "row": number,
                    "shard_id": lease.shard_id,
                    "item": row.item,
                    "custom_id": row.custom_id,
                    "ordinal": row.ordinal,
                    "text_hash": row.text_hash,
                    "norm": row.norm,
                    "token_count": row.token_count,
                    "truncated": row.truncated,
                    "start_char": row.start_char,
                    "end_char": row.end_char,
                }
                for number, row in enumerate(vectors.rows)
            ],
        )
