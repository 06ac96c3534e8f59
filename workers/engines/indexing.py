"""The indexing engine: builds an index from vector files, or holds one and searches it.

One engine, two kinds of request. ``index``: each item's body is a :class:`pipeline.index.manifest.BuildRequest` and
its answer a ``BuildResult``; there is one such item in an index job. ``search``: the load options name the file and
its manifest, each item brings queries. faiss is imported on loading, in a process that holds neither MLX nor torch.
Knows nothing about the database: ids are numbers, paths are local and made by the parent.
"""

from __future__ import annotations

import base64
import binascii
import errno
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import (
    ArtifactCorrupt,
    ArtifactMissing,
    InvalidValue,
    ItemError,
    JobError,
    StoreFull,
    StoreUnavailable,
)
from pipeline.index.manifest import BuildRequest, Manifest
from pipeline.ports import (
    Answer,
    Boundary,
    Emit,
    EngineInfo,
    EngineRequest,
    JsonObject,
    Progress,
    RunStats,
    ShouldStop,
    WorkItem,
)
from workers.engines.answers import error_answer
from workers.engines.memory import peak_rss_bytes
from workers.engines.trace import BusyTrace

if TYPE_CHECKING:
    from pipeline.index.search import LoadedIndex

#: Never in one process with faiss: two OpenMP runtimes crash a Mac, and a child holds one engine.
_NEVER_BESIDE = ("torch", "mlx", "mlx.core")


class SearchOptions(BaseModel):
    """Load options of a search: the local index file and what it must be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index_path: Path
    manifest: Manifest


class SearchBody(BaseModel):
    """One search item: queries as base64 of little-endian float32, row after row; ``k`` may come from the options."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    vectors: str
    k: int | None = Field(default=None, ge=1)


class IndexingEngine:
    """Builds or searches. Implements :class:`pipeline.ports.Indexer`."""

    def __init__(self) -> None:
        self._kind: str | None = None
        self._loaded: LoadedIndex | None = None

    def load(self, request: EngineRequest) -> EngineInfo:
        """Import faiss; for ``search`` also verify and read the index.

        Raises:
            JobError: the process holds a library faiss must not meet, the options are no good, or the index is not
                what its manifest says (``artifact_missing``, ``artifact_corrupt``, ``index_unsound``).
        """
        started = time.monotonic()
        present = [name for name in _NEVER_BESIDE if sys.modules.get(name)]  # None blocks an import
        if present:
            raise JobError(f"faiss must not be loaded beside {present[0]}; index work needs a child of its own")
        if request.kind not in ("index", "search"):
            raise JobError(f"the indexing engine does not {request.kind}")
        from pipeline.index.search import describe_libraries, open_index

        details: JsonObject = {}
        if request.kind == "search":
            with _mapped_faults():
                options = SearchOptions.model_validate(request.options)
                self._loaded = open_index(options.index_path, options.manifest)
            details = {"count": options.manifest.count, "dimension": options.manifest.dimension}
        elif request.options:
            raise JobError(f"building takes no load options, and got {sorted(request.options)}")
        self._kind = request.kind
        return EngineInfo(
            kind=request.kind,
            model_digest=None,
            numeric_platform=describe_libraries(),
            load_s=time.monotonic() - started,
            details=details,
        )

    def run(
        self,
        items: Sequence[WorkItem],
        options: JsonObject,
        *,
        done: frozenset[int],
        emit: Emit,
        should_stop: ShouldStop,
    ) -> RunStats:
        """See :class:`pipeline.ports.Engine`. The only run option is ``k``, for searches that bring none.

        While an index is built, ``tokens`` of the progress counts vectors handled (each twice: added, compared).

        Raises:
            JobError: a build that no retry can mend; see :func:`pipeline.index.build.build` for the codes.
            TransientError: a build whose file could not be written.
        """
        if self._kind is None:
            raise JobError("the indexing engine has loaded nothing")
        default_k = _parse_run_options(options, self._kind)
        work = _Work(emit, should_stop)
        for item in items:
            if item.index in done:
                continue
            if should_stop():
                return work.stats(cancelled=True)
            try:
                with work.trace.call():
                    answer = self._build(item, work) if self._kind == "index" else self._search(item, default_k)
            except _Stopped:
                return work.stats(cancelled=True)
            except ItemError as error:
                answer = error_answer(item.index, error)
            work.finish(answer)
        return work.stats()

    def close(self) -> None:
        self._kind = None
        self._loaded = None

    def _build(self, item: WorkItem, work: _Work) -> Answer:
        from pipeline.index.build import build

        with _mapped_faults():
            result = build(BuildRequest.model_validate(item.body), work.handle_vectors)
        manifest = result.manifest
        measures = {"vectors": float(manifest.count), "build_s": result.build_s, "verify_s": result.verify_s}
        if manifest.recall is not None:
            measures["recall"] = manifest.recall
        return Answer(index=item.index, body=result.model_dump(mode="json"), measures=measures)

    def _search(self, item: WorkItem, default_k: int | None) -> Answer:
        assert self._loaded is not None
        body = _parse_search_body(item.body)
        k = body.k or default_k
        if k is None:
            raise InvalidValue("k is missing", param="k")
        queries = _decode_vectors(body.vectors, self._loaded.manifest.dimension)
        ids, scores = self._loaded.search(queries, k)
        hits = [
            [{"id": id_, "score": score} for id_, score in zip(*row, strict=True)]
            for row in zip(ids.tolist(), scores.tolist(), strict=True)
        ]
        return Answer(index=item.index, body={"hits": hits})


class _Stopped(Exception):
    """The parent asked a build to stop."""


class _Work:
    """One run's sums, and its words to the parent."""

    def __init__(self, emit: Emit, should_stop: ShouldStop) -> None:
        self.trace = BusyTrace()
        self._emit = emit
        self._should_stop = should_stop
        self._vectors = 0
        self._items = 0

    def handle_vectors(self, count: int) -> None:
        if self._should_stop():
            raise _Stopped
        self._vectors += count
        self._tell()

    def finish(self, answer: Answer) -> None:
        self._items += 1
        self._emit(answer)
        self._tell()
        self._emit(Boundary())

    def stats(self, *, cancelled: bool = False) -> RunStats:
        return RunStats(
            busy=self.trace.spans,
            peak_rss_bytes=peak_rss_bytes(),
            counters={"vectors_handled": self._vectors} if self._vectors else {},
            cancelled=cancelled,
        )

    def _tell(self) -> None:
        self._emit(Progress(tokens=self._vectors, items=self._items, phase="build"))


@contextmanager
def _mapped_faults() -> Iterator[None]:
    """What a build or an opening may meet, as what it means to the job: never mended by a retry, or perhaps."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _job_error("spec_invalid", f"{place}: {first['msg']}" if place else first["msg"]) from error
    except (ArtifactCorrupt, ArtifactMissing) as error:
        raise _job_error(error.code, error.message) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull("no space left for the index file", hint="free some space") from error
        raise StoreUnavailable(f"the index file cannot be written: {error.strerror or error}") from error


def _job_error(code: str, message: str) -> JobError:
    fault = JobError(message)
    fault.code = code
    return fault


def _parse_run_options(options: JsonObject, kind: str) -> int | None:
    unknown = sorted(set(options) - ({"k"} if kind == "search" else set()))
    if unknown:
        raise JobError(f"unknown option {unknown[0]!r} for a run of kind {kind}")
    k = options.get("k")
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
        raise JobError(f"k must be a whole number from 1, not {k!r}")
    return k


def _parse_search_body(body: JsonObject) -> SearchBody:
    try:
        return SearchBody.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = str(first["loc"][0]) if first["loc"] else None
        raise InvalidValue(f"{param}: {first['msg']}", param=param) from error


def _decode_vectors(text: str, dimension: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidValue(f"vectors: not base64: {error}", param="vectors") from error
    if len(data) % (4 * dimension):
        message = f"vectors: {len(data)} bytes are no whole number of float32 vectors of {dimension} components"
        raise InvalidValue(message, param="vectors")
    return np.frombuffer(data, dtype="<f4").reshape(-1, dimension)
