"""From facts to advice: a pure function. One line for each way of going faster, built or not."""

from __future__ import annotations

import bisect

from pipeline.advice.facts import DraftFacts, HostFacts, ModelFacts, WorkloadFacts
from pipeline.advice.lines import NO_GAIN, UNKNOWN_GAIN, Chosen, Gain, Mechanism, Room
from pipeline.advice.unbuilt import dflash, diffusion, kv_quantization, mtp
from pipeline.checkpoints.config_keys import Keys
from pipeline.checkpoints.footprint import Footprint
from pipeline.specs import GenerateSpec

#: Tokens that one forward reads of prompts.
PREFILL_TOKENS = 512

#: Of the budget, what is left alone, and what shared prefixes may take, at most so many bytes.
RESERVE, PREFIX_SHARE, PREFIX_BYTES = 0.08, 0.1, 2 << 30

#: Where fewer prompt tokens than this are shared, keeping prefixes is not worth a word.
_SHARED_ENOUGH = 0.05

_BASIS = "SmolLM2-135M in float32 on a 2-core Linux CPU; `pipeline bench` measures here"

#: Output tokens/s at a width against width 1, measured once; see ``_BASIS``.
_WIDTH_GAIN = {1: 1.0, 4: 2.7, 8: 4.2, 16: 6.6, 32: 7.3}

#: What a forward over eight tokens of one row costs against one token, least and most seen; see ``_BASIS``.
_VERIFY_COST = (1.06, 2.0)

#: Prompt lookup at one row, from free prose to extracting; see ``_BASIS``.
_LOOKUP_GAIN = (0.97, 3.3)


def find_room(spec: GenerateSpec, footprint: Footprint, work: WorkloadFacts | None, host: HostFacts) -> Room:
    """How many rows fit, and how many will be decoded together."""
    budget = host.budget_bytes // host.slots
    ceiling = spec.contract.ceilings.resident_bytes if spec.contract else None
    budget = min(budget, ceiling) if ceiling else budget
    tokens = work.row_tokens.most if work is not None and work.row_tokens is not None else None
    if tokens is None or not footprint.caches:
        return Room(budget, tokens, None, spec.width)
    fused = host.device == "metal"
    columns = min(PREFILL_TOKENS, tokens)
    reading = footprint.step_bytes(1, columns, context=tokens, fused_attention=fused)
    left = int(budget * (1 - RESERVE)) - reading - _prefix_limit(spec, footprint, work, budget)
    rows = footprint.rows_within(left, tokens, fused_attention=fused)
    if spec.contract is not None and spec.contract.ceilings.kv_bytes is not None:
        rows = min(rows, spec.contract.ceilings.kv_bytes // footprint.row_bytes(tokens))
    wanted = spec.width if work is None else min(spec.width, max(1, work.items * work.choices // work.sampled))
    return Room(budget, tokens, rows, min(rows, wanted))


def advise(
    spec: GenerateSpec,
    model: ModelFacts,
    work: WorkloadFacts | None,
    host: HostFacts,
    draft: DraftFacts | None = None,
) -> list[Mechanism]:
    """All lines, those that are built first."""
    footprint = model.footprint(host.device, spec.model.dtype)
    room = find_room(spec, footprint, work, host)
    return [
        _batching(spec, footprint, room, _is_measured(model, host)),
        _prefixes(spec, footprint, work, room),
        _lookup(spec, footprint, work, room, _is_measured(model, host)),
        _drafter(spec, footprint, draft, host, room),
        mtp(model, draft),
        dflash(draft),
        diffusion(model),
        kv_quantization(model, footprint, room),
    ]


def state_reason(footprint: Footprint) -> str | None:
    """Why rows cannot go back over tokens they have read; None where they can."""
    if footprint.state_bytes:
        return "recurrent layers keep one state and no way back to an earlier one"
    if footprint.family == "llama4":
        return "its chunked caches have no form for several rows"
    return None


# --- built -------------------------------------------------------------------------------------------------------------


def _batching(spec: GenerateSpec, footprint: Footprint, room: Room, is_measured: bool) -> Mechanism:
    name = "continuous batching"
    if footprint.family == "llama4":
        return Mechanism(name, "no", "no", None, NO_GAIN, "its chunked caches have no form for several rows: width 1")
    if room.rows is None or room.row_tokens is None:
        why = f"how many rows fit is not known; up to width {spec.width}, bounded by what the worker measures"
        return Mechanism(name, "yes", "yes", None, _width_gain(spec.width, is_measured), why)
    if not room.rows:
        why = f"not one row of {room.row_tokens:,} tokens fits: the job would fail; give it more memory"
        return Mechanism(name, "no", "no", footprint.batch_bytes(1, room.row_tokens), NO_GAIN, why)
    limit = "memory" if room.width == room.rows else "the number of rows"
    reason = "the spec's width" if room.width == spec.width else limit
    why = f"{room.rows:,} rows of {room.row_tokens:,} tokens fit; width {room.width} by {reason}"
    memory = footprint.batch_bytes(room.width, room.row_tokens)
    return Mechanism(name, "yes", "yes" if room.width > 1 else "no", memory, _width_gain(room.width, is_measured), why)


def _prefixes(spec: GenerateSpec, footprint: Footprint, work: WorkloadFacts | None, room: Room) -> Mechanism:
    name = "shared prefixes"
    if (reason := state_reason(footprint)) is not None:
        return Mechanism(name, "no", "no", None, NO_GAIN, f"a prefix cannot be branched: {reason}")
    shared = None if work is None else work.shared
    if shared is None:
        chosen: Chosen = "yes" if spec.prefix_cache else "no"
        return Mechanism(name, "yes", chosen, None, UNKNOWN_GAIN, "what prompts share is not known without a tokenizer")
    memory = _prefix_limit(spec, footprint, work, room.budget_bytes)
    basis = f"{shared.share:.0%} of the sample's prompt tokens need not be read; decoding is as before"
    gain = Gain(1.0, round(1 / (1 - shared.share), 2), basis)
    if not spec.prefix_cache:
        return Mechanism(name, "yes", "no", 0, gain, "prefix_cache: false in the spec")
    if shared.share < _SHARED_ENOUGH:
        return Mechanism(name, "yes", "no", 0, gain, "prompts begin with hardly anything in common; it costs nothing")
    why = f"all prompts begin with the same {shared.common:,} tokens; beginnings of {shared.kept:,} tokens are kept"
    return Mechanism(name, "yes", "yes", memory, gain, why)


def _lookup(
    spec: GenerateSpec, footprint: Footprint, work: WorkloadFacts | None, room: Room, is_measured: bool
) -> Mechanism:
    name = "prompt lookup"
    if (reason := state_reason(footprint)) is not None:
        return Mechanism(name, "no", "no", None, NO_GAIN, f"a wrong guess cannot be taken back: {reason}")
    columns = spec.lookup.max_draft + 1
    memory = _verify_bytes(footprint, room, columns)
    gain = _lookup_gain(work, is_measured)
    if spec.accelerate in ("off", "draft"):
        return Mechanism(name, "yes", "no", memory, gain, f"accelerate: {spec.accelerate} in the spec")
    chosen: Chosen = "yes" if spec.accelerate == "lookup" else "measured"
    if work is not None and work.replay is not None:
        seen = f"answers of {work.replay.job} gave {work.replay.tokens_per_forward:.2f} tokens a forward"
    elif work is not None and work.repeats is not None:
        seen = (
            f"how far answers copy is not known; {work.copy_words:.0%} of prompts have a word such as rewrite or extract, "
            f"prompts repeat {work.repeats:.0%} of themselves"
        )
    else:
        seen = "how far answers copy is not known"
    return Mechanism(name, "yes", chosen, memory, gain, f"{seen}; pays most where few rows are decoded together")


def _drafter(
    spec: GenerateSpec, footprint: Footprint, draft: DraftFacts | None, host: HostFacts, room: Room
) -> Mechanism:
    name = "full-model drafter"
    if (reason := state_reason(footprint)) is not None:
        return Mechanism(name, "no", "no", None, NO_GAIN, f"a wrong guess cannot be taken back: {reason}")
    if draft is None:
        return Mechanism(
            name, "unknown", "no", None, UNKNOWN_GAIN, "no drafter is named: draft: in the spec, or --draft"
        )
    if draft.model.draft_kind is not None:
        why = f"{draft.model.name} is a {draft.model.draft_kind} drafter, which is no language model of its own"
        return Mechanism(name, "no", "no", None, NO_GAIN, why)
    small = draft.model.footprint(host.device, spec.draft.model.dtype if spec.draft else "auto")
    memory = small.weights_bytes
    if room.row_tokens is not None:
        memory += small.batch_bytes(max(1, room.width), room.row_tokens)
    if draft.difference is not None:
        return Mechanism(name, "no", "no", memory, NO_GAIN, f"another vocabulary: {draft.difference}")
    if (reason := state_reason(small)) is not None:
        return Mechanism(name, "no", "no", memory, NO_GAIN, f"the drafter cannot go back: {reason}")
    ways: dict[str, Chosen] = {"draft": "yes", "auto": "measured"}
    chosen = ways.get(spec.accelerate, "no")
    share = small.weights_bytes / max(1, footprint.weights_bytes)
    why = f"same tokenizer by its files; its weights are {share:.0%} of the model's; encoding is probed at load"
    if memory + footprint.weights_bytes > room.budget_bytes:
        return Mechanism(name, "no", "no", memory, NO_GAIN, "does not fit beside the model")
    if spec.draft is None:
        return Mechanism(name, "yes", "no", memory, UNKNOWN_GAIN, f"{why}; not in the spec")
    return Mechanism(name, "yes", chosen, memory, UNKNOWN_GAIN, why)


# --- figures -----------------------------------------------------------------------------------------------------------


def _is_measured(model: ModelFacts, host: HostFacts) -> bool:
    """Whether what was measured is of such a device and such a kind of model."""
    return host.device == "cpu" and not Keys(model.config).get("num_experts_per_tok")


def _width_gain(width: int, is_measured: bool) -> Gain:
    """Between the measured widths around it; the worker itself measures which width is fastest."""
    if width <= 1:
        return Gain(1.0, 1.0, "one row")
    widths = list(_WIDTH_GAIN)
    place = min(bisect.bisect_left(widths, width), len(widths) - 1)
    low = widths[place] if widths[place] <= width else widths[place - 1]
    least, most = _WIDTH_GAIN[low], _WIDTH_GAIN[widths[place]] if widths[place] >= width else None
    if not is_measured:
        return Gain(None, None, f"unknown here; {least:g}x at width {low} was measured of {_BASIS}")
    return Gain(least, most, _BASIS)


def _lookup_gain(work: WorkloadFacts | None, is_measured: bool) -> Gain:
    replay = None if work is None else work.replay
    if replay is None:
        least, most, basis = _LOOKUP_GAIN[0], _LOOKUP_GAIN[1], f"one row, from free prose to extracting, of {_BASIS}"
    else:
        least, most = (round(max(_LOOKUP_GAIN[0], replay.tokens_per_forward / cost), 2) for cost in _VERIFY_COST[::-1])
        basis = f"one row, {replay.items:,} answers of {replay.job} replayed; a check costs what it did for {_BASIS}"
    if not is_measured:
        return Gain(None, None, f"unknown here; {least:g} to {most:g}x would be that of {basis}")
    return Gain(least, most, basis)


def _verify_bytes(footprint: Footprint, room: Room, columns: int) -> int | None:
    """What a forward over several tokens of each row takes beyond one over a single token."""
    if room.row_tokens is None:
        return None
    rows, context = max(1, room.width), room.row_tokens
    wide = footprint.step_bytes(rows, columns, context=context, logits_columns=columns)
    return max(0, wide - footprint.step_bytes(rows, 1, context=context))


def _prefix_limit(spec: GenerateSpec, footprint: Footprint, work: WorkloadFacts | None, budget: int) -> int:
    """Bytes that kept prefixes come to."""
    if work is None or work.shared is None or not spec.prefix_cache or state_reason(footprint) is not None:
        return 0
    if work.shared.share < _SHARED_ENOUGH:
        return 0
    per_token = footprint.dtype_bytes * sum(one.token_values for one in footprint.caches)
    return min(work.shared.kept * per_token, int(budget * PREFIX_SHARE), PREFIX_BYTES)
