"""What a command is given: the settings, and the deployment opened when it is asked for."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline import collector
from pipeline.secrecy import mask_secrets

if TYPE_CHECKING:
    from pipeline.config import LoadedSettings, Settings
    from pipeline.jobs.deployment import Deployment


class Context:
    """One run of the command line. Nothing is read or opened before a command asks for it."""

    def __init__(self) -> None:
        self.config: Path | None = None
        self.debug = False

    @cached_property
    def loaded(self) -> LoadedSettings:
        """Settings with their origins; raises ConfigError."""
        from pipeline.config import load_settings
        from pipeline.failpoints import arm

        arm()
        return load_settings(self.config)

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @contextmanager
    def deployment(self, *, with_store: bool = True) -> Iterator[Deployment]:
        """Database, store and doorbell, open for as long as the block lasts; raises what ``Deployment.open`` raises."""
        from pipeline.jobs.deployment import Deployment

        self._start_log()
        deployment = Deployment.open(self.settings, with_store=with_store)
        collector.release()
        try:
            yield deployment
        finally:
            deployment.close()

    def _start_log(self) -> None:
        """The services' log is talk: warnings reach stderr as one line each, all of it with ``--debug``."""
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_EventFormatter())
        logging.basicConfig(level=logging.INFO if self.debug else logging.WARNING, handlers=[handler])


class _EventFormatter(logging.Formatter):
    """``warning: event key=value``: the event's data lies in the record's extra fields."""

    _OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        data = " ".join(f"{key}={value}" for key, value in vars(record).items() if key not in self._OWN)
        return mask_secrets(f"{record.levelname.lower()}: {record.getMessage()} {data}".rstrip())


pass_context = click.make_pass_decorator(Context)
