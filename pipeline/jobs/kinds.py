"""What each kind of job asks of its engine: which model to hold, with which options, and where a part may end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from pipeline.checkpoints.describe import describe
from pipeline.checkpoints.digest import digest as digest_checkpoint
from pipeline.checkpoints.resolve import resolve
from pipeline.checkpoints.trust import may_run_code
from pipeline.config import Settings
from pipeline.db.values import JobView
from pipeline.errors import ModelChanged
from pipeline.ports import EngineRequest, JsonObject
from pipeline.specs import EmbedSpec, GenerateSpec, IndexSpec, JobSpec, ModelRef, RerankSpec
from pipeline.specs.contract import NOT_SEED_STABLE

#: Kinds whose answers do not share a forward's rounding with fixed neighbours: a part may end after any answer.
FREE_PARTS = frozenset({"generate", "index"})

#: What a child may hold of the host's memory while it tries a suspect, and what it gets beside a large model's weights.
TRIAL_SHARE, SECOND_TRIAL_SHARE, TRIAL_ROOM_BYTES = 0.5, 0.85, 1 << 30


#: Kinds that mlx-lm loads: the only ones whose checkpoints can bring code that would run.
LANGUAGE_KINDS = frozenset({"generate", "rerank"})


@dataclass(frozen=True, slots=True)
class EngineWork:
    """What a shard of a job needs from a child. ``marks`` go on record with what the engine says of itself."""

    request: EngineRequest
    options: JsonObject
    marks: JsonObject = field(default_factory=dict)


def engine_work(spec: JobSpec, job: JobView, settings: Settings) -> EngineWork:
    """The request and run options of a job's shards; raises ModelNotFound, ModelChanged, ModelNotTrusted."""
    if isinstance(spec, IndexSpec):
        return EngineWork(EngineRequest(kind="index", model_path=None), {})
    path, digest = _find_pinned(spec.model.name, job.model_digest, job, settings)
    options = run_options(spec)
    drafter = _drafter_options(spec, job, settings)
    if describe(path).is_fake:
        kind, load_options = "fake", {"kind": spec.kind, **options, **drafter}
    else:
        kind, load_options = spec.kind, {**load_options_of(spec, options), **drafter}
    if kind == "generate":
        load_options["budget_bytes"] = _budget_of_child(settings)
    trust_code = kind in LANGUAGE_KINDS and may_run_code(spec.model.name, path, settings)
    request = EngineRequest(kind, str(path), digest, spec.model.dtype, load_options, trust_code=trust_code)  # type: ignore[arg-type]
    return EngineWork(request, options, _marks_of(spec))


def _budget_of_child(settings: Settings) -> int:
    """What one child may hold with its rows: an equal share of what the worker's engines may, for each slot."""
    return settings.engine_budget_bytes(psutil.virtual_memory().total) // settings.slots


def _find_pinned(name: str, pinned: str | None, job: JobView, settings: Settings) -> tuple[Path, str]:
    """Folder and digest of a model of the job; raises ModelNotFound, and ModelChanged where it is another by now."""
    path = resolve(name, settings)
    digest = digest_checkpoint(path, settings)
    if pinned is not None and digest != pinned:
        raise ModelChanged(f"{name} is not the model that {job.id} was submitted with")
    return path, digest


def _drafter_options(spec: JobSpec, job: JobView, settings: Settings) -> JsonObject:
    """Load options of a model that guesses: where it is, that it is the pinned one, and how to load it."""
    drafter = drafter_of(spec)
    if drafter is None:
        return {}
    path, digest = _find_pinned(drafter.name, drafter.digest, job, settings)
    return draft_options(drafter, path, digest, settings)


def draft_options(drafter: ModelRef, path: Path, digest: str, settings: Settings) -> JsonObject:
    """Load options of the model that guesses, found at ``path``; raises ModelNotTrusted."""
    return {
        "draft_path": str(path),
        "draft_digest": digest,
        "draft_dtype": drafter.dtype,
        "draft_trust_code": may_run_code(drafter.name, path, settings),
    }


def drafter_of(spec: JobSpec) -> ModelRef | None:
    """The model that guesses, if the job uses one: whoever claims it must hold that, too."""
    drafter = spec.drafter if isinstance(spec, GenerateSpec) else None
    return None if drafter is None else drafter.model


def _marks_of(spec: JobSpec) -> JsonObject:
    return {"promise": NOT_SEED_STABLE} if isinstance(spec, GenerateSpec) and not spec.is_seed_stable else {}


def on_trial(work: EngineWork, *, again: bool) -> EngineWork:
    """The same work in a child with a smaller ceiling, where a suspect is tried: half the host, if the model fits.

    ``again`` is for a suspect that was alone at a death already: it may have been the ceiling that it died of.
    """
    request = work.request
    folders = [request.model_path or "/nowhere", *filter(None, [request.options.get("draft_path")])]
    weights = sum(path.stat().st_size for folder in folders for path in Path(folder).glob("*.safetensors"))
    total = psutil.virtual_memory().total
    ceiling = min(
        total, max(int(total * (SECOND_TRIAL_SHARE if again else TRIAL_SHARE)), 2 * weights + TRIAL_ROOM_BYTES)
    )
    return replace(work, request=replace(request, memory_bytes=ceiling))


def run_options(spec: GenerateSpec | EmbedSpec | RerankSpec) -> JsonObject:
    """Options of each run, in the words of the engine."""
    match spec:
        case GenerateSpec():
            return {
                "endpoint": spec.endpoint.value,
                "model_name": spec.model.name,
                "sampling": spec.sampling.model_dump(),
                "width": spec.width,
                "accelerate": spec.accelerate,
                "lookup": spec.lookup.model_dump(),
                "draft": None if spec.drafter is None else spec.drafter.model_dump(include={"tokens", "acceptance"}),
                "overflow": spec.overflow,
                "prefix_cache": spec.prefix_cache,
                "report_cache": spec.report_cache,
                "contract": spec.terms.model_dump(),
            }
        case EmbedSpec():
            return {
                "model_name": spec.model.name,
                "overflow": spec.overflow.value,
                "chunk_overlap": spec.chunk_overlap,
                "prompt_name": spec.prompt_name,
                "dimensions": spec.dimensions,
                "normalize": spec.normalize,
                "batch_size": spec.batch_size,
                "inline": spec.vectors == "inline",
            }
        case RerankSpec():
            return {
                "model_name": spec.model.name,
                "instruction": spec.instruction,
                "overflow": spec.overflow.value,
                "batch_size": spec.batch_size,
            }


def load_options_of(spec: GenerateSpec | EmbedSpec | RerankSpec, options: JsonObject) -> JsonObject:
    """Options that a loaded model depends on; a warm child is kept for shards that agree in them."""
    if isinstance(spec, GenerateSpec):
        return {"endpoint": options["endpoint"]}
    return options
