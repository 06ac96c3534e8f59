"""``pipeline search``: ask an index. The query is embedded with the recipe of the index's space, in a worker's child."""

from __future__ import annotations

import json
import sys

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import json_option, print_table, talk
from pipeline.cli.subprocesses import run_worker

#: Characters of a hit's text in the table.
_SNIPPET = 70


@click.command()
@click.argument("name")
@click.argument("queries", nargs=-1, required=True, metavar="QUERY...")
@click.option("-k", "count", type=click.IntRange(1, 1000), default=10, show_default=True, help="Hits per query.")
@click.option("--prompt-name", help="A name in the model's own prompts, for the queries.")
@json_option
@pass_context
def search(
    context: Context, /, name: str, queries: tuple[str, ...], count: int, prompt_name: str | None, as_json: bool
) -> None:
    """Search an index for texts near a query, or several. `-` in place of the queries reads them from standard input, one a line.

    \b
    Examples:
      pipeline search docs "how do I raise an exception?" -k 5
      pipeline search docs - --json < questions.txt
    """
    asked = list(queries)
    if asked == ["-"]:
        asked = [line for line in sys.stdin.read().splitlines() if line.strip()]
    arguments = ["--name", name, "-k", str(count), *(["--prompt-name", prompt_name] if prompt_name else [])]
    lines = "".join(json.dumps({"query": query}) + "\n" for query in asked)
    answered = run_worker(context, "search", *arguments, stdin=lines)
    if as_json:
        click.echo(answered, nl=False)
        return
    for line in filter(None, answered.split("\n")):
        answer = json.loads(line)
        talk(answer["query"])
        print_table(("RANK", "SCORE", "ID", "TEXT"), [_row(hit) for hit in answer["hits"]])


def _row(hit: dict[str, object]) -> tuple[str, str, str, str]:
    words = " ".join(str(hit["text"] or "").split())
    snippet = words if len(words) <= _SNIPPET else f"{words[: _SNIPPET - 1]}…"
    return str(hit["rank"]), f"{hit['score']:.4f}", str(hit["custom_id"]), snippet
