"""The options of `submit` and `run`, each said once. What a job kind takes comes from its spec, with text and default."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

import click
from pydantic import BaseModel

from pipeline.specs import EmbedSpec, GenerateSpec, JobKind, RerankSpec
from pipeline.specs.base import Dtype
from pipeline.specs.generate import DraftOptions, SamplingDefaults

if TYPE_CHECKING:
    from pipeline.jobs.submit import SubmitOptions

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]

#: Fields of each kind's spec that are options.
SPEC_FIELDS: dict[JobKind, tuple[type[BaseModel], tuple[str, ...]]] = {
    JobKind.GENERATE: (
        GenerateSpec,
        ("width", "seed", "shard_tokens", "accelerate", "overflow", "prefix_cache", "report_cache"),
    ),
    JobKind.EMBED: (
        EmbedSpec,
        ("overflow", "chunk_overlap", "prompt_name", "dimensions", "vectors", "batch_size", "shard_tokens"),
    ),
    JobKind.RERANK: (RerankSpec, ("instruction", "overflow", "batch_size", "shard_tokens")),
}

#: Fields of a generate job's drafter that are options, each behind ``--draft-``.
DRAFT_FIELDS = ("tokens", "acceptance")

#: Names of fields in simple lines that each kind reads: option role -> what it names.
FIELD_ROLES: dict[JobKind, tuple[str, ...]] = {
    JobKind.GENERATE: ("id", "prompt", "messages"),
    JobKind.EMBED: ("id", "text", "title"),
    JobKind.RERANK: ("id", "query", "documents"),
}


def request_options(kind: JobKind) -> Callable[[F], F]:
    """FILE and all options of a job of this kind that reads a file of requests."""
    return _all(
        (click.argument("file", type=click.File("rb")), *_model(), *_of_spec(kind), *_intake(kind), *job_options())
    )


def job_options() -> Sequence[Decorator]:
    """Options of the job itself, for every kind."""
    return (
        click.option("--priority", type=int, default=0, show_default=True, help="Higher is served first."),
        click.option("--idempotency-key", help="Submit once: the same key again gives the job that is there."),
        click.option(
            "--dedupe",
            is_flag=True,
            help="Give the newest job over the same file and options, unless it failed, expired or was cancelled.",
        ),
        click.option(
            "--expires-in",
            metavar="DURATION",
            callback=duration,
            help="Deadline (90s, 30m, 24h, 7d): items without an answer by then expire.",
        ),
    )


def duration(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """Callback of an option that is a duration: seconds."""
    from pipeline.formats.durations import parse_duration

    return None if text is None else parse_duration(text)


def submit_options(given: Mapping[str, Any]) -> SubmitOptions:
    """What the options of :func:`job_options` say, and whether to look at the model."""
    from pipeline.jobs.submit import SubmitOptions

    return SubmitOptions(
        priority=given["priority"],
        idempotency_key=given["idempotency_key"],
        check_model=given.get("check_model", True),
        dedupe=given["dedupe"],
        expires_in_s=given["expires_in"],
    )


def _model() -> Sequence[Decorator]:
    return (
        click.option("--model", help="Name in the settings, folder, or hub name; default: the one the file names."),
        click.option(
            "--dtype", type=click.Choice(get_args(Dtype)), default="auto", show_default=True, help="Compute in."
        ),
        click.option(
            "--check-model/--no-check-model", default=True, help="Find the model here and pin its digest [default: on]."
        ),
    )


def _of_spec(kind: JobKind) -> Sequence[Decorator]:
    spec, names = SPEC_FIELDS[kind]
    own = [_spec_option(spec, name) for name in names]
    if kind is not JobKind.GENERATE:
        return own
    return [*(_spec_option(SamplingDefaults, name) for name in SamplingDefaults.model_fields), *own, *_acceleration()]


def _acceleration() -> Sequence[Decorator]:
    """Options of a generate job that are not one field of its spec each."""
    return (
        click.option("--draft", metavar="MODEL", help="A smaller model of the same vocabulary that guesses ahead."),
        *(_spec_option(DraftOptions, name, prefix="draft-") for name in DRAFT_FIELDS),
        click.option(
            "--contract",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="YAML or JSON: what must stay the same, what is measured, what may not be passed.",
        ),
    )


def _spec_option(spec: type[BaseModel], name: str, *, prefix: str = "") -> Decorator:
    """An option that is None unless given, so that the spec's own default holds."""
    field = spec.model_fields[name]
    words = [part for part in (field.description, _show_default(field.default)) if part]
    flag = f"{prefix}{name.replace('_', '-')}"
    if field.annotation is bool:
        return click.option(f"--{flag}/--no-{flag}", default=None, help=" ".join(words))
    return click.option(f"--{flag}", type=_click_type(field.annotation), help=" ".join(words))


def _show_default(value: Any) -> str:
    if isinstance(value, bool):
        value = "on" if value else "off"
    return "" if value is None else f"[default: {value}]"


def _click_type(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(one for one in get_args(annotation) if one is not type(None))
    if get_origin(annotation) is Literal:
        return click.Choice([str(word) for word in get_args(annotation)])
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return click.Choice([word.value for word in annotation])
    return annotation


def _intake(kind: JobKind) -> Sequence[Decorator]:
    fields = [
        click.option(f"--{role}-field", metavar="NAME", help=f"Field of simple lines that holds the {role}.")
        for role in FIELD_ROLES[kind]
    ]
    raw = click.option("--raw", is_flag=True, help="Complete each prompt as it stands, without a chat template.")
    return (
        click.option("--format", type=click.Choice(["auto", "openai", "simple"]), default="auto", show_default=True),
        *([raw] if kind is JobKind.GENERATE else []),
        *fields,
        click.option("--ignore-field", metavar="NAME", multiple=True, help="Field of simple lines to pass over."),
        click.option("--skip-invalid", is_flag=True, help="Invalid lines become items that err, instead of no job."),
        click.option(
            "--errors-file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Where all invalid lines are listed [default: FILE's name with .invalid.jsonl, in this folder].",
        ),
    )


def job_option_group(function: F) -> F:
    """:func:`job_options` as one decorator."""
    return _all(job_options())(function)


def _all(decorators: Sequence[Decorator]) -> Callable[[F], F]:
    """One decorator that applies many; the first stands first in the help."""
    return lambda function: reduce(lambda inner, decorate: decorate(inner), reversed(decorators), function)
