"""``pipeline config``: the settings and where each comes from."""

from __future__ import annotations

from typing import Any

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import json_option, print_json, print_table

#: Settings without a value of their own and the property that says what holds instead.
_DERIVED = {
    "database_url": "resolved_database_url",
    "broker_url": "resolved_broker_url",
    "store_url": "resolved_store_url",
}


@click.group()
def config() -> None:
    """Show the settings and where they come from."""


@config.command()
@json_option
@pass_context
def show(context: Context, as_json: bool) -> None:
    """Show every setting, its value and its origin, secrets masked.

    \b
    Examples:
      pipeline config show
      PIPELINE_SLOTS=2 pipeline --config pipeline.yaml config show --json
    """
    from pipeline.secrecy import mask_secrets, mask_url

    values: dict[str, dict[str, Any]] = {}
    for name, value in context.settings.model_dump(mode="json").items():
        if value is None and name in _DERIVED:
            value = getattr(context.settings, _DERIVED[name])
        mask = mask_url if name in _DERIVED else mask_secrets
        masked = mask(value) if isinstance(value, str) else value
        values[name] = {"value": masked, "origin": context.loaded.origins[name]}
    if as_json:
        print_json(values)
        return
    rows = [(name, _show_value(entry["value"]), entry["origin"]) for name, entry in values.items()]
    print_table(("SETTING", "VALUE", "ORIGIN"), rows)


def _show_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={folder}" for name, folder in value.items()) or "-"
    if isinstance(value, list):
        return ",".join(value) or "-"
    return str(value)
