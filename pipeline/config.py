"""Settings: frozen, from ``pipeline.yaml`` and ``PIPELINE_*``, each with a known origin.

Order, later wins: defaults, the file (``--config`` or ``PIPELINE_CONFIG``), the environment. Unknown keys are refused
with the nearest known name. Nothing is read at import time, and nothing here is a global.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import ConfigError
from pipeline.secrecy import mask_secrets, remember_secrets

#: Prefix of every environment variable that is a setting.
ENV_PREFIX = "PIPELINE_"

#: ``PIPELINE_CONFIG`` names the file and is no setting itself.
ENV_CONFIG = "PIPELINE_CONFIG"

#: Kills the process at a named place, for tests (:mod:`pipeline.failpoints`); no setting either.
ENV_FAIL_POINT = "PIPELINE_FAIL_POINT"

QueueName = Literal["generate", "embed", "rerank", "index", "control"]

ALL_QUEUES: tuple[QueueName, ...] = ("generate", "embed", "rerank", "index", "control")


#: Seconds after which another process takes over the reconcile lease; short, so that with a shard's own lease the time
#: to recover from a dead worker that held both stays well under a minute.
RECONCILE_LEASE_S = 10.0


def _split_words(value: object) -> object:
    return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_split_words)]


#: What engines may hold of a host's memory together, unless the settings say. A Mac's GPU is meant to use two thirds to
#: three quarters of it; below that there is room for what grows while a model works, and for the database's cache.
BUDGET_SHARE = 0.6


class Settings(BaseModel):
    """Everything that can be configured. ``*_s`` are seconds, ``*_bytes`` bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path = Field(default=Path("~/.pipeline"), description="folder of the embedded database, broker and store")
    database_url: str | None = Field(
        default=None,
        description="SQLAlchemy URL; the default is SQLite in `home` (`sqlite:///...`, `postgresql+psycopg://...`)",
    )
    broker_url: str | None = Field(
        default=None, description="`redis://`, `rediss://`, `redis+socket://`; the default is a folder in `home`"
    )
    store_url: str | None = Field(
        default=None,
        description="where files lie: `file://` or `s3://bucket/prefix`; the default is a folder in `home`",
    )
    store_timeout_s: float = Field(
        default=20.0, gt=0, description="an `s3://` store that is silent this long, three times, is out of reach"
    )

    queues: Words = Field(default=ALL_QUEUES, description="queues a worker serves")
    slots: int = Field(default=1, ge=1, le=64, description="shards a worker runs at the same time, one child each")
    memory_budget_bytes: int | None = Field(
        default=None,
        gt=0,
        description="what a worker's engines may hold together; the default is 0.6 of the host's memory",
    )
    models: dict[str, str] = Field(default_factory=dict, description="names for model folders: `name: folder`")
    model_roots: Words | None = Field(
        default=None,
        description="folders that a job may name models in by their path; see [security](security.md#models)",
    )
    trusted_models: Words = Field(default=(), description="models, by the names jobs use, whose own code may run")
    keep_awake: bool = Field(default=True, description="a Mac with a shard to work on does not go to sleep by itself")

    lease_s: float = Field(default=20.0, gt=0, description="a lease whose counter stands still this long is stale")
    renew_s: float = Field(default=5.0, gt=0, description="how often a lease is renewed; at most a third of `lease_s`")
    reconcile_s: float = Field(
        default=2.0,
        gt=0,
        description="how often a worker looks for what has to be put right; at most 2.5, and a quarter of `lease_s`",
    )
    poll_s: float = Field(default=2.0, gt=0, description="how often an idle slot looks for work by itself")
    stall_timeout_s: float = Field(default=300.0, gt=0, description="a child without progress this long is killed")
    load_timeout_s: float = Field(default=900.0, gt=0, description="the same while a model loads")
    max_attempts: int = Field(default=5, ge=1, description="attempts at a shard before it fails")
    backoff_s: float = Field(
        default=2.0, ge=0, description="wait before a second attempt; doubles with each, with jitter"
    )

    part_items: int = Field(default=256, ge=1, description="answers that become durable together, at most")
    part_s: float = Field(default=15.0, gt=0, description="oldest age of an answer that is not durable yet")
    keep_jobs_s: float = Field(
        default=30 * 24 * 3600.0, ge=0, description="`pipeline prune` takes jobs that ended longer ago than this"
    )
    prune_grace_s: float = Field(
        default=24 * 3600.0,
        ge=0,
        description="how old a file that no row names must be before `pipeline prune` takes it",
    )
    max_line_bytes: int = Field(default=8 * 1024 * 1024, ge=1024, description="longest line of an input file")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level that a worker's log shows"
    )

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        """What no single value can be wrong about."""
        if self.renew_s > self.lease_s / 3:
            raise ValueError("renew_s must be at most a third of lease_s")
        if self.reconcile_s > min(self.lease_s, RECONCILE_LEASE_S) / 4:
            raise ValueError(f"reconcile_s must be at most a quarter of lease_s and of {RECONCILE_LEASE_S:.0f}")
        try:
            if self.broker_url is not None:
                _ = urlsplit(self.broker_url).port
        except ValueError:  # its text quotes what stands in a port's place, which may be half of a password
            escapes = "in a user name or password write @ as %40, : as %3A, / as %2F"
            raise ValueError(f"broker_url has no number as its port; {escapes}") from None
        unknown = [queue for queue in self.queues if queue not in ALL_QUEUES]
        if unknown:
            raise ValueError(f"queues: no queue {unknown[0]!r}; they are {', '.join(ALL_QUEUES)}")
        return self

    def engine_budget_bytes(self, host_bytes: int) -> int:
        """What a worker's engines may hold together on a host of so much memory."""
        return self.memory_budget_bytes or int(host_bytes * BUDGET_SHARE)

    @property
    def home_path(self) -> Path:
        return self.home.expanduser().absolute()

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.home_path / 'pipeline.db'}"

    @property
    def resolved_broker_url(self) -> str:
        return self.broker_url or "filesystem://localhost/"  # kombu warns about a URL without a host

    @property
    def resolved_store_url(self) -> str:
        return self.store_url or (self.home_path / "store").as_uri()

    @property
    def models_path(self) -> Path:
        """Folder whose subfolders are models that can be named."""
        return self.home_path / "models"

    @property
    def is_embedded_database(self) -> bool:
        return self.database_url is None


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings and, for each name, where its value came from: ``default``, ``env NAME`` or the file's path."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings(config: Path | None = None, environ: Mapping[str, str] | None = None) -> LoadedSettings:
    """Read and check; raises :class:`ConfigError` with the place and the nearest known name."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.model_fields, "default")
    path = config or (Path(environ[ENV_CONFIG]) if environ.get(ENV_CONFIG) else None)
    if path is not None:
        for key, value in _read_file(path).items():
            _check_known(key, str(path))
            values[key], origins[key] = value, str(path)
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or name in (ENV_CONFIG, ENV_FAIL_POINT):
            continue
        key = name.removeprefix(ENV_PREFIX).lower()
        _check_known(key, f"environment variable {name}")
        if key == "models":
            raise ConfigError("models is a mapping and is set in the file only", place=f"environment variable {name}")
        values[key], origins[key] = text, f"env {name}"
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        text = first["msg"].removeprefix("Value error, ")
        given = [
            origin for name, origin in origins.items() if origin != "default" and name in text.replace(":", " ").split()
        ]
        place = origins.get(key) or (given[0] if given else None)
        raise ConfigError(f"{key}: {text}" if key else text, place=place, hint="see docs/configuration.md") from None
    remember_secrets((settings.database_url, settings.broker_url, settings.store_url), environ)
    return LoadedSettings(settings, origins)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("no such file", place=str(path)) from None
    except yaml.MarkedYAMLError as error:  # its text quotes the line, which may hold a password
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(
            f"cannot be read: {mask_secrets(error.problem or 'no YAML')}{line}", place=str(path)
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot be read: {mask_secrets(str(error))}", place=str(path)) from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError("must be a mapping of setting names to values", place=str(path))
    return data


def _check_known(key: str, place: str) -> None:
    if key in Settings.model_fields:
        return
    near = difflib.get_close_matches(key, Settings.model_fields, n=1)
    hint = f"did you mean {near[0]}?" if near else "see docs/configuration.md for the known names"
    raise ConfigError(f"unknown setting {key!r}", place=place, hint=hint)
