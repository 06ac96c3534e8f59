"""Vectors' metadata: files, spaces, and where a hit comes from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from sqlalchemy import func, select

from pipeline.db.models import EmbeddingSpace, Shard, Vector, VectorFile
from pipeline.db.repository.base import Repository, to_value
from pipeline.db.values import SpaceView, VectorFileView, VectorView

#: Ids of one IN list; SQLite's default limit on variables is far above.
LOOKUP_IDS = 500


class VectorRepository(Repository):
    """The ``vector_files``, ``vectors`` and ``embedding_spaces`` tables."""

    def spaces_of(self, job_ids: Collection[str]) -> Sequence[SpaceView]:
        """The spaces that the vectors of these jobs live in."""
        used = select(VectorFile.space_digest).where(VectorFile.job_id.in_(job_ids)).distinct()
        query = select(EmbeddingSpace).where(EmbeddingSpace.digest.in_(used)).order_by(EmbeddingSpace.digest)
        return [to_value(row, SpaceView) for row in self._session.scalars(query)]

    def space(self, digest: str) -> SpaceView | None:
        row = self._session.get(EmbeddingSpace, digest)
        return None if row is None else to_value(row, SpaceView)

    def count(self, job_ids: Collection[str]) -> int:
        query = select(func.coalesce(func.sum(VectorFile.count), 0)).where(VectorFile.job_id.in_(job_ids))
        return int(self._session.scalar(query) or 0)

    def files_of(self, job_ids: Collection[str]) -> Iterator[VectorFileView]:
        """The vector files of these jobs, in the order they were registered, each with its rows' ids."""
        query = select(VectorFile).where(VectorFile.job_id.in_(job_ids)).order_by(VectorFile.id)
        for row in self._session.scalars(query):
            ids = self._session.scalars(select(Vector.id).where(Vector.file_id == row.id).order_by(Vector.row))
            yield VectorFileView(row.id, row.space_digest, row.uri, row.sha256, row.count, tuple(ids))

    def locate(self, vector_ids: Sequence[int]) -> dict[int, VectorView]:
        """Where vectors come from, looked up in batches."""
        found: dict[int, VectorView] = {}
        for first in range(0, len(vector_ids), LOOKUP_IDS):
            query = (
                select(Vector, Shard.job_id)
                .join(Shard, Shard.id == Vector.shard_id)
                .where(Vector.id.in_(vector_ids[first : first + LOOKUP_IDS]))
            )
            for row, job_id in self._session.execute(query):
                found[row.id] = VectorView(
                    row.id, job_id, row.shard_id, row.item, row.custom_id, row.ordinal, row.start_char, row.end_char
                )
        return found
