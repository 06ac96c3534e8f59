"""From what was measured to one JSON document: figures of each run, what may be compared, ratios, and verdicts in words.

The document is what is kept; tables and pages are made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median

from pipeline.ports import JsonObject
from pipeline.specs.bench import BenchArm, BenchRequest
from workers.engines.benching.comparison import (
    COUNT_TOLERANCE,
    TIE_BOUNDS,
    Correspondence,
    correspond,
    mechanisms_seen,
    path_reason,
    same_path_reason,
    steadiness_reason,
)
from workers.engines.benching.intervals import Ratio, paired_ratio
from workers.engines.benching.runs import ArmRun, percentile
from workers.engines.benching.session import Session
from workers.engines.benching.surroundings import machine, versions

#: Counters of a mechanism that guesses (:class:`workers.engines.batching.speculation.SpeculationStats`).
_SPECULATION = ("rounds", "drafted_rounds", "paused_rounds", "emitted", "proposed", "positions_tested", "accepted")

#: Name and version of the document's layout.
FORMAT = "pipeline-bench/1"


def build_document(session: Session) -> JsonObject:
    """Everything that was measured, judged."""
    request = session.request
    judged = judge_arms(session)
    return {
        "format": FORMAT,
        "title": request.title,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "model": {
            "name": request.model_name,
            "digest": request.model_digest,
            "numeric_platform": session.info.numeric_platform,
            "context_length": session.info.context_length,
            "load_s": session.load_s,
            "loaded_bytes": session.loaded_bytes,
            **session.info.details,
        },
        "workload": _workload(session),
        "method": {
            "repeat": request.repeat,
            "warm_up_items": min(request.warm_up_items, len(request.items)),
            "order": session.order,
            "baseline": request.baseline,
            "reference": reference_arm(request).name,
            "tie_bound": _tie_bound(session),
            "count_tolerance": COUNT_TOLERANCE,
        },
        "arms": [_arm(session, arm, *judged[arm.name]) for arm in request.arms],
        "is_comparable": all(reason is None for _, reason, _ in judged.values()),
    }


# --- what may be compared ---------------------------------------------------------------------------------------------


def reference_arm(request: BenchRequest) -> BenchArm:
    """Whose answers the others' are held against: the first of our own arms, else the baseline."""
    own = [arm for arm in request.arms if arm.runner == "engine"]
    return own[0] if own else next(arm for arm in request.arms if arm.name == request.baseline)


def judge_arms(session: Session) -> dict[str, tuple[Correspondence, str | None, Ratio | None]]:
    """For each arm how its answers stand, why it is refused (None where it is not), and its ratio to the baseline."""
    request = session.request
    reference = reference_arm(request)
    found: dict[str, tuple[Correspondence, str | None]] = {}
    for arm in request.arms:
        runs = session.runs[arm.name]
        standing = (
            Correspondence("reference", "token ids")
            if arm is reference
            else correspond(
                session.runs[reference.name][0].outcomes,
                runs[0].outcomes,
                is_foreign=arm.runner != reference.runner,
                tie_bound=_tie_bound(session),
                margin_of=session.margin_of,
            )
        )
        found[arm.name] = standing, standing.reason or steadiness_reason(runs) or path_reason(arm, runs)
    baseline = next(arm for arm in request.arms if arm.name == request.baseline)
    unfit = found[baseline.name][1]
    rates = {name: [run.tokens_per_s for run in runs] for name, runs in session.runs.items()}
    judged: dict[str, tuple[Correspondence, str | None, Ratio | None]] = {}
    for arm in request.arms:
        name = arm.name
        standing, reason = found[name]
        if reason is None and unfit is not None:
            reason = f"the baseline {baseline.name} is refused"
        reason = reason or same_path_reason(arm, session.runs[name], baseline, session.runs[baseline.name])
        has_ratio = reason is None and name != request.baseline and min(rates[name] + rates[request.baseline]) > 0
        judged[name] = standing, reason, paired_ratio(rates[name], rates[request.baseline]) if has_ratio else None
    return judged


def _tie_bound(session: Session) -> float:
    return TIE_BOUNDS.get(str(session.info.numeric_platform.get("dtype")), TIE_BOUNDS["float32"])


# --- figures ----------------------------------------------------------------------------------------------------------


def _workload(session: Session) -> JsonObject:
    request = session.request
    outcomes = session.runs[reference_arm(request).name][0].outcomes
    options = request.arms[0].options
    return {
        "items": len(outcomes),
        "erred": sum(1 for one in outcomes if one.error),
        "prompt_tokens": _spread([one.prompt_tokens for one in outcomes if not one.error]),
        "output_tokens": _spread([one.output_tokens for one in outcomes if not one.error]),
        "endpoint": options.get("endpoint"),
        "sampling": options.get("sampling", {}),
        "width": options.get("width"),
    }


def _spread(values: Sequence[int]) -> JsonObject:
    if not values:
        return {"total": 0}
    return {"total": sum(values), "least": min(values), "median": median(values), "most": max(values)}


def _arm(
    session: Session, arm: BenchArm, standing: Correspondence, reason: str | None, ratio: Ratio | None
) -> JsonObject:
    runs = session.runs[arm.name]
    figures = [_figures(run) for run in runs]
    names = [name for name in figures[0] if all(one.get(name) is not None for one in figures)]
    return {
        "name": arm.name,
        "runner": arm.runner,
        "options": arm.options,
        "role": "baseline" if arm.name == session.request.baseline else "arm",
        "correspondence": asdict(standing),
        "refused": reason,
        "ratio": asdict(ratio) if ratio else None,
        "path": {"seen": sorted(mechanisms_seen(runs)), "counters": _summed(runs)},
        "speculation": speculation(_summed(runs)),
        "verdicts": [asdict(verdict) for run in runs for verdict in run.verdicts],
        "summary": {name: _triple([one[name] for one in figures]) for name in names},
        "runs": [
            {**one, "counters": dict(run.counters), **_traces(run)} for one, run in zip(figures, runs, strict=True)
        ],
    }


def _figures(run: ArmRun) -> JsonObject:
    done = [one for one in run.outcomes if one.error is None]

    def of(name: str, share: int) -> float | None:
        values = [getattr(one, name) for one in done]
        return percentile([value for value in values if value is not None], share)

    return {
        "seconds": run.seconds,
        "tokens_per_s": run.tokens_per_s,
        "items_per_s": len(run.outcomes) / run.seconds,
        "output_tokens": run.output_tokens,
        "prompt_tokens": run.prompt_tokens,
        "engine_s": run.engine_s,
        "ttft_p50_s": of("ttft_s", 50),
        "ttft_p95_s": of("ttft_s", 95),
        "first_token_p50_s": of("first_token_s", 50),
        "first_token_p95_s": of("first_token_s", 95),
        "done_p50_s": of("done_s", 50),
        "done_p95_s": of("done_s", 95),
        "itl_p50_s": run.itl_s.get("p50"),
        "itl_p95_s": run.itl_s.get("p95"),
        "resident_start_bytes": run.memory.at_start,
        "resident_peak_bytes": run.memory.peak,
        "ru_maxrss_bytes": run.memory.ru_maxrss,
        "mlx_peak_bytes": run.memory.mlx_peak,
    }


def _traces(run: ArmRun) -> JsonObject:
    waits = sorted(one.itl_mean_s for one in run.outcomes if one.itl_mean_s is not None)
    return {
        "resident": [[round(at, 3), size] for at, size in run.memory.resident],
        "is_maxrss_of_run": run.memory.is_maxrss_of_run,
        "itl_mean_s": [round(wait, 6) for wait in waits],
    }


def _triple(values: Sequence[float]) -> JsonObject:
    return {"median": median(values), "min": min(values), "max": max(values)}


def _summed(runs: Sequence[ArmRun]) -> dict[str, int]:
    """Counters of all runs together: sums, and the most of what is a peak."""
    total: dict[str, int] = {}
    for run in runs:
        for name, value in run.counters.items():
            before = total.get(name, 0)
            total[name] = max(before, value) if name.startswith("peak_") else before + value
    return dict(sorted(total.items()))


def speculation(counters: Mapping[str, int]) -> JsonObject:
    """For each mechanism that guessed, what came of it, from the sums of its counters over the runs.

    ``acceptance`` is of all guesses; ``position_acceptance`` of those that were compared, for what lies behind a wrong
    guess never is. Widths and prefixes are means over the forwards that had a guess.
    """
    found: JsonObject = {}
    for name in ("lookup", "draft"):
        count = {key: counters.get(f"{name}_{key}", 0) for key in _SPECULATION}
        if count["proposed"] and count["drafted_rounds"]:
            found[name] = {
                **count,
                "acceptance": count["accepted"] / count["proposed"],
                "position_acceptance": count["accepted"] / max(1, count["positions_tested"]),
                "mean_width": count["proposed"] / count["drafted_rounds"],
                "mean_accepted_prefix": count["accepted"] / count["drafted_rounds"],
                "declines": {
                    key: value
                    for key, value in counters.items()
                    if value and key.startswith(f"{name}_") and ("declined" in key or "refused" in key)
                },
            }
    return found
