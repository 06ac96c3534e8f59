"""``pipeline bench``: a job's ways of decoding, side by side, on its own requests. Measured in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import print_table, talk
from pipeline.cli.subprocesses import run_worker
from pipeline.errors import ArmsDiffer, SpecError, UsageError

if TYPE_CHECKING:
    from pipeline.specs.bench import BenchRequest, BenchSection


@click.command()
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path))
@click.option("--input", "source", type=click.Path(path_type=Path), help="Requests, in place of the spec's `input`.")
@click.option("--items", type=click.IntRange(min=1), help="First so many requests.  [default: 64]")
@click.option("--repeat", type=click.IntRange(1, 100), help="Measured runs of each arm.  [default: 3]")
@click.option(
    "--arms",
    help="Comma-separated: plain, default, prefix_cache, lookup, draft, auto, mlx_lm.  [default: plain,auto,mlx_lm]",
)
@click.option("--baseline", help="The arm that ratios are against.  [default: the first]")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all figures here.")
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with plots here."
)
@pass_context
def bench(
    context: Context,
    /,
    spec_file: Path,
    source: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    **given: Any,
) -> None:
    """Measure a job's accelerations against each other, and against mlx-lm's own batch call.

    SPEC is a generate job's spec as YAML or JSON; `default` is the job as it says, the other arms change how it is
    decoded and nothing else. Arms take turns over the same requests. Exits with 5 when arms do not correspond: answers
    differ, or an arm never ran what it is there for.

    \b
    Examples:
      pipeline bench job.yaml --html bench.html
      pipeline bench job.yaml --arms plain,lookup --items 16 --repeat 5
    """
    import json

    for file in (json_file, html_file):
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f"there is no folder {file.absolute().parent}", place=str(file))
    request = _request(context, spec_file, source, given)
    talk(
        f"{len(request.items)} items, arms {', '.join(arm.name for arm in request.arms)}, {request.repeat} repetitions"
    )
    written = run_worker(context, "bench", stdin=request.model_dump_json())
    document = json.loads(written)
    if json_file is not None:
        json_file.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    if html_file is not None:
        from pipeline.reports.bench_page import bench_page

        html_file.write_text(bench_page(document), encoding="utf-8")
    _show(document)
    if not document["is_comparable"]:
        names = ", ".join(arm["name"] for arm in document["arms"] if arm["refused"])
        raise ArmsDiffer(f"no ratio for {names}", hint="the findings above say why")


def _request(context: Context, spec_file: Path, source: Path | None, given: dict[str, Any]) -> BenchRequest:
    from pipeline.jobs.benchmark import bench_request, read_items
    from pipeline.specs.spec_file import load_spec_file

    loaded = load_spec_file(spec_file)
    source = source or loaded.input
    if source is None:
        raise UsageError("no requests to measure with", hint="add --input FILE, or `input:` to the spec")
    wishes = _wishes(loaded.sections.get("bench"), given, spec_file)
    items = read_items(source, loaded.spec, context.settings, first=wishes.items)
    title = f"Benchmark of {spec_file.name}"
    return bench_request(
        loaded.spec, wishes.arms, items, context.settings, title=title, baseline=wishes.baseline, repeat=wishes.repeat
    )


def _wishes(section: Any, given: dict[str, Any], spec_file: Path) -> BenchSection:
    """The spec's section ``bench``, and the options before it; raises SpecError for one that makes no sense."""
    from pydantic import ValidationError

    from pipeline.specs.bench import BenchSection

    said = {name: value for name, value in given.items() if value is not None}
    if "arms" in said:
        said["arms"] = tuple(name.strip() for name in said["arms"].split(",") if name.strip())
    try:
        return BenchSection.model_validate({**BenchSection.model_validate(section or {}).model_dump(), **said})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(["bench", *map(str, first["loc"])])
        hint = f"known there: {', '.join(BenchSection.model_fields)}"
        raise SpecError(f"{name}: {first['msg']}", place=str(spec_file), hint=hint) from None


def _show(document: dict[str, Any]) -> None:
    from pipeline.reports.bench_words import findings, tables

    for finding in findings(document):
        click.echo(finding.text)
    for table in tables(document):
        click.echo()
        print_table([heading.upper() for heading in table.headings], table.rows)
