"""The seams between the pipeline and what runs models: protocols and the values that cross them.

Child side: :class:`Engine` and its four kinds. Parent side: :class:`EngineHost`. Nothing here imports an
implementation, and nothing that crosses a seam needs more than JSON and raw bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request as an engine sees it.

    Attributes:
        index: place in the shard, from 0.
        custom_id: the user's id; used for seeds, never for paths.
        body: the request's body in OpenAI's words.
        seed: noise for sampling is keyed by (seed, choice, position); see :func:`pipeline.specs.seeds.item_seed`.
    """

    index: int
    custom_id: str
    body: JsonObject
    seed: int = 0


@dataclass(frozen=True, slots=True)
class VectorRow:
    """What is known of one vector beside its numbers; ``ordinal`` counts the vectors of one item."""

    item: int
    ordinal: int
    norm: float
    tokens: int
    truncated: bool
    start: int
    end: int
    text_hash: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One item's end: a response body, or an error. Exactly one per item and attempt.

    ``vectors`` holds little-endian float32, ``len(rows)`` rows of ``dimension``; empty for kinds without vectors.
    ``tokens`` are each choice's answer tokens, end tokens included; they stay in the engine's own process.
    """

    index: int
    body: JsonObject | None = None
    error: JsonObject | None = None
    usage: JsonObject = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)
    rows: tuple[VectorRow, ...] = ()
    dimension: int = 0
    vectors: bytes = b""
    tokens: tuple[tuple[int, ...], ...] = ()

    @property
    def succeeded(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True)
class Progress:
    """The child did something: ``tokens`` and ``items`` since the start of the run."""

    tokens: int = 0
    items: int = 0
    phase: Literal["load", "prefill", "decode", "embed", "score", "build"] = "decode"


@dataclass(frozen=True, slots=True)
class Boundary:
    """The answers so far are a whole number of micro-batches: a part may end here."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check of an acceleration found in one run.

    ``mechanism`` is what was checked (``batching``, ``lookup``, ``draft``, ``prefix_cache``, ``canonical``,
    ``ceiling``), ``code`` says what was found in one word of code, ``reason`` says it to a person, ``count`` how often.
    """

    mechanism: str
    outcome: Literal["held", "declined", "violated"]
    code: str
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class RunStats:
    """Sums over one run. ``busy`` are (start, end) pairs of engine calls, seconds of CLOCK_MONOTONIC.

    ``counters`` count events (truncations, fallbacks), ``measures`` are seconds (percentiles of the run),
    ``verdicts`` what checks of accelerations found.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    busy: tuple[tuple[float, float], ...] = ()
    peak_rss_bytes: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """These items are inside the engine from now on, until they are answered: the suspects, should the child die."""

    items: tuple[int, ...]


EngineEvent = Answer | Progress | Boundary | Started


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What a child is asked to hold: one kind, one model folder, one set of load options.

    ``memory_bytes`` is a ceiling for the whole child; None leaves it the host's. ``trust_code`` lets the model's own
    code run.
    """

    kind: Literal["generate", "embed", "rerank", "index", "search", "fake"]
    model_path: str | None
    model_digest: str | None = None
    dtype: str = "auto"
    options: JsonObject = field(default_factory=dict)
    memory_bytes: int | None = None
    trust_code: bool = False


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a loaded engine says of itself.

    ``numeric_platform`` names what results may depend on: device family, dtype, BLAS, library versions. ``recipe``
    is what an embedding space is made of (law 8), without the numeric platform; None for other kinds.
    """

    kind: str
    model_digest: str | None
    numeric_platform: JsonObject
    load_s: float
    context_length: int | None = None
    recipe: JsonObject | None = None
    details: JsonObject = field(default_factory=dict)


Emit = Callable[[EngineEvent], None]
ShouldStop = Callable[[], bool]


class Engine(Protocol):
    """Child side. Loads one model, runs shards over it one after another, on one thread."""

    def load(self, request: EngineRequest) -> EngineInfo:
        """Load; raises :class:`pipeline.errors.JobError` for what no retry can mend."""
        ...

    def run(
        self,
        items: Sequence[WorkItem],
        options: JsonObject,
        *,
        done: frozenset[int],
        emit: Emit,
        should_stop: ShouldStop,
    ) -> RunStats:
        """Answer every item whose index is not in ``done``, each exactly once, in any order.

        ``items`` is always the whole shard, so that micro-batches are a function of the shard and not of what an
        earlier attempt left (only a suspect on trial comes alone). Items are announced with :class:`Started` before
        a model sees them. A bad item is answered with an error and never harms another. When ``should_stop``
        turns true the run ends soon, with unanswered items left out and ``cancelled`` set.
        """
        ...

    def close(self) -> None: ...


class Generator(Engine, Protocol):
    """Answers chat and completion requests."""


class Embedder(Engine, Protocol):
    """Turns texts into vectors."""


class Reranker(Engine, Protocol):
    """Scores documents against a query."""


class Indexer(Engine, Protocol):
    """Builds an index from vector files, or searches one."""


class EngineRun(Protocol):
    """Parent side: one shard in flight in a child."""

    def events(self) -> Iterator[EngineEvent]:
        """Yield until the child is done; raises ChildDied, ChildStalled, JobError or TransientError."""
        ...

    def cancel(self) -> None:
        """Ask the child to stop soon; ``events`` then ends by itself. Safe from any thread."""
        ...

    def seconds_since_progress(self) -> float:
        """Monotonic seconds since the child last loaded, answered or made a token."""
        ...

    @property
    def stats(self) -> RunStats:
        """Complete once ``events`` has ended."""
        ...


class EngineHost(Protocol):
    """Parent side: one slot's children, of which one works at a time. Keeps them warm for those who want the same."""

    def prepare(self, request: EngineRequest) -> EngineInfo:
        """Have a child that holds ``request``, and let the next run go there: one that is alive, else a new one."""
        ...

    def run(self, items: Sequence[WorkItem], options: JsonObject, *, done: frozenset[int]) -> EngineRun: ...

    @property
    def loaded(self) -> tuple[EngineRequest, ...]:
        """What could run at this moment without loading, used latest first. Safe from any thread."""
        ...

    def interrupt(self) -> None:
        """End a load that is under way: ``prepare`` then raises TransientError. Safe from any thread."""
        ...

    def close(self) -> None:
        """End the children, if any."""
        ...
