"""The schema's history on both databases: it makes what the models say, goes down again, and bears a crowd."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from pipeline.db import migrate, schema
from pipeline.db.models import Job
from pipeline.db.views import VIEWS
from pipeline.errors import ConfigError, DatabaseUnavailable, SchemaOutdated

OURS = set(Job.metadata.tables)


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def describe_schema(url: str) -> dict[str, object]:
    """Everything a migration makes, in a form that can be compared."""
    with connected(url) as connection:
        inspector = inspect(connection)
        tables = {
            name: {
                "columns": {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)},
                "indexes": sorted(str(i["name"]) for i in inspector.get_indexes(name)),
                "unique": sorted(str(u["name"]) for u in inspector.get_unique_constraints(name)),
                "checks": sorted(str(c["name"]) for c in inspector.get_check_constraints(name)),
                "foreign": sorted(str(f["name"]) for f in inspector.get_foreign_keys(name)),
            }
            for name in sorted(inspector.get_table_names())
        }
        return {"tables": tables, "views": sorted(inspector.get_view_names())}


def test_upgrade_makes_the_tables_that_the_models_describe(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)

    assert migrate.find_differences(empty_database_url) == []
    schema = describe_schema(empty_database_url)
    assert set(schema["tables"]) == OURS | {"alembic_version"}
    assert schema["views"] == sorted(VIEWS)


def test_find_differences_sees_a_missing_column_and_a_table_too_many(database_url: str) -> None:
    with connected(database_url) as connection:
        connection.execute(text("DROP VIEW job_errors"))
        connection.execute(text("ALTER TABLE item_errors DROP COLUMN message"))
        connection.execute(text("CREATE TABLE strangers (id INTEGER PRIMARY KEY)"))

    differences = " ".join(migrate.find_differences(database_url))

    assert "message" in differences
    assert "strangers" in differences


def test_upgrade_names_every_constraint(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    tables = describe_schema(empty_database_url)["tables"]
    assert "ck_jobs_counts_sum" in tables["jobs"]["checks"]
    assert "uq_shards_job_id_ordinal" in tables["shards"]["unique"]
    assert "fk_parts_shard_id_shards" in tables["parts"]["foreign"]


def test_downgrade_leaves_nothing_and_a_second_upgrade_makes_the_same(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    first = describe_schema(empty_database_url)

    migrate.downgrade(empty_database_url)
    between = describe_schema(empty_database_url)
    assert set(between["tables"]) <= {"alembic_version"}
    assert between["views"] == []
    assert schema.current(empty_database_url) is None

    migrate.upgrade(empty_database_url)
    assert describe_schema(empty_database_url) == first


def test_upgrade_keeps_what_a_database_holds(database_url: str) -> None:
    with connected(database_url) as connection:
        connection.execute(text("INSERT INTO leases (name, token, renewals) VALUES ('reconcile', 7, 1)"))

    assert migrate.upgrade(database_url) == migrate.head()

    with connected(database_url) as connection:
        assert connection.execute(text("SELECT token FROM leases")).scalar_one() == 7


def test_a_failed_upgrade_changes_nothing(empty_database_url: str) -> None:
    # Given a table of somebody else's that stands in the way of one of the last that the migration makes
    if empty_database_url.startswith("sqlite"):
        Path(empty_database_url.removeprefix("sqlite:///")).parent.mkdir()
    with connected(empty_database_url) as connection:
        connection.execute(text("CREATE TABLE vectors (id INTEGER PRIMARY KEY)"))

    # When
    with pytest.raises(Exception, match="vectors"):
        migrate.upgrade(empty_database_url)

    # Then neither tables nor a version are left half made
    assert set(describe_schema(empty_database_url)["tables"]) <= {"vectors"}
    assert schema.current(empty_database_url) is None


def test_head_is_the_newest_of_the_scripts() -> None:
    assert migrate.head() == schema.HEAD


def test_check_passes_at_head(database_url: str) -> None:
    migrate.check(database_url)
    schema.check(database_url)
    assert schema.current(database_url) == migrate.head()


def test_check_says_what_to_run_on_an_empty_database(empty_database_url: str) -> None:
    for check in (migrate.check, schema.check):
        with pytest.raises(SchemaOutdated) as caught:
            check(empty_database_url)
        assert "pipeline db upgrade" in (caught.value.hint or "")


def test_a_database_of_a_newer_program_is_refused_and_not_touched(database_url: str) -> None:
    with connected(database_url) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '29991231_future'"))

    for refused in (migrate.check, migrate.upgrade, schema.check, schema.ensure):
        with pytest.raises(SchemaOutdated, match="newer than this program") as caught:
            refused(database_url)
        assert "install" in (caught.value.hint or "")
    assert schema.current(database_url) == "29991231_future"


def _upgrade(url: str) -> str:
    return migrate.upgrade(url)


def test_many_processes_upgrade_one_empty_database_at_the_same_time(empty_database_url: str) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        revisions = pool.map(_upgrade, [empty_database_url] * 4, chunksize=1)

    assert revisions == [migrate.head()] * 4
    assert migrate.find_differences(empty_database_url) == []


def test_an_embedded_database_is_private_and_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "home" / "pipeline.db"

    migrate.upgrade(f"sqlite:///{path}")

    assert path.parent.stat().st_mode & 0o077 == 0
    with connected(f"sqlite:///{path}") as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"


def test_an_unreachable_database_is_unavailable_and_its_password_is_not_shown(
    postgres_server: object, empty_postgres_url: str
) -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        schema.current(empty_postgres_url + "_missing")
    assert "_missing" in str(caught.value)
    assert str(postgres_server.password) not in str(caught.value)  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", ["nonsense", "sqlite://", "sqlite:///:memory:", "oracle+nothing://x/y"])
def test_a_url_that_cannot_be_used_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError):
        schema.current(url)
