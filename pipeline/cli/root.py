"""The command ``pipeline`` itself: the table of its subcommands and the options that stand before them."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline import __version__
from pipeline.cli.context import Context
from pipeline.cli.exits import EPILOG
from pipeline.cli.lazy import LazyCommand, LazyGroup

_SECTIONS = {
    "Work": {
        "submit": LazyCommand("pipeline.cli.submit:submit", "Submit a job and print its id."),
        "run": LazyCommand(
            "pipeline.cli.run:run", "Submit a job, work on it here until it is done, print the results."
        ),
        "cancel": LazyCommand("pipeline.cli.cancel:cancel", "End a job early."),
        "pause": LazyCommand("pipeline.cli.pause:pause", "Hold back a job, a queue or a worker."),
        "resume": LazyCommand("pipeline.cli.pause:resume", "Let a job, a queue or a worker go on."),
        "retry": LazyCommand("pipeline.cli.retry:retry", "Try the failed items of an ended job again."),
        "requeue": LazyCommand("pipeline.cli.retry:requeue", "Revive failed shards of a job that runs."),
        "search": LazyCommand("pipeline.cli.search:search", "Search an index for texts near a query."),
    },
    "What is going on": {
        "list": LazyCommand("pipeline.cli.listing:list_", "List jobs, newest first."),
        "status": LazyCommand("pipeline.cli.status:status", "Show all that is known of a job."),
        "watch": LazyCommand("pipeline.cli.watch:watch", "Follow a job until it ends."),
        "results": LazyCommand("pipeline.cli.results:results", "Print the answers of a job that has ended."),
        "errors": LazyCommand("pipeline.cli.results:errors", "Print the item errors of a job that has ended."),
    },
    "Workers and models": {
        "up": LazyCommand("pipeline.cli.worker:up", "Start a worker for all queues."),
        "worker": LazyCommand("pipeline.cli.worker:worker", "Start a worker as the settings say."),
        "workers": LazyCommand("pipeline.cli.workers:workers", "List the workers that have not stopped."),
        "plan": LazyCommand("pipeline.cli.plan:plan", "Say what would make a generate job fast, and what it costs."),
        "bench": LazyCommand("pipeline.cli.bench:bench", "Measure a job's accelerations against each other."),
        "models": LazyCommand("pipeline.cli.models:models", "List, inspect and convert models."),
    },
    "Care": {
        "doctor": LazyCommand("pipeline.cli.doctor:doctor", "Check everything the pipeline stands on."),
        "config": LazyCommand("pipeline.cli.config:config", "Show the settings and where they come from."),
        "db": LazyCommand("pipeline.cli.db:db", "Upgrade and check the database schema."),
        "prune": LazyCommand("pipeline.cli.prune:prune", "Take away old jobs and files that nothing needs."),
        "demo": LazyCommand("pipeline.cli.demo:demo", "Run the main job on small real models."),
    },
}


@click.group(cls=LazyGroup, sections=_SECTIONS, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(path_type=Path), help="Settings file, in place of PIPELINE_CONFIG.")
@click.option("--debug", is_flag=True, help="Show tracebacks and the log.")
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_obj
def root(context: Context, config: Path | None, debug: bool) -> None:
    """A durable batch pipeline for a fleet of Macs.

    \b
    Try it:
      pipeline demo
      pipeline run generate requests.jsonl --model FOLDER
    """
    context.config = config
    context.debug = debug
