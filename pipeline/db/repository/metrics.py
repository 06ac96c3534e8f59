"""Measurements as rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import insert, select

from pipeline.db.models import Metric
from pipeline.db.repository.base import Repository, utc_now
from pipeline.db.values import Measurement


class MetricRepository(Repository):
    """The ``metrics`` table."""

    def add(self, job_id: str, measurements: Iterable[Measurement]) -> None:
        now = utc_now()
        rows = [
            {
                "job_id": job_id,
                "shard_id": one.shard_id,
                "worker_id": one.worker_id,
                "name": one.name,
                "value": one.value,
                "unit": one.unit,
                "at": now,
            }
            for one in measurements
        ]
        if rows:
            self._session.execute(insert(Metric), rows)

    def of_job(self, job_id: str) -> Sequence[Measurement]:
        query = select(Metric).where(Metric.job_id == job_id).order_by(Metric.id)
        return [
            Measurement(row.name, row.value, row.unit, row.shard_id, row.worker_id)
            for row in self._session.scalars(query)
        ]
