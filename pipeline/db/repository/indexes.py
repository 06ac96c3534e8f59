"""Index versions and the aliases that point at them."""

from __future__ import annotations

from sqlalchemy import select

from pipeline.db.models import IndexAlias, IndexVersion
from pipeline.db.repository.base import Repository, to_value
from pipeline.db.values import IndexView


class IndexRepository(Repository):
    """The ``indexes`` and ``index_aliases`` tables."""

    def add(self, view: IndexView) -> None:
        """Register a built version; called in the transaction that registers the build's part."""
        from dataclasses import asdict

        self._session.add(IndexVersion(**asdict(view)))
        self._session.flush()

    def of_job(self, job_id: str) -> IndexView | None:
        row = self._session.scalar(select(IndexVersion).where(IndexVersion.job_id == job_id))
        return None if row is None else to_value(row, IndexView)

    def live(self, name: str) -> IndexView | None:
        """The version that an alias points at."""
        row = self._session.scalar(
            select(IndexVersion).join(IndexAlias, IndexAlias.index_id == IndexVersion.id).where(IndexAlias.name == name)
        )
        return None if row is None else to_value(row, IndexView)

    def names(self) -> list[str]:
        return list(self._session.scalars(select(IndexAlias.name).order_by(IndexAlias.name)))
