"""A job's measurements from those of its shards: what adds up is added, what does not is weighted or the worst is taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.cli.output import show_bytes, show_seconds

if TYPE_CHECKING:
    from pipeline.db.values import Measurement

#: What people are shown, in this order; names are those of ``metrics``.
LABELS: Mapping[str, str] = {
    "queue_wait_s": "queue wait",
    "model_load_s": "model load",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "tokens_per_s": "tokens/s",
    "items_per_s": "items/s",
    "ttft_p50_s": "time to first token, p50",
    "ttft_p95_s": "time to first token, p95",
    "itl_p50_s": "between tokens, p50",
    "itl_p95_s": "between tokens, p95",
    "engine_busy_s": "inside the engine",
    "parent_cpu_s": "CPU of the parent",
    "peak_rss_bytes": "peak memory of a child",
}


def aggregate(rows: Sequence[Measurement]) -> dict[str, float]:
    """One value per name.

    Tokens, counts and seconds are summed; memory, waits and 95th percentiles are the worst shard's; rates are over the
    engines' busy time; a median is the shards' medians weighted by their items. Readings of a clock are left out.
    """
    by_name: defaultdict[str, list[Measurement]] = defaultdict(list)
    for row in rows:
        if not row.name.endswith("_monotonic_s"):
            by_name[row.name].append(row)
    busy = _per_shard(by_name["engine_busy_s"])
    items = {shard: rate * busy.get(shard, 0.0) for shard, rate in _per_shard(by_name["items_per_s"]).items()}
    result: dict[str, float] = {}
    for name, found in by_name.items():
        if not found:
            continue
        values = [row.value for row in found]
        if name in ("tokens_per_s", "items_per_s"):
            result[name] = _weighted(found, busy)
        elif "_p50" in name:
            result[name] = _weighted(found, items)
        elif "_p95" in name or name.endswith("_wait_s") or found[0].unit == "bytes":
            result[name] = max(values)
        else:
            result[name] = sum(values)
    return result


def show_measures(values: Mapping[str, float]) -> list[tuple[str, str]]:
    """(label, text) of those that people are shown; nothing for what was not measured or is nought."""
    return [(label, _show(name, values[name])) for name, label in LABELS.items() if values.get(name)]


def _show(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return show_bytes(value)
    if "_per_s" in name:
        return f"{value:,.1f}"
    return show_seconds(value) if "_s" in name else f"{value:,.0f}"


def _per_shard(rows: Sequence[Measurement]) -> dict[int | None, float]:
    """The last attempt's value of each shard."""
    return {row.shard_id: row.value for row in rows}


def _weighted(rows: Sequence[Measurement], weights: Mapping[int | None, float]) -> float:
    latest = _per_shard(rows)
    total = sum(weights.get(shard, 0.0) for shard in latest)
    if total <= 0:
        return sum(latest.values()) / len(latest)
    return sum(value * weights.get(shard, 0.0) for shard, value in latest.items()) / total
