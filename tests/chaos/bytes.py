"""A job's files as bytes that two jobs over the same items share: ids and times are masked, nothing else."""

from __future__ import annotations

import re
from typing import Literal

from pipeline.jobs.results import iter_results
from tests.fixtures.house import House

# A quote inside a user's or a model's text is escaped, so that no text can look like one of these.
_MASKS = (
    (re.compile(rb'"(id|request_id)":"(batch_req_|req_|chatcmpl-|cmpl-)[0-9a-f]{24}"'), rb'"\1":"\2*"'),
    (re.compile(rb'"created":[0-9]+'), rb'"created":0'),
)

Which = Literal["output", "errors"]


def read(house: House, job_id: str, which: Which) -> bytes:
    """The file as it is; raises ArtifactCorrupt when it is not what the job's row says."""
    return b"".join(iter_results(house.deployment, job_id, which))


def mask(data: bytes) -> bytes:
    for pattern, replacement in _MASKS:
        data = pattern.sub(replacement, data)
    return data
