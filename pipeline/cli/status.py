"""``pipeline status``: all that is known of one job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.contract import contract_document, print_contract
from pipeline.cli.measures import aggregate, show_measures
from pipeline.cli.output import (
    count_of,
    json_option,
    print_json,
    print_pairs,
    show_job_status,
    show_seconds,
    show_time,
    talk,
)

if TYPE_CHECKING:
    from pipeline.db.values import HeldUp, IndexView
    from pipeline.jobs.deployment import Deployment
    from pipeline.jobs.status import JobReport

_BAR = 30


@click.command()
@click.argument("job")
@json_option
@pass_context
def status(context: Context, job: str, as_json: bool) -> None:
    """Show all that is known of a job. JOB is its id, or a beginning of it that no other id has.

    \b
    Examples:
      pipeline status job_0123456789abcdef
      pipeline status 0123 --json
    """
    from pipeline.jobs.obstacles import obstacles
    from pipeline.jobs.status import report_job

    with context.deployment(with_store=False) as deployment:
        report = report_job(deployment, job)
        if as_json:
            print_json(_as_json(deployment, report))
            return
        print_pairs(_pairs(deployment, report))
        print_contract(report)
        for obstacle in obstacles(deployment, report.job):
            talk(str(obstacle))
        for hint in _hints(report):
            talk(hint)


def _as_json(deployment: Deployment, report: JobReport) -> dict[str, Any]:
    from pipeline.jobs.status import as_document

    document = asdict(report)
    document["job"] = as_document(report.job)
    document["index"] = _index_of(deployment, report)
    document["metrics"] = aggregate(report.metrics)
    document["contract"] = contract_document(report)
    document["files"] = dict(_files(deployment, report))
    document["shard_metrics"] = [asdict(row) for row in report.metrics]
    return document


def _index_of(deployment: Deployment, report: JobReport) -> IndexView | None:
    with deployment.database.read() as uow:
        return uow.indexes.of_job(report.job.id)


def _pairs(deployment: Deployment, report: JobReport) -> Iterator[tuple[str, str]]:
    job = report.job
    index = _index_of(deployment, report)
    done = job.total - job.processing
    filled = _BAR * done // job.total if job.total else _BAR
    yield "job", f"{job.id} ({job.kind}{f', {job.endpoint}' if job.endpoint else ''})"
    yield "result", report.result if job.status.is_terminal else f"{show_job_status(job)}, not ended"
    yield "progress", f"[{'#' * filled}{'.' * (_BAR - filled)}] {done:,}/{job.total:,}"
    names = ("succeeded", "errored", "processing", "cancelled", "expired")
    yield "items", ", ".join(f"{getattr(job, name):,} {name}" for name in names if getattr(job, name)) or "none"
    yield (
        "shards",
        f"{job.shards_total - job.shards_open:,} of {job.shards_total:,} ended, {report.attempts:,} attempts",
    )
    if report.child_deaths:
        yield "crashes", f"{report.child_deaths:,} times a child died"
    if report.failed_attempts:
        yield "failed attempts", ", ".join(f"{count:,} {code}" for code, count in report.failed_attempts)
    for held_up in report.waiting:
        yield "waiting", show_held_up(held_up)
    if job.error_message and (job.outcome == "failed" or job.status.is_terminal):
        yield "error", f"{job.error_code}: {job.error_message}"
    for code, count in report.error_codes:
        yield "item errors", f"{count:,} {code}"
    for line in report.last_errors:
        yield "shard error", line
    if job.model:
        yield "model", _show_model(job.model, job.model_digest)
    if job.draft_model:
        yield "drafter", _show_model(job.draft_model, job.draft_digest)
    if report.promise:
        yield "promise", report.promise
    if job.engine:
        stated = job.engine["numeric_platform"]
        yield "engine", ", ".join(str(stated[name]) for name in ("device", "dtype", "blas") if stated.get(name))
        if job.engine.get("probe", {}).get("passed") is False:
            yield "engine declined", "batches: a row's result changed with its neighbours, so it runs alone"
    if job.parent_job_id:
        yield "retry of", job.parent_job_id
    for retry in report.retries:
        yield "retried as", f"{retry.job_id} ({retry.result}, {retry.succeeded:,} of {retry.total:,} succeeded)"
    yield "created", show_time(job.created_at)
    if job.expires_at:
        yield "deadline", show_time(job.expires_at)
    if job.ended_at:
        yield "took", show_seconds((job.ended_at - job.created_at).total_seconds())
    yield from show_measures(aggregate(report.metrics))
    if index is not None:
        yield (
            "index",
            f"{index.name} = {index.id}: {index.count:,} vectors of {index.dimension}, {index.factory} {index.metric}",
        )
        if index.recall is not None:
            yield f"recall@{index.recall_k}", f"{index.recall:.4f} against exact search, after reloading"
    if not job.status.is_terminal:
        workers = ", ".join(
            f"{worker.host} (pid {worker.pid}, {worker.device}{', paused' if worker.paused else ''})"
            for worker in report.served_by
        )
        yield "served by", workers or "nobody"
    yield from _files(deployment, report)


def _show_model(name: str, digest: str | None) -> str:
    return f"{name} (digest {digest[:12] if digest else 'not pinned'})"


def show_held_up(held_up: HeldUp) -> str:
    """``store_full: file:///... has no space left (2 shards; next try in about 4.0 s)``."""
    parts = [count_of(held_up.shards, "shard")] if held_up.shards else []
    if held_up.next_try_s is not None:
        parts.append(f"next try in about {show_seconds(held_up.next_try_s)}" if held_up.next_try_s > 0 else "now due")
    elif held_up.shards:
        parts.append("being tried again")
    else:
        parts.append("tried again by itself")
    return f"{held_up.reason} ({'; '.join(parts)})"


def _files(deployment: Deployment, report: JobReport) -> list[tuple[str, str]]:
    uris = [("output", report.job.output_uri), ("errors", report.job.errors_uri)]
    return [(name, deployment.store.locate(uri)) for name, uri in uris if uri]


def _hints(report: JobReport) -> Iterator[str]:
    """The commands that make sense next."""
    job = report.job
    if not job.status.is_terminal:
        yield f"follow it: pipeline watch {job.id}"
        return
    if job.output_uri and job.succeeded:
        yield f"answers: pipeline results {job.id}"
    if job.errors_uri:
        yield f"item errors: pipeline errors {job.id}"
        if not report.retries:
            yield f"try them again: pipeline retry {job.id}"
    if job.kind == "embed" and job.succeeded:
        yield f"index its vectors: pipeline submit index NAME --from {job.id}"
