"""A child job of the items of an ended job that did not succeed: same spec, same seed, same ids, so the same noise.

The item file and the error file of the parent lie in one order, that of the input, so two streams are enough. Knows
nothing about shards: those of a job that has not ended are :mod:`pipeline.jobs.requeue`'s.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import orjson

from pipeline.checkpoints.digest import digest as digest_checkpoint
from pipeline.checkpoints.resolve import resolve
from pipeline.db.values import JobView
from pipeline.errors import (
    AlreadyExists,
    ArtifactCorrupt,
    Conflict,
    ModelChanged,
    ModelNotFound,
    NotFound,
    NothingToRetry,
    UsageError,
)
from pipeline.formats.items import parse_item
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.kinds import drafter_of
from pipeline.jobs.status import find_job
from pipeline.jobs.submit import check_model, content_digest, new_job_id, pin_drafter
from pipeline.specs import GenerateSpec, IndexSpec, JobSpec, parse_spec
from pipeline.store import layout
from pipeline.store.artifacts import Artifact, ArtifactStore, HashingWriter

_SUBMIT_AGAIN = "submit the file again"


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """Which items, and how often.

    Attributes:
        codes: errors to try again; none for all.
        idempotency_key: in place of the one that follows from parent and codes.
        again: make another job although the same retry was made before.
        repin: take the model as it is here now, in place of the one that the parent pinned.
    """

    codes: frozenset[str] = frozenset()
    idempotency_key: str | None = None
    again: bool = False
    repin: bool = False

    def key_for(self, parent_id: str) -> str | None:
        if self.again:
            return None
        asked = orjson.dumps([sorted(self.codes), self.repin])
        return self.idempotency_key or f"retry:{parent_id}:{hashlib.blake2b(asked, digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Selection:
    """What became of the parent's failed items: how many are tried again, and why the others are not."""

    items: int = 0
    invalid: int = 0
    other_codes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retry:
    """The child job. ``selection`` is None where it was there before; ``siblings`` retry the same parent."""

    job: JobView
    parent: JobView
    selection: Selection | None
    siblings: tuple[JobView, ...]

    @property
    def existing(self) -> bool:
        return self.selection is None


def retry(deployment: Deployment, name: str, options: RetryOptions = RetryOptions()) -> Retry:
    """Make the child job, or give back the one that the same retry made before.

    Raises:
        Conflict: the parent has not ended.
        NothingToRetry: no item of it is left that could end otherwise.
        ModelChanged: the model here is not the one that the parent pinned.
        ArtifactCorrupt, ArtifactMissing: the parent's files are not what they were.
    """
    if options.again and options.idempotency_key is not None:
        raise UsageError("--again makes a new job each time, and an idempotency key one job: give one of them")
    parent = find_job(deployment, name)
    if not parent.status.is_terminal:
        raise Conflict(
            f"{parent.id} is {parent.status}: what failed is known when it has ended",
            hint=f"pipeline watch {parent.id}; shards that failed are revived with: pipeline requeue {parent.id}",
        )
    key = options.key_for(parent.id)
    if options.idempotency_key is None and (found := _by_key(deployment, key)) is not None:
        return _retry(deployment, found, parent, None)
    spec = _spec_of(deployment, parent, options)
    artifact, selection = _write_items(deployment, parent, options.codes)
    job_id = new_job_id()
    try:
        _insert(deployment, job_id, parent, spec, artifact, selection.items, key)
    except AlreadyExists:
        existing = _by_key(deployment, key)
        assert existing is not None
        _check_same(existing, parent, spec, artifact, key)
        return _retry(deployment, existing, parent, None)
    deployment.doorbell.plan(job_id)
    return _retry(deployment, find_job(deployment, job_id), parent, selection)


def _by_key(deployment: Deployment, key: str | None) -> JobView | None:
    if key is None:
        return None
    with deployment.database.read() as uow:
        return uow.jobs.by_idempotency_key(key)


def _retry(deployment: Deployment, job: JobView, parent: JobView, selection: Selection | None) -> Retry:
    with deployment.database.read() as uow:
        siblings = tuple(child for child in uow.jobs.children(parent.id) if child.id != job.id)
    return Retry(job, parent, selection, siblings)


def _check_same(existing: JobView, parent: JobView, spec: JobSpec, artifact: Artifact, key: str | None) -> None:
    same = existing.parent_job_id == parent.id and existing.input_sha256 == artifact.sha256
    if not same or existing.spec != spec.model_dump(mode="json"):
        raise Conflict(
            f"the idempotency key {key!r} made {existing.id}, which is another job", hint="use another key for this one"
        )


def _insert(
    deployment: Deployment,
    job_id: str,
    parent: JobView,
    spec: JobSpec,
    artifact: Artifact,
    items: int,
    key: str | None,
) -> None:
    """The child's row, while the rows it needs are held; raises AlreadyExists, NotFound."""
    drafter = drafter_of(spec)
    needed = {parent.id, *(spec.sources if isinstance(spec, IndexSpec) else ())}
    with deployment.database.write() as uow:
        for needed_id in sorted(needed):
            if not uow.retention.hold(needed_id):
                raise NotFound(f"{needed_id} is gone: `pipeline prune` took it", hint=_SUBMIT_AGAIN)
        uow.jobs.add(
            job_id=job_id,
            kind=parent.kind,
            spec=spec.model_dump(mode="json"),
            total=items,
            endpoint=parent.endpoint,
            model=parent.model,
            model_digest=None if isinstance(spec, IndexSpec) else spec.model.digest,
            draft_model=drafter.name if drafter else None,
            draft_digest=drafter.digest if drafter else None,
            priority=parent.priority,
            idempotency_key=key,
            input_uri=artifact.uri,
            input_sha256=artifact.sha256,
            content_digest=content_digest(artifact.sha256, spec),
            input_bytes=artifact.size,
            parent_job_id=parent.id,
        )


# --- the model ---


def _spec_of(deployment: Deployment, parent: JobView, options: RetryOptions) -> JobSpec:
    """The parent's spec and pin: the same answers are wanted. A host without the model leaves it to those that have it."""
    spec = parse_spec(parent.spec)
    if isinstance(spec, IndexSpec):
        return spec
    if options.repin:
        digest = check_model(deployment, spec.model.name, spec.endpoint)
        repinned = spec.model_copy(update={"model": spec.model.model_copy(update={"digest": digest})})
        return pin_drafter(deployment, repinned) if isinstance(repinned, GenerateSpec) else repinned
    _check_pinned(deployment, parent, spec.model.name, parent.model_digest)
    if parent.draft_model is not None:
        _check_pinned(deployment, parent, parent.draft_model, parent.draft_digest)
    return spec


def _check_pinned(deployment: Deployment, parent: JobView, name: str, digest: str | None) -> None:
    """Raises ModelChanged where a model of that name is here, and is another than the parent pinned."""
    if digest is None:
        return
    try:
        path = resolve(name, deployment.settings, download=False)
    except ModelNotFound:
        return
    found = digest_checkpoint(path, deployment.settings)
    if found != digest:
        raise ModelChanged(
            f"{name} has the digest {found[:12]} here, {parent.id} pinned {digest[:12]}",
            hint="put the model back, or retry on a host that has it; --repin takes it as it is here now, "
            "and its answers may differ from the parent's",
        )


# --- the items ---


def _write_items(deployment: Deployment, parent: JobView, codes: frozenset[str]) -> tuple[Artifact, Selection]:
    """The child's item file: the parent's lines of the items that failed, byte for byte; raises NothingToRetry."""
    if parent.errors_uri is None or parent.errors_sha256 is None:
        failed = parent.total - parent.succeeded
        if failed:  # the job failed because its items could not even be named
            raise Conflict(f"{parent.id} has no list of its {failed:,} failed items", hint=_SUBMIT_AGAIN)
        raise NothingToRetry(f"all {parent.total:,} items of {parent.id} succeeded")
    assert parent.input_uri is not None and parent.input_sha256 is not None
    store = deployment.store
    failures = _failures(_checked_lines(store, parent.errors_uri, parent.errors_sha256))
    with store.create(layout.input_file) as pending:
        items = _checked_lines(store, parent.input_uri, parent.input_sha256)
        selection = _merge(items, failures, codes, pending.stream)
        if not selection.items:
            raise _nothing(parent, codes, selection)
    return pending.artifact, selection


def _merge(
    items: Iterator[bytes], failures: Iterator[tuple[str, str]], codes: frozenset[str], target: HashingWriter
) -> Selection:
    """Both in the order of the input; each is read to its end, since its checksum is known only there."""
    chosen = invalid = 0
    others: Counter[str] = Counter()
    failure = next(failures, None)
    for line in items:
        if failure is None:
            continue
        item = parse_item(line)
        custom_id, code = failure
        if item.custom_id != custom_id:
            continue
        if codes and code not in codes:
            others[code] += 1
        elif item.error is not None:
            invalid += 1
        else:
            target.write(line)
            chosen += 1
        failure = next(failures, None)
    if failure is not None:
        raise ArtifactCorrupt(f"the error file names {failure[0]!r} where the item file does not", hint=_SUBMIT_AGAIN)
    return Selection(chosen, invalid, dict(others))


def _failures(lines: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    for line in lines:
        found = orjson.loads(line)
        yield found["custom_id"], str(found["error"].get("code"))


def _checked_lines(store: ArtifactStore, uri: str, sha256: str) -> Iterator[bytes]:
    """The lines of a file; raises ArtifactCorrupt at the end where it is not what its row says."""
    digest = hashlib.sha256()
    with store.open(uri) as stream:
        for line in stream:
            digest.update(line)
            yield line
    if digest.hexdigest() != sha256:
        raise ArtifactCorrupt(f"{uri} does not have the checksum its row says", hint=_SUBMIT_AGAIN)


def _nothing(parent: JobView, codes: frozenset[str], selection: Selection) -> NothingToRetry:
    if selection.invalid:
        return NothingToRetry(
            f"the {selection.invalid:,} failed items of {parent.id} were invalid lines of the input, and would err again",
            hint=f"`pipeline errors {parent.id}` names them: mend them, and submit them as a new file",
        )
    seen = ", ".join(f"{code} ({count:,})" for code, count in sorted(selection.other_codes.items()))
    return NothingToRetry(f"no item of {parent.id} ended with {', '.join(sorted(codes))}", hint=f"there are: {seen}")
