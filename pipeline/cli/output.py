"""What a command prints: JSON or aligned columns on stdout, talk on stderr; words for numbers and times."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import click

from pipeline.secrecy import mask_secrets

if TYPE_CHECKING:
    from pipeline.db.values import JobView

#: The option every command has.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


def talk(text: str = "") -> None:
    """Say something to the person, passwords masked; never data."""
    click.echo(mask_secrets(text), err=True)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """One JSON document; dataclasses become objects, times ISO 8601, anything else unknown its text."""
    click.echo(json.dumps(value, default=_plain, ensure_ascii=False, indent=indent))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    return str(value)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns separated by two blanks. A column whose cells are all numbers is set to the right."""
    body = [[*row] for row in rows]
    columns = list(zip(headings, *body, strict=True)) if body else [(heading,) for heading in headings]
    widths = [max(map(len, column)) for column in columns]
    right = [all(_is_number(cell) for cell in column[1:]) and len(column) > 1 for column in columns]
    for row in ([*headings], *body):
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """``name  value`` lines, the names in one column."""
    rows = list(pairs)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {value}".rstrip())


def _is_number(cell: str) -> bool:
    return cell in ("", "-") or cell.replace(",", "").replace(".", "").isdigit()


def count_of(number: int, noun: str) -> str:
    """``1 item``, ``2,000 items``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def show_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def show_seconds(seconds: float) -> str:
    """``850 ms``, ``4.2 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def show_job_status(job: JobView) -> str:
    return f"{job.status}, paused" if job.paused else str(job.status)


def show_time(at: datetime | None) -> str:
    """Local time to the second; "-" for none."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at else "-"


def is_live_terminal() -> bool:
    """Whether a moving display makes sense: somebody looks at stderr."""
    return sys.stderr.isatty()
