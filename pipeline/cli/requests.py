"""From the options of `submit` and `run` to a job: what was given on the command line as a spec, and what to say of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.cli.options import DRAFT_FIELDS, FIELD_ROLES, SPEC_FIELDS, submit_options
from pipeline.cli.output import count_of, talk
from pipeline.errors import UsageError
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.intake import IntakeOptions, IntakeReport
from pipeline.jobs.submit import Submission, build_spec, submit_items
from pipeline.specs import Endpoint, JobKind
from pipeline.specs.generate import SamplingDefaults
from pipeline.specs.spec_file import load_contract_file

#: Invalid lines that are shown.
SHOWN = 100

#: Any endpoint of the kind will do to check a spec before the file is read.
_ANY_ENDPOINT = {
    JobKind.GENERATE: Endpoint.CHAT,
    JobKind.EMBED: Endpoint.EMBEDDINGS,
    JobKind.RERANK: Endpoint.RERANK,
}


def submit_file(deployment: Deployment, kind: JobKind, file: BinaryIO, given: dict[str, Any]) -> Submission:
    """Submit ``file`` as the options in ``given`` say; talks about what is notable.

    Raises:
        InputInvalid: its problems have been shown.
        SpecError, and whatever ``submit_items`` raises.
    """
    from pipeline.formats.problems import InvalidLines

    name = "stdin" if file is sys.stdin.buffer else file.name
    fields = spec_fields(kind, given)
    # An option out of range is refused before a large file is read.
    build_spec({**fields, "endpoint": _ANY_ENDPOINT[kind], "model": {"name": given["model"] or "-"}})
    errors_path = given["errors_file"] or Path(f"{Path(name).name}.invalid.jsonl")
    try:
        submission = submit_items(
            deployment,
            file,
            fields,
            intake_options(kind, given, deployment.settings.max_line_bytes),
            submit_options(given),
            errors_path=errors_path,
        )
    except InvalidLines as error:
        for problem in error.problems[:SHOWN]:
            param = f" ({problem.param})" if problem.param else ""
            talk(f"{name}:{problem.line or ''}: {problem.code}: {problem.message}{param}")
        if error.summary.total > SHOWN:
            talk(f"... and {error.summary.total - SHOWN:,} more")
        raise
    if submission.existing:
        talk_of_existing(submission)
    elif submission.report is not None:
        _talk_of(submission.report, given["model"])
    return submission


def talk_of_existing(submission: Submission) -> None:
    job = submission.job
    what = "the idempotency key is known" if submission.same == "idempotency_key" else "same file, same options"
    talk(f"{what}: this job was submitted {job.created_at:%Y-%m-%d %H:%M} UTC and is {job.status}")


def spec_fields(kind: JobKind, given: dict[str, Any]) -> dict[str, Any]:
    """The spec's fields that were given; what was not keeps the spec's default."""
    fields: dict[str, Any] = {name: given[name] for name in SPEC_FIELDS[kind][1] if given[name] is not None}
    if kind is JobKind.GENERATE:
        fields["sampling"] = {name: given[name] for name in SamplingDefaults.model_fields if given[name] is not None}
        fields |= _acceleration_fields(given)
    return {"kind": kind.value, "model": {"dtype": given["dtype"]}, **fields}


def _acceleration_fields(given: dict[str, Any]) -> dict[str, Any]:
    """``draft`` and ``contract``, where they were given; raises UsageError, SpecError."""
    fields: dict[str, Any] = {}
    draft = {name: given[f"draft_{name}"] for name in DRAFT_FIELDS if given[f"draft_{name}"] is not None}
    if given["draft"] is not None:
        fields["draft"] = {"model": {"name": given["draft"], "dtype": given["dtype"]}, **draft}
    elif draft:
        raise UsageError(f"--draft-{next(iter(draft))} is for a drafter", hint="name one with --draft MODEL")
    if given["contract"] is not None:
        fields["contract"] = load_contract_file(given["contract"]).model_dump(mode="json")
    return fields


def intake_options(kind: JobKind, given: dict[str, Any], max_line_bytes: int) -> IntakeOptions:
    fields = {f"{role}_field": given[f"{role}_field"] for role in FIELD_ROLES[kind]}
    return IntakeOptions(
        kind=kind,
        model=given["model"],
        format=given["format"],
        raw=given.get("raw", False),
        skip_invalid=given["skip_invalid"],
        max_line_bytes=max_line_bytes,
        ignore_fields=given["ignore_field"],
        **{name: value for name, value in fields.items() if value is not None},
    )


def _talk_of(report: IntakeReport, model: str | None) -> None:
    talk(f"{count_of(report.items, 'item')} for {report.endpoint}")
    if report.invalid:
        listed = f", listed in {report.errors_path}" if report.errors_path else ""
        talk(f"{count_of(report.invalid, 'invalid line')} became items that err{listed}")
    if model and report.model and model != report.model:
        talk(f"--model {model} takes the place of {report.model!r}, which the file names")
    notes = [
        ("a byte order mark", report.has_bom),
        (count_of(report.blank_lines, "blank line"), report.blank_lines),
        (f"CRLF at the end of {count_of(report.crlf_lines, 'line')}", report.crlf_lines),
    ]
    if passed_over := [text for text, holds in notes if holds]:
        talk(f"passed over: {', '.join(passed_over)}")
