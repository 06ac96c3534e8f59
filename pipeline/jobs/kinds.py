"""What each kind of job asks of its engine: which model to hold, with which options, and where a part may end."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from pipeline.specs import EmbedSpec, GenerateSpec, IndexSpec, JobSpec, RerankSpec

#: Kinds whose answers do not share a forward's rounding with fixed neighbours: a part may end after any answer.
FREE_PARTS = frozenset({"generate", "index"})

#: What a child may hold of the host's memory while it tries a suspect, and what it gets beside a large model's weights.
TRIAL_SHARE, SECOND_TRIAL_SHARE, TRIAL_ROOM_BYTES = 0.5, 0.85, 1 << 30


#: Kinds that mlx-lm loads: the only ones whose checkpoints can bring code that would run.
LANGUAGE_KINDS = frozenset({"generate", "rerank"})


@dataclass(frozen=True, slots=True)
class EngineWork:
    """What a shard of a job needs from a child."""

    request: EngineRequest
    options: JsonObject


def engine_work(spec: JobSpec, job: JobView, settings: Settings) -> EngineWork:
    """The request and run options of a job's shards; raises ModelNotFound, ModelChanged, ModelNotTrusted."""
    if isinstance(spec, IndexSpec):
        return EngineWork(EngineRequest(kind="index", model_path=None), {})
    path = resolve(spec.model.name, settings)
    digest = digest_checkpoint(path, settings)
    if job.model_digest is not None and digest != job.model_digest:
        raise ModelChanged(f"{spec.model.name} is not the model that {job.id} was submitted with")
    options = run_options(spec)
    if describe(path).is_fake:
        kind, load_options = "fake", {"kind": spec.kind, **options}
    else:
        kind, load_options = spec.kind, load_options_of(spec, options)
    trust_code = kind in LANGUAGE_KINDS and may_run_code(spec.model.name, path, settings)
    request = EngineRequest(kind, str(path), digest, spec.model.dtype, load_options, trust_code=trust_code)  # type: ignore[arg-type]
    return EngineWork(request, options)


def on_trial(work: EngineWork, *, again: bool) -> EngineWork:
    """The same work in a child with a smaller ceiling, where a suspect is tried: half the host, if the model fits.

    ``again`` is for a suspect that was alone at a death already: it may have been the ceiling that it died of.
    """
    request = work.request
    weights = sum(path.stat().st_size for path in Path(request.model_path or "/nowhere").glob("*.safetensors"))
    total = psutil.virtual_memory().total
    ceiling = min(
        total, max(int(total * (SECOND_TRIAL_SHARE if again else TRIAL_SHARE)), 2 * weights + TRIAL_ROOM_BYTES)
    )
    return EngineWork(replace(request, memory_bytes=ceiling), work.options)


def run_options(spec: GenerateSpec | EmbedSpec | RerankSpec) -> JsonObject:
    """Options of each run, in the words of the engine."""
    match spec:
        case GenerateSpec():
            return {
                "endpoint": spec.endpoint.value,
                "model_name": spec.model.name,
                "sampling": spec.sampling.model_dump(),
                "width": spec.width,
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
