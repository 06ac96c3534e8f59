"""``pipeline plan``: what would make a job fast, what it costs, and why the rest is out. Runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import json_option, print_json
from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.advice.facts import HostFacts, ModelFacts, WorkloadFacts
    from pipeline.advice.report import Report
    from pipeline.specs import GenerateSpec

#: Answers of an earlier job that are looked at.
_ANSWERS = 200


def _size(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    from pipeline.specs.sizes import parse_size

    try:
        return None if text is None else parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("spec_file", metavar="[SPEC]", required=False, type=click.Path(path_type=Path))
@click.option("--model", help="In place of the spec's `model`; with it no SPEC is needed.")
@click.option("--input", "source", type=click.Path(path_type=Path), help="Requests, in place of the spec's `input`.")
@click.option("--draft", help="A smaller model that guesses, in place of the spec's `draft`.")
@click.option("--job", help="A finished generate job: its answers show how far answers copy their prompts.")
@click.option("--memory", metavar="SIZE", callback=_size, help="Plan for a host of this memory, such as 64GiB.")
@click.option("--device", type=click.Choice(["metal", "cpu"]), help="Plan for this device.  [default: this host's]")
@json_option
@pass_context
def plan(
    context: Context,
    /,
    spec_file: Path | None,
    model: str | None,
    source: Path | None,
    draft: str | None,
    job: str | None,
    memory: int | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Say what would make a generate job fast, and what it costs. Says why the rest is out, too.

    SPEC is the job as YAML or JSON (docs/planning.md). Reads the model's small files and a sample of the requests; runs
    nothing and submits nothing.

    \b
    Examples:
      pipeline plan job.yaml
      pipeline plan --model ./SmolLM2 --input requests.jsonl --memory 64GiB --device metal
    """
    spec, source = _spec(spec_file, model, source, draft)
    report = _report(context, spec, source, job, memory, device)
    if as_json:
        print_json(report.as_document())
        return
    from pipeline.cli.plan_view import show_report

    show_report(report)


def _spec(
    spec_file: Path | None, model: str | None, source: Path | None, draft: str | None
) -> tuple[GenerateSpec, Path | None]:
    from pipeline.specs import GenerateSpec, ModelRef
    from pipeline.specs.generate import DraftOptions
    from pipeline.specs.spec_file import load_spec_file

    if spec_file is not None:
        loaded = load_spec_file(spec_file)
        spec, source = loaded.spec, source or loaded.input
    elif model is not None:
        spec = GenerateSpec(model=ModelRef(name=model))
    else:
        raise UsageError("nothing to plan for", hint="pipeline plan job.yaml, or pipeline plan --model NAME")
    changes: dict[str, object] = {}
    if model is not None:
        changes["model"] = ModelRef(name=model, dtype=spec.model.dtype)
    if draft is not None:
        given = spec.draft.model_dump() if spec.draft else {}
        changes["draft"] = DraftOptions.model_validate({**given, "model": {"name": draft}})
    return spec.model_copy(update=changes), source


def _report(
    context: Context, spec: GenerateSpec, source: Path | None, job: str | None, memory: int | None, device: str | None
) -> Report:
    from pipeline.advice.checkpoint import read_draft, read_model
    from pipeline.advice.report import make_report
    from pipeline.checkpoints import resolve

    path = resolve(spec.model.name, context.settings, download=False)
    model = read_model(path, spec.model.name)
    draft = None
    if spec.draft is not None:
        name = spec.draft.model.name
        draft = read_draft(resolve(name, context.settings, download=False), name, path)
    if source is None and job is not None:
        raise UsageError("--job needs requests to compare with", hint="add --input FILE, or `input:` to the spec")
    work = None if source is None else _work(context, spec, source, job, model, path)
    return make_report(spec, model, work, _host(context, memory, device), draft)


def _work(
    context: Context, spec: GenerateSpec, source: Path, job: str | None, model: ModelFacts, path: Path
) -> WorkloadFacts:
    from dataclasses import replace

    from pipeline.advice.sample import read_sample
    from pipeline.advice.workload import replay_answers, workload_facts
    from pipeline.checkpoints import TokenCounter

    sample = read_sample(source, spec, max_line_bytes=context.settings.max_line_bytes)
    counter = TokenCounter(path) if model.has_tokenizer else None
    work = workload_facts(sample, spec, counter, context_length=model.context_length)
    if job is None or counter is None:
        return work
    from pipeline.jobs.answered import answered_pairs

    with context.deployment() as deployment:
        return replace(work, replay=replay_answers(job, answered_pairs(deployment, job, most=_ANSWERS), spec, counter))


def _host(context: Context, memory: int | None, device: str | None) -> HostFacts:
    """A CPU that is this host's is asked which library multiplies for it."""
    from typing import cast

    from pipeline.advice.host import host_facts, this_device
    from pipeline.checkpoints.weights import Device

    asked = cast(Device | None, device)
    blas = None
    if this_device() == "cpu" and asked != "metal" and memory is None:
        from pipeline.cli.host_checks import describe_engine

        described, _ = describe_engine(context)
        blas = None if described is None else str(described["platform"].get("blas", "unknown"))
    return host_facts(context.settings, device=asked, memory_bytes=memory, blas=blas)
