"""What ``pipeline doctor`` looks at: the installation here, the host in its neighbour. A check tells what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pipeline.cli.context import Context
from pipeline.cli.finding import Finding, Level
from pipeline.cli.host_checks import check_engine, check_openmp, check_python, check_space, check_versions
from pipeline.cli.output import count_of
from pipeline.cli.power_checks import check_power
from pipeline.errors import PipelineError
from pipeline.private import find_exposed
from pipeline.secrecy import mask_secrets


def run_checks(context: Context) -> Iterator[Finding]:
    """All findings, each as soon as it is known."""
    for check in (
        check_python,
        check_settings,
        check_database,
        check_store,
        check_broker,
        check_workers,
        check_engine,
        check_models,
        check_power,
        check_privacy,
        check_versions,
        check_openmp,
        check_space,
    ):
        yield from _guarded(check, context)


def _guarded(check: Callable[[Context], Iterator[Finding]], context: Context) -> Iterator[Finding]:
    try:
        for finding in check(context):
            yield _masked(finding)
    except PipelineError as error:
        yield _masked(Finding(check.__name__.removeprefix("check_"), Level.FAIL, str(error), error.hint))


def _masked(finding: Finding) -> Finding:
    """What a library says may quote what it was given."""
    hint = None if finding.hint is None else mask_secrets(finding.hint)
    return replace(finding, text=mask_secrets(finding.text), hint=hint)


def check_settings(context: Context) -> Iterator[Finding]:
    changed = [name for name, origin in context.loaded.origins.items() if origin != "default"]
    yield Finding("settings", Level.OK, f"home {context.settings.home_path}; set: {', '.join(changed) or 'nothing'}")


def check_database(context: Context) -> Iterator[Finding]:
    from pipeline.db import schema

    url = context.settings.resolved_database_url
    with context.deployment(with_store=False):
        revision = schema.current(url)
    yield Finding("database", Level.OK, f"{url}, schema {revision}")


def check_store(context: Context) -> Iterator[Finding]:
    from pipeline.store import layout

    with context.deployment() as deployment:  # refuses a store of another database
        probe = deployment.store.put_bytes(f"{layout.store_marker()}.doctor", b"doctor")
        deployment.store.delete(probe.uri)
        yield Finding("store", Level.OK, f"{deployment.store.url}, writable, belongs to the database")


def check_broker(context: Context) -> Iterator[Finding]:
    from pipeline.jobs.broker_tls import is_verified

    url = context.settings.resolved_broker_url
    with context.deployment(with_store=False) as deployment:
        deployment.doorbell.check()
    yield Finding("broker", Level.OK, f"{url} answers")
    if not is_verified(url):
        yield Finding("broker", Level.WARN, "its certificate is not verified", "ssl_ca_certs=FILE in broker_url")


def check_workers(context: Context) -> Iterator[Finding]:
    from pipeline.jobs.status import live_workers

    with context.deployment(with_store=False) as deployment:
        workers = live_workers(deployment)
        with deployment.database.read() as uow:
            paused = sorted(uow.pauses.queues())
    if not workers:
        yield Finding("workers", Level.WARN, "none is live", "pipeline up")
    for worker in workers:
        text = f"{worker.host} pid {worker.pid}: {','.join(worker.queues)}; {worker.device}"
        if worker.paused:
            yield Finding("worker", Level.WARN, f"{text}; paused", f"pipeline resume {worker.id[:12]}")
        else:
            yield Finding("worker", Level.OK, text)
    for queue in paused:
        yield Finding("queue", Level.WARN, f"{queue} is paused", f"pipeline resume {queue}")


def check_privacy(context: Context) -> Iterator[Finding]:
    """Folders that were there before us keep their mode; inputs and answers lie in them."""
    settings = context.settings
    paths = [settings.home_path, settings.home_path / "pipeline.db", settings.home_path / "logs"]
    if settings.resolved_store_url.startswith("file:"):
        paths.append(Path(unquote(urlsplit(settings.resolved_store_url).path)))
    exposed = list(find_exposed(paths))
    for path, mode in exposed:
        yield Finding("privacy", Level.WARN, f"others may look into {path} (mode {mode:o})", f"chmod go-rwx {path}")
    if not exposed:
        yield Finding("privacy", Level.OK, "home and store are this user's alone")


def check_models(context: Context) -> Iterator[Finding]:
    from pipeline.cli.models import known_models

    names = [name for name, origin, _ in known_models(context.settings) if "not set up" not in origin]
    if names:
        yield Finding("models", Level.OK, f"{count_of(len(names), 'name')}: {', '.join(names)}")
    else:
        yield Finding("models", Level.WARN, "no names; folders can be used as they are", "see `pipeline models --help`")
