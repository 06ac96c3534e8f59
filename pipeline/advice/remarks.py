"""What else a person should hear before a job runs, and what nobody knows beforehand: pure functions of facts."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.advice.facts import DraftFacts, HostFacts, ModelFacts, WorkloadFacts
from pipeline.advice.mechanisms import state_reason
from pipeline.checkpoints.config_keys import Keys
from pipeline.specs import Endpoint, GenerateSpec


def remarks(spec: GenerateSpec, model: ModelFacts, work: WorkloadFacts | None, host: HostFacts) -> Iterator[str]:
    """One sentence each, those that stop a job first."""
    footprint = model.footprint(host.device, spec.model.dtype)
    if spec.endpoint is Endpoint.CHAT and not model.has_chat_template:
        yield "the model has no chat template: `submit` refuses chat requests; use endpoint: /v1/completions for raw prompts"
    if footprint.weights_bytes > host.budget_bytes:
        yield "the weights alone are more than the budget: no host of this size can run the job"
    if work is not None and work.invalid:
        yield f"{work.invalid} of {work.invalid + work.sampled} sampled lines are invalid: `submit` lists them all"
    if work is not None and work.over_context:
        does = "err" if spec.overflow == "error" else f"are cut ({spec.overflow})"
        yield f"{work.over_context} of {work.sampled} sampled requests do not fit the context with their answer and {does}"
    if model.quantization is not None and host.device == "cpu":
        yield f"packed weights ({model.quantization}) are unpacked to float32 on a CPU, which is many times faster there"
    dtype = model.computing_dtype(host.device, spec.model.dtype)
    if dtype in ("float16", "bfloat16"):
        yield (
            f"{dtype} is coarse: where too many choices are close, the worker says that the same tokens whatever the "
            "batch are a measured rate and no guarantee (docs/contract.md)"
        )
    if Keys(model.config).get("num_experts_per_tok"):
        yield "an expert model chooses inside a forward too; its routers are watched where they are plain linear layers"
    if (reason := state_reason(footprint)) is not None:
        yield f"{reason}: nothing is guessed ahead, and no prefix is shared"
    if host.device == "cpu" and host.blas is not None and not host.blas.startswith(("openblas", "accelerate")):
        yield f"{host.blas} multiplies for MLX, ten times slower than OpenBLAS: see `pipeline doctor`"
    if work is not None and work.features.get("n"):
        yield f"n: {work.sampled} sampled requests ask for {work.choices} answers, each a row of its own"
    if spec.draft is not None and spec.draft.acceptance == "stochastic":
        yield "acceptance: stochastic keeps the distribution and not the seeded stream (docs/contract.md)"


def unknowns(
    spec: GenerateSpec, model: ModelFacts, work: WorkloadFacts | None, host: HostFacts, draft: DraftFacts | None
) -> Iterator[str]:
    """What the advice rests on and could not be found out."""
    yield from model.footprint(host.device, spec.model.dtype).unknown
    if draft is not None:
        yield from (f"{draft.model.name}: {one}" for one in draft.model.footprint(host.device, "auto").unknown)
    if model.context_length is None:
        yield "the context length: no file of the model states it"
    if work is None:
        yield "the requests: no input is named (`input:` in the spec, or --input)"
        return
    if work.prompt_tokens is None:
        yield "figures in tokens: the model has no tokenizer.json"
    elif spec.endpoint is Endpoint.CHAT:
        yield "what the chat template adds to each prompt: it is rendered by the worker only"
    if work.items_are_estimated or work.sampled + work.invalid < work.items:
        about = "about " if work.items_are_estimated else ""
        yield f"all but a sample: {work.sampled + work.invalid:,} of {about}{work.items:,} lines were read"
    if work.replay is None:
        yield "how far answers copy their prompts: no answers to look at (--job names a finished job of the same kind)"
    yield "how long answers really get: max_tokens is taken for each"
    if host.device == "cpu" and host.blas is None:
        yield "what multiplies for MLX on this CPU: no engine was asked (`pipeline doctor` does)"
    if host.device == "metal":
        yield "gains on this Mac: figures are of a CPU, and the worker measures its own"
    yield "what the process holds beside weights and caches: the worker measures it at load"
