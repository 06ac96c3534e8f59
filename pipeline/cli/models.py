"""``pipeline models``: which models this host can name, what they are, and how a GGUF file becomes one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import json_option, print_json, print_pairs, print_table, show_bytes, talk
from pipeline.cli.packaged import PACKAGED
from pipeline.cli.subprocesses import run_worker
from pipeline.errors import Conflict, PipelineError

if TYPE_CHECKING:
    from pipeline.config import Settings


@click.group()
def models() -> None:
    """List, inspect and convert models."""


@models.command("list")
@json_option
@pass_context
def list_(context: Context, as_json: bool) -> None:
    """List models that have a name here: from the settings, from <home>/models, from installed packages.

    \b
    Example:
      pipeline models list
    """
    rows = [
        {"name": name, "origin": origin, "path": str(path), **_describe(path)}
        for name, origin, path in known_models(context.settings)
    ]
    if as_json:
        print_json(rows)
        return
    fields = ("name", "kind", "model_type", "dtype", "size", "origin", "path")
    print_table([field.upper() for field in fields], [[str(row.get(field, "-")) for field in fields] for row in rows])
    for row in rows:
        if "error" in row:
            talk(f"{row['name']}: {row['error']}")


@models.command()
@click.argument("model")
@click.option("--digest/--no-digest", default=True, help="Hash the files: slow once per model [default: on].")
@json_option
@pass_context
def inspect(context: Context, model: str, digest: bool, as_json: bool) -> None:
    """Show what a model's files say of it, and the digest that jobs pin. Loads nothing.

    \b
    Example:
      pipeline models inspect ./SmolLM2
    """
    from pipeline.checkpoints import describe, resolve
    from pipeline.checkpoints import digest as digest_files

    path = resolve(model, context.settings, confined=False)
    facts: dict[str, Any] = {"name": model, **asdict(describe(path))}
    if digest:
        facts["digest"] = digest_files(path, context.settings)
    if as_json:
        print_json(facts)
    else:
        facts["parameter_bytes"] = show_bytes(facts["parameter_bytes"])
        print_pairs((name, "-" if value is None else str(value)) for name, value in facts.items())


@models.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target")
@click.option("--dtype", type=click.Choice(["float16", "bfloat16", "float32"]), default="float16", show_default=True)
@pass_context
def convert(context: Context, source: Path, target: str, dtype: str) -> None:
    """Turn a llama-family GGUF file into a checkpoint folder. TARGET is a folder, or a name under <home>/models.

    \b
    Example:
      pipeline models convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    """
    folder = Path(target) if len(Path(target).parts) > 1 else context.settings.models_path / target
    if folder.exists():
        raise Conflict(f"{folder} exists already", hint=f"pipeline models inspect {target}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    run_worker(context, "convert-gguf", str(source.absolute()), str(folder.absolute()), "--dtype", dtype)
    click.echo(folder)
    talk(f"use it with --model {target}")


def known_models(settings: Settings) -> Iterator[tuple[str, str, Path]]:
    """(name, origin, path), each name once and in the order in which names are resolved."""
    named = {name: ("settings", Path(folder).expanduser()) for name, folder in settings.models.items()}
    if settings.models_path.is_dir():
        for folder in sorted(path for path in settings.models_path.iterdir() if path.is_dir()):
            named.setdefault(folder.name, ("home", folder))
    for model in PACKAGED:
        if (path := model.find()) is not None:
            named.setdefault(model.name, (f"package {model.package}, not set up", path))
    for name, (origin, path) in named.items():
        yield name, origin, path


def _describe(path: Path) -> dict[str, Any]:
    from pipeline.checkpoints import describe

    if path.is_file():
        return {"kind": "gguf file", "size": show_bytes(path.stat().st_size)}
    try:
        found = describe(path)
    except PipelineError as error:  # told of, and no harm to other rows
        return {"error": str(error)}
    return {**asdict(found), "path": str(path), "size": show_bytes(found.parameter_bytes)}
