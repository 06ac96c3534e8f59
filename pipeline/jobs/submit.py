"""From a user's file to a row: check every line, store the items, then insert the job, then ring.

A crash before the row leaves no job; a crash after it leaves a job that reconcile plans.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson
from pydantic import ValidationError

from pipeline.checkpoints.describe import Checkpoint, describe
from pipeline.checkpoints.digest import digest as digest_checkpoint
from pipeline.checkpoints.resolve import resolve
from pipeline.checkpoints.trust import may_run_code
from pipeline.db.states import JobStatus
from pipeline.db.values import JobView
from pipeline.errors import (
    AlreadyExists,
    Conflict,
    ModelUnsupported,
    NoChatTemplate,
    NotFound,
    SpecError,
    TransientError,
)
from pipeline.failpoints import fail_point
from pipeline.formats.items import Item, dump_item
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.intake import IntakeOptions, IntakeReport, intake
from pipeline.jobs.kinds import drafter_of
from pipeline.specs import Endpoint, GenerateSpec, IndexSpec, JobSpec, parse_spec
from pipeline.specs.base import refusal
from pipeline.specs.contract import check_measurable
from pipeline.store import layout
from pipeline.store.artifacts import Artifact


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that now exists; ``same`` says what an earlier job has in common with this submission, which made none."""

    job: JobView
    report: IntakeReport | None
    same: Literal["idempotency_key", "content"] | None = None

    @property
    def existing(self) -> bool:
        return self.same is not None


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """What belongs to the job and not to its spec. ``dedupe`` gives back a job over the same file and spec."""

    priority: int = 0
    idempotency_key: str | None = None
    check_model: bool = True
    dedupe: bool = False
    expires_in_s: float | None = None


def new_job_id() -> str:
    return f"job_{secrets.token_hex(8)}"


def submit_items(
    deployment: Deployment,
    source: BinaryIO,
    fields: Mapping[str, Any],
    intake_options: IntakeOptions,
    options: SubmitOptions = SubmitOptions(),
    *,
    errors_path: Path | None = None,
) -> Submission:
    """Submit a file of requests.

    Args:
        source: the file's bytes, read once as a stream.
        fields: the spec's fields beside ``model`` and ``endpoint`` (``kind``, ``sampling``, ``width``...).
        errors_path: where all problems of the input are written, one JSON object per line.

    Raises:
        InputInvalid: with the first problems, unless they are to become item errors.
        SpecError, CeilingUnmeasurable, ModelNotFound, ModelUnsupported, NoChatTemplate.
    """
    report = intake(source, intake_options, deployment.store, errors_path=errors_path)
    name = intake_options.model or report.model
    if not name:
        raise SpecError("no model: neither --model nor the file names one", hint="add --model NAME_OR_FOLDER")
    model: dict[str, Any] = {"name": name, **dict(fields.get("model", {}))}
    if options.check_model:
        model["digest"] = check_model(deployment, name, report.endpoint)
    spec = build_spec({**fields, "model": model, "endpoint": report.endpoint})
    if isinstance(spec, GenerateSpec):
        spec = pin_drafter(deployment, spec, check=options.check_model)
    return _insert(deployment, spec, options, report.artifact, items=report.items, report=report)


def submit_index(deployment: Deployment, spec: IndexSpec, options: SubmitOptions = SubmitOptions()) -> Submission:
    """Submit the build of an index from finished embed jobs; raises NotFound, Conflict."""
    with deployment.database.read() as uow:
        for source in spec.sources:
            job = uow.jobs.get(source)
            if job is None:
                raise NotFound(f"no job {source}")
            if job.kind != "embed" or job.status is not JobStatus.COMPLETED:
                raise Conflict(
                    f"{source} is no finished embed job: its kind is {job.kind}, its status {job.status}",
                    hint=f"wait for it with: pipeline watch {source}",
                )
        spaces = uow.vectors.spaces_of(spec.sources)
    if len(spaces) > 1:
        raise Conflict("the jobs' vectors live in different spaces", hint="embed all of them with one recipe")
    item = dump_item(Item(spec.name, 1, spec.model_dump(mode="json")))
    with deployment.store.create(layout.input_file) as pending:
        pending.stream.write(item)
    artifact = pending.artifact
    return _insert(deployment, spec, options, artifact, items=1)


def check_model(deployment: Deployment, name: str, endpoint: Endpoint) -> str:
    """Find the model here, see that it can do the work, and give the digest that the job pins."""
    path = resolve(name, deployment.settings)
    checkpoint = describe(path)
    check_suits(checkpoint, name, endpoint)
    if endpoint is not Endpoint.EMBEDDINGS:
        may_run_code(name, path, deployment.settings)
    return digest_checkpoint(path, deployment.settings)


def pin_drafter(deployment: Deployment, spec: GenerateSpec, *, check: bool = True) -> GenerateSpec:
    """The spec with the digest of its drafter as it is here; raises ModelNotFound, ModelUnsupported.

    Whether the two speak the same tokens is seen where both are loaded.
    """
    if spec.draft is None or not check:
        return spec
    name, settings = spec.draft.model.name, deployment.settings
    path = resolve(name, settings)
    drafter = describe(path)
    if drafter.kind != "generator":
        raise ModelUnsupported(
            f"{name} is of kind {drafter.kind} ({drafter.model_type}); a drafter is a generator",
            hint="--draft takes a smaller model of the same family",
        )
    if drafter.is_fake and not describe(resolve(spec.model.name, settings)).is_fake:
        raise ModelUnsupported(f"{name} is a fake model, which guesses for no real one")
    may_run_code(name, path, settings)
    model = spec.draft.model.model_copy(update={"digest": digest_checkpoint(path, settings)})
    return spec.model_copy(update={"draft": spec.draft.model_copy(update={"model": model})})


def check_suits(checkpoint: Checkpoint, name: str, endpoint: Endpoint) -> None:
    """One clear error before any work, instead of one per item; raises ModelUnsupported, NoChatTemplate."""
    if checkpoint.is_fake:
        return
    wanted = "embedder" if endpoint is Endpoint.EMBEDDINGS else "generator"
    if checkpoint.kind != wanted:
        raise ModelUnsupported(
            f"{name} is of kind {checkpoint.kind} ({checkpoint.model_type}); {endpoint} needs {wanted}"
        )
    if endpoint in (Endpoint.CHAT, Endpoint.RERANK) and not checkpoint.has_chat_template:
        hint = "--raw sends each prompt as it is to /v1/completions" if endpoint is Endpoint.CHAT else None
        raise NoChatTemplate(f"{name} has no chat template", hint=hint)


def build_spec(fields: Mapping[str, Any]) -> JobSpec:
    """Check the spec; raises SpecError naming the field, CeilingUnmeasurable."""
    try:
        spec = parse_spec(dict(fields))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        text = first["msg"].removeprefix("Value error, ")
        raise refusal(first["type"])(f"{place}: {text}" if place else text) from None
    if isinstance(spec, GenerateSpec) and spec.contract is not None:
        check_measurable(spec.contract)
    return spec


def content_digest(input_sha256: str, spec: JobSpec) -> str:
    """Of a job's item file and its spec, the model's pinned digest with it: what is asked for, and nothing else."""
    fields = orjson.dumps(spec.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(input_sha256.encode() + b"\n" + fields).hexdigest()


def _insert(
    deployment: Deployment,
    spec: JobSpec,
    options: SubmitOptions,
    artifact: Artifact,
    *,
    items: int,
    report: IntakeReport | None = None,
) -> Submission:
    """The job's row; or the one that an earlier submit with the same key, or the same content, made.

    Look and insert are one transaction that holds the content: of two submits at once one makes the job. That, and not
    a key made from the digest, so that after a job that failed the same content makes another.
    """
    fail_point("submit.after_file")
    model = None if isinstance(spec, IndexSpec) else spec.model
    drafter = drafter_of(spec)
    job_id = new_job_id()
    digest = content_digest(artifact.sha256, spec)
    try:
        with _doubtful(job_id), deployment.database.write() as uow:
            if options.dedupe:
                uow.jobs.hold_content(digest)
                if (same := uow.jobs.newest_of_content(digest)) is not None:
                    return Submission(same, report, same="content")
            for source in sorted(spec.sources) if isinstance(spec, IndexSpec) else ():
                if not uow.retention.hold(source):
                    raise NotFound(f"no job {source}")
            uow.jobs.add(
                job_id=job_id,
                kind=spec.kind,
                spec=spec.model_dump(mode="json"),
                total=items,
                endpoint=None if isinstance(spec, IndexSpec) else spec.endpoint,
                model=model.name if model else None,
                model_digest=model.digest if model else None,
                draft_model=drafter.name if drafter else None,
                draft_digest=drafter.digest if drafter else None,
                priority=options.priority,
                idempotency_key=options.idempotency_key,
                input_uri=artifact.uri,
                input_sha256=artifact.sha256,
                input_bytes=artifact.size,
                content_digest=digest,
                expires_in_s=options.expires_in_s,
            )
            fail_point("submit.in_insert")
    except AlreadyExists:
        return Submission(_find_existing(deployment, options, spec, artifact), report, same="idempotency_key")
    return _announce(deployment, job_id, report)


def _find_existing(deployment: Deployment, options: SubmitOptions, spec: JobSpec, artifact: Artifact) -> JobView:
    """Raises Conflict when the key was used for another file or spec."""
    assert options.idempotency_key is not None
    with deployment.database.read() as uow:
        job = uow.jobs.by_idempotency_key(options.idempotency_key)
    assert job is not None
    if job.input_sha256 != artifact.sha256 or job.spec != spec.model_dump(mode="json"):
        raise Conflict(
            f"the idempotency key {options.idempotency_key!r} made {job.id} from another file or with other options",
            hint="use another key for another job",
        )
    return job


def _announce(deployment: Deployment, job_id: str, report: IntakeReport | None) -> Submission:
    fail_point("submit.after_row")
    deployment.doorbell.plan(job_id)
    fail_point("submit.after_ring")
    with _doubtful(job_id), deployment.database.read() as uow:
        job = uow.jobs.get(job_id)
    assert job is not None
    return Submission(job, report)


@contextmanager
def _doubtful(job_id: str) -> Iterator[None]:
    """A database that goes away around the commit leaves open whether the job was made: say its name."""
    try:
        yield
    except TransientError as error:
        error.hint = f"{job_id} may have been made: look with `pipeline status {job_id}` before you submit again"
        raise
