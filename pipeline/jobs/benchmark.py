"""From a job's spec and a file of requests to a benchmark: which arms, with which options, over which items.

Knows nothing about how an arm is run or judged.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.checkpoints.describe import describe
from pipeline.checkpoints.digest import digest as digest_checkpoint
from pipeline.checkpoints.resolve import resolve
from pipeline.checkpoints.trust import may_run_code
from pipeline.config import Settings
from pipeline.errors import SpecError, UsageError
from pipeline.formats.items import parse_items
from pipeline.jobs.intake import IntakeOptions, intake
from pipeline.jobs.kinds import draft_options, load_options_of, run_options
from pipeline.jobs.submit import check_suits
from pipeline.ports import JsonObject
from pipeline.specs import Endpoint, GenerateSpec, JobKind
from pipeline.specs.bench import LIBRARY_ARM, BenchArm, BenchItem, BenchRequest, Mechanism
from pipeline.specs.seeds import item_seed
from pipeline.store.artifacts import ArtifactStore

#: Changes of the spec, what must be seen at work, what must not, by arm. ``default`` is the spec as it is written.
_ARMS: Mapping[str, tuple[Mapping[str, Any], tuple[Mechanism, ...], tuple[Mechanism, ...]]] = {
    "plain": ({"accelerate": "off", "prefix_cache": False}, (), ("prefix_cache", "lookup", "draft")),
    "default": ({}, (), ()),
    "prefix_cache": ({"accelerate": "off", "prefix_cache": True}, ("prefix_cache",), ("lookup", "draft")),
    "lookup": ({"accelerate": "lookup", "prefix_cache": False}, ("lookup",), ("prefix_cache", "draft")),
    "draft": ({"accelerate": "draft", "prefix_cache": False}, ("draft",), ("prefix_cache", "lookup")),
    "auto": ({"accelerate": "auto"}, ("governor",), ()),
}

#: What can be asked for.
ARM_NAMES: tuple[str, ...] = (*_ARMS, LIBRARY_ARM)

#: Rows of the warm-up by rows decoded together: the batch fills, is refilled, and runs empty.
_WARM_UP_BATCHES = 2


def bench_request(
    spec: GenerateSpec,
    arms: Sequence[str],
    items: Sequence[BenchItem],
    settings: Settings,
    *,
    title: str,
    baseline: str | None = None,
    repeat: int = 3,
    warm_up_items: int | None = None,
) -> BenchRequest:
    """A whole benchmark; ratios are against ``baseline``, else the first arm.

    Raises:
        UsageError: arms or counts that make no sense.
        ModelNotFound, ModelUnsupported, NoChatTemplate, ModelNotTrusted: the model cannot do this here.
    """
    path = resolve(spec.model.name, settings)
    checkpoint = describe(path)
    if checkpoint.is_fake:
        raise UsageError(f"{spec.model.name} is the fake model: there is nothing to measure")
    check_suits(checkpoint, spec.model.name, spec.endpoint)
    try:
        return BenchRequest(
            title=title,
            model_name=spec.model.name,
            model_path=str(path),
            model_digest=digest_checkpoint(path, settings),
            dtype=spec.model.dtype,
            trust_code=may_run_code(spec.model.name, path, settings),
            load_options={**load_options_of(spec, run_options(spec)), **_drafter(spec, arms, settings)},
            arms=tuple(bench_arm(spec, name) for name in arms),
            baseline=baseline or arms[0],
            items=tuple(items),
            repeat=repeat,
            warm_up_items=_WARM_UP_BATCHES * spec.width if warm_up_items is None else warm_up_items,
        )
    except ValueError as error:  # pydantic's own is one
        raise UsageError(_first_message(error)) from error


def _drafter(spec: GenerateSpec, arms: Sequence[str], settings: Settings) -> JsonObject:
    """Load options of the model that guesses, where one of the arms lets it."""
    if spec.draft is None or not {"draft", "auto", "default"}.intersection(arms):
        return {}
    path = resolve(spec.draft.model.name, settings)
    return draft_options(spec.draft.model, path, digest_checkpoint(path, settings), settings)


def bench_arm(spec: GenerateSpec, name: str) -> BenchArm:
    """The arm of that name for a job of this spec; raises UsageError for a name that nothing has.

    Shadow rows are off: a benchmark holds every answer against the reference arm's, and the first row of each run
    would be decoded twice, which a job of thousands of rows does not notice and a benchmark of a few does.
    """
    if name == LIBRARY_ARM:
        return BenchArm(name=name, runner="mlx_lm", options=run_options(spec))
    if name not in _ARMS:
        raise UsageError(f"no arm {name!r}", hint=f"arms are {', '.join(ARM_NAMES)}")
    if name == "draft" and spec.draft is None:
        raise UsageError("the arm draft needs `draft:` with a model in the spec")
    changes, uses, without = _ARMS[name]
    terms = spec.terms.model_copy(update={"shadow": 0.0})
    options = run_options(spec.model_copy(update={**changes, "contract": terms}))
    return BenchArm(name=name, options=options, uses=uses, without=without)


def read_items(source: Path, spec: GenerateSpec, settings: Settings, *, first: int | None) -> list[BenchItem]:
    """The first requests of a file, checked as `submit` checks them.

    Raises:
        InputInvalid: a line is invalid, or there is none.
        SpecError: the file cannot be read, or asks for another endpoint than the spec.
    """
    options = IntakeOptions(
        kind=JobKind.GENERATE,
        model=spec.model.name,
        raw=spec.endpoint is Endpoint.COMPLETIONS,
        max_line_bytes=settings.max_line_bytes,
    )
    with tempfile.TemporaryDirectory() as folder:
        store = ArtifactStore(Path(folder).as_uri())
        store.ensure()
        report = intake(_first_lines(source, first), options, store, errors_path=None)
        items = parse_items(store.read_bytes(report.artifact.uri))
    if report.endpoint is not spec.endpoint:
        raise SpecError(f"{source} asks for {report.endpoint}, the spec for {spec.endpoint}")
    return [
        BenchItem(custom_id=one.custom_id, body=one.body or {}, seed=item_seed(spec.seed, one.custom_id))
        for one in items
    ]


def _first_lines(source: Path, first: int | None) -> io.BytesIO:
    """As many lines that say something as are wanted; a benchmark holds all its items in memory anyway."""
    try:
        with source.open("rb") as stream:
            said = (line for line in stream if line.strip())
            return io.BytesIO(b"".join(said if first is None else islice(said, first)))
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror or error}", place=str(source)) from error


def _first_message(error: ValueError) -> str:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
