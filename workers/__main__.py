"""``python -m workers``: the side of the house that may start engines. The CLI reaches it only as a process."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from pathlib import Path

import click

from pipeline import collector
from pipeline.config import Settings, load_settings
from pipeline.errors import ExitCode, PipelineError
from pipeline.failpoints import arm
from pipeline.secrecy import mask_secrets
from workers.logs import configure_logging


@click.group()
@click.option("--config", type=click.Path(path_type=Path), help="pipeline.yaml")
@click.option("--debug", is_flag=True, help="show tracebacks")
@click.pass_context
def main(context: click.Context, config: Path | None, debug: bool) -> None:
    """The worker side of the pipeline."""
    context.obj = load_settings(config).settings
    arm()
    configure_logging(context.obj.log_level, debug=debug)


@main.command()
@click.option("--queues", help="comma-separated; overrides the settings")
@click.option("--slots", type=int, help="overrides the settings")
@click.option("--until", "job_id", help="work without a broker until this job has ended")
@click.pass_obj
def serve(settings: Settings, queues: str | None, slots: int | None, job_id: str | None) -> None:
    """Run a worker."""
    from workers.bootstrap import WorkerProcess

    os.umask(0o077)  # whatever a library writes for us, others do not read
    changes = {"queues": queues, "slots": slots}
    given = {name: value for name, value in changes.items() if value is not None}
    if given:
        settings = Settings.model_validate({**settings.model_dump(), **given})
    process = WorkerProcess(settings, only_job=job_id)
    if job_id is None:
        process.serve()
    else:
        process.serve_until(job_id)


@main.command()
@click.option("--name", required=True, help="index alias")
@click.option("-k", "k", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--prompt-name", help="a name in the model's own prompts, for the queries")
@click.pass_obj
def search(settings: Settings, name: str, k: int, prompt_name: str | None) -> None:
    """Search an index: JSON lines {"query": text} on stdin, one line of hits each on stdout."""
    from pipeline.jobs.deployment import Deployment
    from pipeline.jobs.search import search as search_index
    from workers.supervisor import Supervisor

    queries = [str(json.loads(line)["query"]) for line in sys.stdin if line.strip()]
    deployment = Deployment.open(settings)
    embedder, searcher = Supervisor(settings), Supervisor(settings)
    collector.release()
    try:
        for result in search_index(deployment, embedder, searcher, name, queries, k=k, prompt_name=prompt_name):
            sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
    finally:
        embedder.close()
        searcher.close()
        deployment.close()


@main.command()
@click.pass_obj
def inspect(settings: Settings) -> None:
    """Say what an engine on this host would run on, as JSON."""
    from workers.inspection import inspect_host

    sys.stdout.write(json.dumps(inspect_host(settings)) + "\n")


@main.command()
def bench() -> None:
    """Run a benchmark: its request as JSON on stdin, its document as JSON on stdout."""
    import subprocess

    from pipeline.secrecy import without_secrets
    from workers.blas import blas_environment

    environ = without_secrets(os.environ) | blas_environment()
    command = [sys.executable, "-m", "workers.engines.benching"]
    sys.exit(subprocess.run(command, env=environ, check=False).returncode)


@main.command("convert-gguf")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--dtype", default="float16", show_default=True)
def convert_gguf_command(source: Path, target: Path, dtype: str) -> None:
    """Turn a GGUF file of the llama family into a checkpoint folder."""
    import subprocess

    command = [sys.executable, "-m", "workers.engines.gguf", str(source), str(target), "--dtype", dtype]
    sys.exit(subprocess.run(command, check=False).returncode)


def run() -> int:
    """Entry: errors of ours become a line and an exit code."""
    collector.hold()
    try:
        main(standalone_mode=False)
    except PipelineError as error:
        if "--debug" in sys.argv:
            _say(traceback.format_exc())
        _say(f"error: {error}\n")
        if error.hint:
            _say(f"hint: {error.hint}\n")
        return int(error.exit_code)
    except click.ClickException as error:
        error.show()
        return int(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:  # noqa: BLE001 - the last seam
        if "--debug" in sys.argv:
            _say(traceback.format_exc())
        _say(f"error: unexpected {type(error).__name__}: {error}; --debug shows where\n")
        return int(ExitCode.INTERNAL)
    finally:
        logging.shutdown()
    return 0


def _say(text: str) -> None:
    sys.stderr.write(mask_secrets(text))


if __name__ == "__main__":
    sys.exit(run())
