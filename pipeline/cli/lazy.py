"""A click group whose commands are imported when they are named, so that ``--help`` costs nothing."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command is (``module:attribute``), and its line in the group's help."""

    target: str
    summary: str

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


class LazyGroup(click.Group):
    """``sections`` maps a heading of the help to its commands, both in the order to be shown."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, LazyCommand]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self.lazy = {name: command for part in sections.values() for name, command in part.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = self.lazy.get(cmd_name)
        return command.load() if command else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.lazy and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.lazy, n=1)
            raise click.UsageError(f"no command {args[0]!r}" + (f"; did you mean {near[0]}?" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, command.summary) for name, command in commands.items()])
