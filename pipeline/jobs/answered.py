"""What a finished generate job was asked and what it answered, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import orjson

from pipeline.errors import ArtifactMissing, UsageError
from pipeline.formats.items import parse_item
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.results import iter_results
from pipeline.jobs.status import find_job
from pipeline.ports import JsonObject


def answered_pairs(deployment: Deployment, job_id: str, *, most: int) -> Iterator[tuple[JsonObject, str]]:
    """(body, text of the first choice) of the first ``most`` answers, in the order of the input.

    Raises NotFound, Conflict when the job has not ended, UsageError for a job that generates nothing.
    """
    job = find_job(deployment, job_id)
    if job.kind != "generate":
        raise UsageError(f"{job.id} is of kind {job.kind}: only a generate job has answers to look at")
    if job.input_uri is None:
        raise ArtifactMissing(f"the input of {job.id} is gone")
    texts: dict[str, str] = {}
    for line in islice(_lines(iter_results(deployment, job.id)), most):
        answer = orjson.loads(line)
        texts[answer["custom_id"]] = _text(answer)
    with deployment.store.open(job.input_uri) as stream:
        for line in stream:
            if not texts:
                return
            item = parse_item(line)
            text = texts.pop(item.custom_id, None)
            if text is not None and item.body is not None:
                yield item.body, text


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _text(answer: JsonObject) -> str:
    choice = answer["response"]["body"]["choices"][0]
    return str(choice.get("text") or (choice.get("message") or {}).get("content") or "")
