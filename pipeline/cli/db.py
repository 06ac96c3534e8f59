"""``pipeline db``: the schema of the database, which other commands never change unless it is the embedded one."""

from __future__ import annotations

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import json_option, print_json, talk


@click.group()
def db() -> None:
    """Upgrade and check the database schema."""


@db.command()
@json_option
@pass_context
def upgrade(context: Context, as_json: bool) -> None:
    """Bring the schema to this version's; safe to repeat.

    \b
    Example:
      PIPELINE_DATABASE_URL=postgresql+psycopg://user:secret@host/db pipeline db upgrade
    """
    from pipeline.db import migrate, schema
    from pipeline.private import make_private_folder

    url = context.settings.resolved_database_url
    if context.settings.is_embedded_database:
        make_private_folder(context.settings.home_path)
    before = schema.current(url)
    migrate.upgrade(url)
    after = schema.current(url)
    if before == after:
        talk("the schema was up to date")
    _print_revision(context, after, as_json)


@db.command()
@json_option
@pass_context
def current(context: Context, as_json: bool) -> None:
    """Print the revision of the database's schema; "none" for an empty database."""
    from pipeline.db import schema

    _print_revision(context, schema.current(context.settings.resolved_database_url), as_json)


@db.command()
@json_option
@pass_context
def check(context: Context, as_json: bool) -> None:
    """Exit with 4 unless the schema is the one this version needs."""
    from pipeline.db import schema

    url = context.settings.resolved_database_url
    schema.check(url)
    _print_revision(context, schema.current(url), as_json)


def _print_revision(context: Context, revision: str | None, as_json: bool) -> None:
    from pipeline.secrecy import mask_secrets

    if as_json:
        print_json({"revision": revision, "database": mask_secrets(context.settings.resolved_database_url)})
    else:
        click.echo(revision or "none")
