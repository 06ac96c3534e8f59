"""Cutting a job's items into shards, once: by token budget, in order, a function of the file and the spec alone."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

from pipeline.checkpoints.describe import describe
from pipeline.checkpoints.digest import digest as digest_checkpoint
from pipeline.checkpoints.resolve import resolve
from pipeline.checkpoints.tokens import TokenCounter
from pipeline.db.states import JobStatus
from pipeline.db.values import JobLease, JobView, ShardCut
from pipeline.errors import (
    ArtifactCorrupt,
    ArtifactMissing,
    LeaseLost,
    ModelChanged,
    ModelNotFound,
    PipelineError,
    TransientError,
)
from pipeline.failpoints import fail_point
from pipeline.formats.items import Item, parse_item
from pipeline.formats.texts import output_allowance, prompt_texts
from pipeline.jobs.cancel import settle
from pipeline.jobs.damage import MISSING_TRIES
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.leases import JobKeeper
from pipeline.specs import IndexSpec, JobSpec, parse_spec

log = logging.getLogger(__name__)

#: Items whose texts are counted in one call of the tokenizer.
COUNT_ITEMS = 512


class CountsTokens(Protocol):
    """Anything that counts the tokens of texts."""

    def count(self, texts: list[str]) -> list[int]: ...


class WordCounter:
    """Counts words, for jobs without a tokenizer (index builds, the fake engine)."""

    def count(self, texts: list[str]) -> list[int]:
        return [len(text.split()) for text in texts]


def plan(deployment: Deployment, job_id: str, *, owner: str) -> bool:
    """Plan a job that waits for it; False when another process does, or did.

    A job that cannot be done (model unknown, changed or unfit; item file unreadable) ends here, before any work, with
    one clear error. A model that the job pins and this host does not hold is another host's to plan with.

    Raises TransientError when database or store are out of reach; the lease is given back. Raises ArtifactMissing when
    the item file is; that is tried again some times.
    """
    with deployment.database.write() as uow:
        lease = uow.jobs.lease(job_id, JobStatus.VALIDATING, owner)
        job = uow.jobs.get(job_id)
    if lease is None or job is None:
        return False
    try:
        with JobKeeper(deployment, lease):
            fail_point("plan.after_lease")
            spec = parse_spec(job.spec)
            cuts = list(cut_shards(_lines(deployment, job), _counter(deployment, spec, job), spec))
            with deployment.database.write() as uow:
                uow.jobs.plan(lease, cuts)
                fail_point("plan.in_commit")
            fail_point("plan.after_commit")
    except LeaseLost:
        return False
    except TransientError as error:
        _release(deployment, lease, error)
        raise
    except ModelNotFound as error:
        if job.model_digest is None:
            _fail(deployment, lease, error)
        else:
            _release(deployment, lease)
        return False
    except ArtifactMissing as error:
        if job.control_tries + 1 >= MISSING_TRIES:
            _fail(deployment, lease, error)
            return False
        with deployment.database.write() as uow:  # a share may be away; the lease runs out before the next try
            uow.jobs.note_trouble(lease, code=error.code, message=str(error))
        raise
    except Exception as error:  # whatever it is, planning again would meet it again
        if not isinstance(error, PipelineError):
            log.exception("plan_broke", extra={"job": job_id})
        _fail(deployment, lease, error)
        return False
    deployment.doorbell.run(job.kind)
    return True


def cut_shards(lines: Iterable[bytes], counter: CountsTokens, spec: JobSpec) -> Iterator[ShardCut]:
    """Cut the item file: a shard ends before the item that would take it over its token or item budget.

    An item larger than the budget is a shard of its own. Memory is bounded by ``COUNT_ITEMS`` items.
    """
    if isinstance(spec, IndexSpec):
        token_budget, item_budget = 1, 1
    else:
        token_budget, item_budget = spec.shard_tokens, spec.shard_items
    ordinal = first_item = item_count = tokens = start = end = 0
    digest = hashlib.sha256()
    for line, item_tokens in _weighed(lines, counter, spec):
        if item_count and (item_count >= item_budget or tokens + item_tokens > token_budget):
            yield ShardCut(ordinal, start, end, first_item, item_count, tokens, digest.hexdigest())
            ordinal, first_item, item_count, tokens, start = ordinal + 1, first_item + item_count, 0, 0, end
            digest = hashlib.sha256()
        digest.update(line)
        item_count, tokens, end = item_count + 1, tokens + item_tokens, end + len(line)
    if item_count:
        yield ShardCut(ordinal, start, end, first_item, item_count, tokens, digest.hexdigest())


def _weighed(lines: Iterable[bytes], counter: CountsTokens, spec: JobSpec) -> Iterator[tuple[bytes, int]]:
    """Each line with its tokens: those of its texts plus those it may answer with."""
    items = ((line, parse_item(line)) for line in lines)
    while batch := list(islice(items, COUNT_ITEMS)):
        texts = [_texts(item) for _, item in batch]
        counts = iter(counter.count([text for group in texts for text in group]))
        for (line, item), group in zip(batch, texts, strict=True):
            prompt = sum(islice(counts, len(group)))
            yield line, max(1, prompt + (output_allowance(item.body, spec) if item.body is not None else 0))


def _texts(item: Item) -> list[str]:
    return [] if item.body is None else prompt_texts(item.body)


def _lines(deployment: Deployment, job: JobView) -> Iterator[bytes]:
    """The item file, checked as a whole while it streams: one that lost a line would be cut without a word."""
    assert job.input_uri is not None
    digest = hashlib.sha256()
    with deployment.store.open(job.input_uri) as stream:
        for line in stream:
            digest.update(line)
            yield line
    if digest.hexdigest() != job.input_sha256:
        raise ArtifactCorrupt(f"{job.input_uri} does not have the checksum its row says")


def _counter(deployment: Deployment, spec: JobSpec, job: JobView) -> CountsTokens:
    """The model's own tokenizer, after a look that the model here is the one the job pinned."""
    if isinstance(spec, IndexSpec):
        return WordCounter()
    path = resolve(spec.model.name, deployment.settings)
    found = digest_checkpoint(path, deployment.settings)
    if job.model_digest is not None and found != job.model_digest:
        raise ModelChanged(
            f"{spec.model.name} has the digest {found[:12]} here, the job pinned {job.model_digest[:12]}",
            hint="submit the job again to use the model as it is now",
        )
    return WordCounter() if describe(path).is_fake else TokenCounter(path)


def _release(deployment: Deployment, lease: JobLease, trouble: PipelineError | None = None) -> None:
    with deployment.database.write() as uow:
        uow.jobs.release(lease, None if trouble is None else (trouble.code, str(trouble)))


def _fail(deployment: Deployment, lease: JobLease, error: Exception) -> None:
    """End the job before any work, if it is still this process's to end."""
    code = error.code if isinstance(error, PipelineError) else "internal_error"
    try:
        with deployment.database.write() as uow:
            uow.jobs.fail_unplanned(lease, code=code, message=str(error))
    except LeaseLost:
        return
    settle(deployment, lease.job_id)
