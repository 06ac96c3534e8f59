"""The demo's steps in their order: each runs ordinary commands on the stage and shows what came of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from pipeline.cli.demo.material import QUESTIONS, read_lines, write_corpus, write_requests, write_rerank
from pipeline.cli.demo.stage import Stage
from pipeline.cli.output import print_table
from pipeline.cli.packaged import MINILM, SMOLLM2

#: Topics longer than this many characters are left out, so that the demo stays short on a slow machine.
_LONGEST_TOPIC = 8_000

#: Answers that are shown.
_SHOWN = 4

_SQL = "SELECT job_id, kind, status, outcome, succeeded, total FROM job_status ORDER BY created_at"


def prepare_model(stage: Stage, model: str | None) -> str:
    if model is None and not (stage.home / "models" / SMOLLM2.name).exists():
        stage.title("A packaged GGUF file becomes an MLX checkpoint, once")
        stage.run("models", "convert", str(SMOLLM2.find()), SMOLLM2.name)
    stage.title("The models that have a name here")
    stage.run("models", "list")
    path = Path(model).expanduser() if model else None
    return str(path.absolute()) if path is not None and path.is_dir() else model or SMOLLM2.name


def generate_and_embed(stage: Stage, chat: str) -> str:
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


def build_index(stage: Stage, embed_job: str) -> None:
    stage.title("A FAISS index of the texts, published once its recall is measured")
    index_job = stage.run("submit", "index", "topics", "--from", embed_job, "--wait")
    stage.run("status", index_job)


def search_index(stage: Stage) -> None:
    stage.title("Questions to the index")
    hits = stage.folder / "hits.jsonl"
    stage.run("search", "topics", *QUESTIONS, "-k", "5", "--json", into=hits)
    for answer in read_lines(hits):
        stage.say(f"  {answer['query']}")
        print_table(
            ("RANK", "SCORE", "TOPIC"),
            [(str(hit["rank"]), f"{hit['score']:.4f}", hit["custom_id"]) for hit in answer["hits"]],
        )


def rerank(stage: Stage, chat: str) -> None:
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


def show_state(stage: Stage) -> None:
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
