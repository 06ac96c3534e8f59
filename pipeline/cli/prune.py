"""``pipeline prune``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.options import duration
from pipeline.cli.output import count_of, json_option, print_json, print_pairs, show_bytes, talk

if TYPE_CHECKING:
    from pipeline.jobs.prune import PruneReport, Tally

#: Jobs that are named with what keeps them; --json has more.
_REASONS = 10


@click.command()
@click.option(
    "--older-than",
    metavar="DURATION",
    callback=duration,
    help="Jobs that ended, and workers that left, longer ago (12h, 30d) [default: keep_jobs_s].",
)
@click.option("--keep", type=click.IntRange(0), default=0, help="So many of the youngest jobs stay, however old.")
@click.option(
    "--grace",
    metavar="DURATION",
    callback=duration,
    help="Files that no row names stay until they are this old [default: prune_grace_s].",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and take nothing away.")
@json_option
@pass_context
def prune(context: Context, older_than: int | None, keep: int, grace: int | None, dry_run: bool, as_json: bool) -> None:
    """Take away old jobs and files that nothing needs. Running jobs are not touched.

    With a job goes all that is its own: rows, answers, vectors, an index that no alias leads to. Jobs that an index, a retry or a running job needs stay.

    \b
    Examples:
      pipeline prune --dry-run
      pipeline prune --older-than 7d --keep 100
    """
    from pipeline.jobs.prune import PruneOptions
    from pipeline.jobs.prune import prune as prune_all

    settings = context.settings
    options = PruneOptions(
        older_than_s=settings.keep_jobs_s if older_than is None else older_than,
        keep=keep,
        grace_s=settings.prune_grace_s if grace is None else grace,
        dry_run=dry_run,
    )
    with context.deployment() as deployment:
        report = prune_all(deployment, options)
    if as_json:
        print_json(asdict(report) | {"total": report.total})
        return
    print_pairs(_pairs(report))
    for job_id, reason in list(report.reasons.items())[:_REASONS]:
        talk(f"kept {job_id}: {reason}")
    if dry_run:
        talk("nothing was taken away")


def _pairs(report: PruneReport) -> Iterator[tuple[str, str]]:
    yield "jobs", f"{report.jobs:,}, with {count_of(sum(report.rows.values()), 'row')}"
    if report.kept:
        yield "old jobs kept", f"{report.kept:,}"
    for kind, tally in sorted(report.files.items()):
        yield f"{kind} files", _show(tally)
    yield "files in all", _show(report.total)
    for name, tally in (("too young", report.waiting), ("under a lease", report.held), ("not ours", report.strangers)):
        if tally.count:
            yield f"files kept, {name}", _show(tally)
    if report.workers:
        yield "workers", f"{report.workers:,}"


def _show(tally: Tally) -> str:
    return f"{tally.count:,}, {show_bytes(tally.size)}"
