"""Passwords leave no text that leaves the process, and no child gets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pipeline.secrecy
from pipeline.config import load_settings
from pipeline.errors import ConfigError, DatabaseUnavailable
from pipeline.secrecy import mask_secrets, remember_secrets, without_secrets

SECRET = "Zq7-unique-w0rd"


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    before = set(pipeline.secrecy._remembered)
    pipeline.secrecy._remembered.clear()
    yield
    pipeline.secrecy._remembered.clear()
    pipeline.secrecy._remembered.update(before)


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql+psycopg://me:{SECRET}@db.example:5432/jobs",
        f"redis://:{SECRET}@cache.example/0",
        f"rediss://default:{SECRET}@cache.example/0?ssl_cert_reqs=required",
        f"cannot reach redis://:{SECRET}@h/0 nor redis://:{SECRET}@h/1",
        f"postgresql://me:pa/ss:{SECRET}@db.example/jobs",
        f"postgresql://me:a@{SECRET}@db.example/jobs",
        f"postgresql://db.example/jobs?user=me&password={SECRET}&sslmode=require",
        f"redis://cache.example/0?password={SECRET}",
        f"s3://AKIAEXAMPLE:{SECRET}@bucket/prefix",
        f"s3://bucket/prefix?secret={SECRET}&key=AKIAEXAMPLE",
        f"connection failed: host=db.example user=me password={SECRET} dbname=jobs",
        f"connection failed: host=db.example password='two {SECRET} words' dbname=jobs",
        f"aws_session_token={SECRET}",
        f"PGPASSWORD={SECRET}",
        f"{{'url': 'redis://:{SECRET}@h/0'}}",
    ],
)
def test_whatever_stands_in_the_place_of_a_password_is_hidden(text: str) -> None:
    assert SECRET not in mask_secrets(text)
    assert "***" in mask_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql+psycopg://db.example:5432/jobs",
        "sqlite:////home/me/.pipeline/pipeline.db",
        "file:///Volumes/pipeline/store",
        "at 12:30 me@example.com wrote: tokens=12, output_tokens = 40, max_tokens=5",
        "see https://example.com/a:b/c",
        "the password is wrong",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert mask_secrets(text) == text


def test_the_host_and_the_user_can_still_be_read() -> None:
    assert mask_secrets(f"redis://me:{SECRET}@h:6379/0 says no") == "redis://me:***@h:6379/0 says no"
    assert mask_secrets(f"h/0?password={SECRET}&a=b") == "h/0?password=***&a=b"


def test_a_remembered_password_is_hidden_wherever_it_is_quoted_in_any_spelling() -> None:
    plain, encoded = "Zq7/un@que w0rd", "Zq7%2Fun%40que%20w0rd"
    assert mask_secrets(f"bad port {plain!r}") == f"bad port {plain!r}"
    remember_secrets([f"postgresql://me:{encoded}@h/jobs", None])
    for spelling in (plain, encoded, "Zq7%2Fun%40que+w0rd"):
        assert mask_secrets(f"bad port {spelling!r}") == "bad port '***'"


def test_what_is_a_name_too_or_a_plain_word_is_not_searched_for() -> None:
    """``postgres:pipeline1@host/pipeline1`` must not make every sentence with that word unreadable."""
    remember_secrets(["postgresql://me:Pipeline1@h/Pipeline1", "redis://:password@h/0", "redis://:short1@h/0"])
    assert mask_secrets("Pipeline1: the password is short1") == "Pipeline1: the password is short1"


def test_credentials_of_the_environment_are_hidden() -> None:
    remember_secrets([], {"AWS_SECRET_ACCESS_KEY": SECRET, "HF_TOKEN": SECRET[::-1], "EDITOR": "ordinary-Word1"})
    assert mask_secrets(f"{SECRET} {SECRET[::-1]} ordinary-Word1") == "*** *** ordinary-Word1"


def test_loading_settings_remembers_their_passwords(tmp_path: Path) -> None:
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"database_url: postgresql+psycopg://me:{SECRET}@h/jobs\n")
    load_settings(config, {})
    assert mask_secrets(f"x {SECRET} y") == "x *** y"


@pytest.mark.parametrize(
    "line",
    [
        f"database_url: 'postgresql://me:{SECRET}@h/jobs",
        f"database_url: postgresql://me:{SECRET}@h/jobs: x",
        f"password: [{SECRET}",
        f"{SECRET}: 1",
    ],
)
def test_a_settings_file_that_cannot_be_read_is_not_quoted(tmp_path: Path, line: str) -> None:
    config = tmp_path / "pipeline.yaml"
    config.write_text(f"slots: 1\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(config, {})
    if not line.startswith(SECRET):  # an unknown name is named
        assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


def test_a_wrong_value_is_not_quoted() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {"PIPELINE_SLOTS": f"redis://:{SECRET}@h"})
    assert SECRET not in str(caught.value)


def test_an_engine_gets_neither_settings_nor_keys() -> None:
    kept = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "HF_HOME": "/cache",
        "TOKENIZERS_PARALLELISM": "false",
        "OPENBLAS_CORETYPE": "Haswell",
        "PIPELINE_FAIL_POINT": "part",
        "MLX_DISABLE_COMPILE": "1",
    }
    secret = dict.fromkeys(
        [
            "PIPELINE_DATABASE_URL",
            "PIPELINE_BROKER_URL",
            "PIPELINE_STORE_URL",
            "PIPELINE_CONFIG",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_PROFILE",
            "PGPASSWORD",
            "PGPASSFILE",
            "REDISCLI_AUTH",
            "HF_TOKEN",
            "OPENAI_API_KEY",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "POSTGRES_PASSWORD",
        ],
        SECRET,
    )
    assert without_secrets(kept | secret) == kept


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://me:{SECRET}@h:port/jobs",
        f"postgresql+psycopg://me:a@{SECRET}:x@h/jobs",
        f"postgresql+psycopg://me:{SECRET}/x:y@h/jobs",
        f"nothing://me:{SECRET}@h/jobs",
        f"//me:{SECRET}@h",
        f"me:{SECRET}@h/jobs",
        SECRET,
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    from pipeline.db import schema
    from pipeline.db.session import Database

    for use in (Database, schema.current):
        try:
            use(url)
        except (ConfigError, DatabaseUnavailable) as error:
            chain = [error, error.__cause__, error.__cause__ and error.__cause__.__cause__]
            text = " ".join(f"{one} {getattr(one, 'hint', '')}" for one in chain if one)
            remember_secrets([url])  # as load_settings does
            assert SECRET not in mask_secrets(text), text
        else:
            assert use is Database, "only connecting may fail"


def test_a_lease_token_is_no_secret() -> None:
    assert mask_secrets("shard_claimed job=job_1 shard=0 token=7 lease_token=8") == (
        "shard_claimed job=job_1 shard=0 token=7 lease_token=8"
    )


def test_a_workers_log_hides_it_in_every_way_out(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging
    import threading

    from workers.logs import configure_logging

    root = logging.getLogger()
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    handlers, level = root.handlers[:], root.level
    remember_secrets([f"redis://:{SECRET}@h/0"])

    def die() -> None:
        raise RuntimeError(f"thread {SECRET}")

    try:
        configure_logging("info")
        log = logging.getLogger("x")
        log.warning("event", extra={"reason": f"field {SECRET}"})
        try:
            raise ValueError(f"trace {SECRET}")
        except ValueError:
            log.exception("event")
        thread = threading.Thread(target=die)
        thread.start()
        thread.join()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    said = capfd.readouterr().err
    assert [word in said for word in ("field ***", "trace ***", "thread ***", "thread_died")] == [True] * 4
    assert SECRET not in said
