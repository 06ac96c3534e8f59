"""What is asked of an index build, what it answers, and the manifest that stands beside every index file.

Plain JSON values for both sides of the pipe. Knows nothing about faiss, numpy, stores or databases.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.specs.base import Frozen

Metric = Literal["ip", "l2"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

#: Version of the manifest's own layout.
MANIFEST_FORMAT: Literal["pipeline-index/1"] = "pipeline-index/1"


class VectorSource(Frozen):
    """One vector file that goes into an index.

    ``id_runs`` gives the ids of its rows in row order, as (first id, how many): ``((7, 3), (20, 1))`` is 7, 8, 9, 20.
    """

    path: Path
    sha256: Sha256
    count: int = Field(ge=0)
    id_runs: tuple[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)]], ...]

    @model_validator(mode="after")
    def _ids_cover_rows(self) -> VectorSource:
        if sum(length for _, length in self.id_runs) != self.count:
            raise ValueError(f"id_runs of {self.path.name} do not give {self.count} ids")
        return self


class BuildRequest(Frozen):
    """Everything a build needs; all paths are local to the child and prepared by its parent."""

    sources: tuple[VectorSource, ...]
    dimension: int = Field(ge=1)
    metric: Metric = "ip"
    normalized: bool
    space_digest: str = Field(min_length=1)
    factory: Literal["Flat"] = "Flat"
    output: Path
    recall_queries: int = Field(default=100, ge=0)
    recall_k: int = Field(default=10, ge=1)

    @property
    def count(self) -> int:
        return sum(source.count for source in self.sources)


class IdSet(Frozen):
    """The ids in an index: ``sha256`` is over the ids in ascending order, each as little-endian int64."""

    count: int
    min: int | None
    max: int | None
    sha256: Sha256


class Manifest(Frozen):
    """What an index file is. Whoever opens the file checks it against this first.

    Attributes:
        parameters: search parameters that ``recall`` was measured with; empty for an exact index.
        norm_min, norm_max: smallest and largest L2 norm of the vectors as stored; None when there are none.
        recall: recall@``recall_k`` against exact search, after reloading; None when there was nothing to measure.
        recall_queries: vectors that were in fact used as queries.
        versions: libraries that built it.
    """

    format: Literal["pipeline-index/1"] = MANIFEST_FORMAT
    space_digest: str
    dimension: int
    metric: Metric
    normalized: bool
    factory: str
    parameters: dict[str, int]
    count: int
    ids: IdSet
    norm_min: float | None
    norm_max: float | None
    sha256: Sha256
    size: int
    recall: float | None
    recall_k: int
    recall_queries: int
    versions: dict[str, str]


class BuildResult(Frozen):
    """The answer to a build: the file is at ``output`` and is what ``manifest`` says."""

    output: Path
    manifest: Manifest
    build_s: float = Field(description="reading, checking, adding and writing")
    verify_s: float = Field(description="reloading, comparing and measuring recall")


def make_id_runs(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ids in row order to runs for :class:`VectorSource`; the order is kept."""
    runs: list[tuple[int, int]] = []
    for value in ids:
        if runs and value == runs[-1][0] + runs[-1][1]:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((value, 1))
    return tuple(runs)
