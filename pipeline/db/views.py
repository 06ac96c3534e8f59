"""The views that any SQL client may poll: documented, stable, the same text on SQLite and PostgreSQL.

They are no history but a picture of the newest schema: every upgrade drops them first and makes them anew last
(``migrations/env.py``), so a migration may change any table below them. A changed view needs a revision to be
carried out by, which may be an empty one. Columns are added, never renamed or taken away.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

#: Name to SELECT. Everything an ORM row means but does not say (outcomes, who is live under which alias) is said here.
VIEWS: dict[str, str] = {
    "job_status": """
        SELECT
            jobs.id AS job_id,
            jobs.kind,
            jobs.status,
            CASE
                WHEN jobs.status IN ('cancelled', 'expired', 'failed') THEN jobs.status
                WHEN jobs.status <> 'completed' THEN NULL
                WHEN jobs.errored > 0 AND jobs.succeeded = 0 THEN 'all_errored'
                WHEN jobs.errored > 0 THEN 'some_errored'
                ELSE 'all_succeeded'
            END AS outcome,
            jobs.outcome AS asked_outcome,
            jobs.model,
            jobs.priority,
            jobs.paused,
            CASE WHEN EXISTS (SELECT 1 FROM paused_queues WHERE paused_queues.name = jobs.kind)
                THEN 1 ELSE 0 END AS queue_paused,
            jobs.total,
            jobs.processing,
            jobs.succeeded,
            jobs.errored,
            jobs.cancelled,
            jobs.expired,
            jobs.shards_total,
            jobs.shards_open,
            (SELECT COUNT(*) FROM shards WHERE shards.job_id = jobs.id AND shards.status = 'leased') AS shards_running,
            (SELECT COUNT(*) FROM shards WHERE shards.job_id = jobs.id AND shards.status = 'failed') AS shards_failed,
            (SELECT COALESCE(SUM(shards.attempts), 0) FROM shards WHERE shards.job_id = jobs.id) AS attempts,
            (SELECT COALESCE(SUM(shards.waits), 0) FROM shards WHERE shards.job_id = jobs.id) AS waits,
            (SELECT COALESCE(SUM(shards.child_deaths), 0) FROM shards WHERE shards.job_id = jobs.id) AS child_deaths,
            jobs.parent_job_id,
            jobs.output_uri,
            jobs.errors_uri,
            jobs.error_code,
            jobs.error_message,
            jobs.created_at,
            jobs.queued_at,
            jobs.in_progress_at,
            jobs.finalizing_at,
            COALESCE(jobs.completed_at, jobs.failed_at, jobs.cancelled_at, jobs.expired_at) AS ended_at,
            jobs.expires_at
        FROM jobs
    """,
    "job_errors": """
        SELECT
            item_errors.job_id,
            item_errors.custom_id,
            item_errors.line,
            item_errors.code,
            item_errors.message,
            shards.ordinal AS shard
        FROM item_errors JOIN shards ON shards.id = item_errors.shard_id
    """,
    "job_attempts": """
        SELECT
            failed_attempts.job_id,
            shards.ordinal AS shard,
            failed_attempts.token,
            failed_attempts.worker_id,
            workers.host,
            failed_attempts.code,
            failed_attempts.reason,
            failed_attempts.at
        FROM failed_attempts
        JOIN shards ON shards.id = failed_attempts.shard_id
        LEFT JOIN workers ON workers.id = failed_attempts.worker_id
    """,
    "job_verdicts": """
        SELECT
            totals.job_id,
            totals.mechanism,
            totals.outcome,
            totals.code,
            totals.count,
            totals.shards,
            verdicts.reason,
            verdicts.worker_id AS last_worker_id,
            verdicts.at AS last_at
        FROM (
            SELECT
                job_id,
                mechanism,
                outcome,
                code,
                CAST(SUM(count) AS BIGINT) AS count,
                COUNT(DISTINCT shard_id) AS shards,
                MAX(id) AS last_id
            FROM verdicts GROUP BY job_id, mechanism, outcome, code
        ) AS totals JOIN verdicts ON verdicts.id = totals.last_id
    """,
    "worker_status": """
        SELECT
            workers.id AS worker_id,
            workers.host,
            workers.pid,
            workers.status,
            workers.paused,
            workers.queues,
            workers.slots,
            (SELECT COUNT(*) FROM shards
             WHERE shards.lease_owner = workers.id AND shards.status = 'leased') AS slots_busy,
            workers.device,
            workers.memory_bytes,
            workers.loaded_models,
            workers.heartbeats,
            workers.started_at,
            workers.seen_at
        FROM workers
    """,
    "index_status": """
        SELECT
            indexes.id AS index_id,
            indexes.name,
            live.name AS live_as,
            previous.name AS previous_of,
            indexes.job_id,
            indexes.space_digest,
            indexes.factory,
            indexes.metric,
            indexes.dimension,
            indexes.count AS vectors,
            indexes.recall,
            indexes.recall_k,
            indexes.uri,
            indexes.sha256,
            indexes.manifest_uri,
            indexes.created_at,
            live.moved_at AS live_since
        FROM indexes
        LEFT JOIN index_aliases AS live ON live.index_id = indexes.id
        LEFT JOIN index_aliases AS previous ON previous.previous_index_id = indexes.id
    """,
    "job_metrics": """
        SELECT
            metrics.job_id,
            jobs.kind,
            shards.ordinal AS shard,
            metrics.worker_id,
            workers.host,
            metrics.name,
            metrics.value,
            metrics.unit,
            metrics.at
        FROM metrics
        JOIN jobs ON jobs.id = metrics.job_id
        LEFT JOIN shards ON shards.id = metrics.shard_id
        LEFT JOIN workers ON workers.id = metrics.worker_id
    """,
}


def drop_views(connection: Connection) -> None:
    """Take away all views that are there."""
    for name in reversed(VIEWS):
        connection.execute(text(f"DROP VIEW IF EXISTS {name}"))


def create_views(connection: Connection) -> None:
    """Make all views; the tables must be at the newest schema."""
    for name, select in VIEWS.items():
        connection.execute(text(f"CREATE VIEW {name} AS {select}"))
