"""The reference pages say what the code says: every setting, every error code, every exit code, every command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import pipeline.errors
from pipeline.cli.exits import MEANINGS
from pipeline.cli.root import root
from pipeline.config import Settings
from pipeline.db.views import VIEWS
from pipeline.errors import PipelineError

DOCS = Path(__file__).parents[2] / "docs"


def table(page: str, first_heading: str) -> list[list[str]]:
    """Cells of the rows of the table whose first heading is ``first_heading``."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first_heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


def default_text(name: str) -> str:
    value: Any = Settings.model_fields[name].get_default(call_default_factory=True)
    if isinstance(value, tuple):
        value = ",".join(value)
    return f"`{value}`" if value not in (None, "", {}) else "none"


def test_configuration_page_has_every_setting_with_its_default_and_meaning() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table("configuration.md", "setting")}
    assert list(rows) == list(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        default, meaning = rows[name]
        assert default == default_text(name)
        assert meaning == field.description or (field.description is None and meaning)


def test_errors_page_has_every_exit_code() -> None:
    rows = [tuple(row) for row in table("errors.md", "code")]
    assert [(str(int(code)), meaning) for code, meaning in MEANINGS.items()] == rows[: len(MEANINGS)]


def error_classes() -> list[type[PipelineError]]:
    found = vars(pipeline.errors).values()
    return [one for one in found if inspect.isclass(one) and issubclass(one, PipelineError)]


def test_errors_page_has_every_code_of_the_tree() -> None:
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    for one in error_classes():
        message = inspect.cleandoc(one.__doc__ or "").splitlines()[0]
        assert re.search(
            rf"^\| `{one.code}` \| {int(one.exit_code)} \| [^|]+ \| {re.escape(message)} \|$", page, re.MULTILINE
        ), one


def test_error_codes_are_unique() -> None:
    codes = [one.code for one in error_classes()]
    assert len(codes) == len(set(codes))


def test_operations_page_names_every_view() -> None:
    assert {row[0].strip("`") for row in table("operations.md", "view")} == set(VIEWS)


def commands(command: click.Command, path: str) -> Iterator[str]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, f"{path} {name}")


@pytest.mark.parametrize("page", ["configuration.md", "errors.md", "operations.md"])
def test_commands_on_a_page_exist(page: str) -> None:
    known = {path.split()[1] for path in commands(root, "pipeline") if " " in path}
    text = (DOCS / page).read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^|\n)pipeline ([a-z]+)", text))
    assert named
    assert named <= known


@pytest.mark.parametrize("path", sorted(commands(root, "pipeline")))
def test_every_command_has_help_with_an_example(path: str) -> None:
    command: click.Command = root
    for word in path.split()[1:]:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    assert command.help
    if not isinstance(command, click.Group) and not path.startswith("pipeline db"):
        assert "Example" in command.help
