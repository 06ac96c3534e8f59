"""A benchmark's document in words: its findings, its table, what each arm really ran. Shared by terminal and page."""

from __future__ import annotations

from pipeline.ports import JsonObject
from pipeline.reports.page import Finding, Table

#: Shown where a figure was not measured.
ABSENT = "-"


def findings(document: JsonObject) -> tuple[Finding, ...]:
    """One sentence for each arm, ratios first, then what was refused."""
    told = [_finding(arm, document) for arm in document["arms"]]
    return tuple(sorted(told, key=lambda finding: finding.level == "bad" and "no ratio" in finding.text))


def _finding(arm: JsonObject, document: JsonObject) -> Finding:
    name, baseline = arm["name"], document["method"]["baseline"]
    if arm["refused"]:
        what = "not a fit baseline" if name == baseline else "no ratio"
        return Finding("bad", f"{name}: {what}, {arm['refused']}.")
    rate = show_rate(arm["summary"]["tokens_per_s"])
    if name == baseline:
        return Finding(
            "plain", f"{name}: {rate} output tokens/s; ratios are against this arm. {answers(arm, document)}."
        )
    ratio = arm["ratio"]
    if ratio is None:
        return Finding("bad", f"{name}: no ratio, an arm made no tokens.")
    low, high = ratio["interval"] or (0.0, float("inf"))
    level = "good" if low > 1 else "bad" if high < 1 else "plain"
    count = len(ratio["per_run"])
    spread = f"{ratio['low']:.2f} to {ratio['high']:.2f} in {count} repetition{'' if count == 1 else 's'}"
    interval = f"; 95 % interval {low:.2f} to {high:.2f}" if ratio["interval"] else ""
    text = f"{name}: {ratio['median']:.2f} times {baseline} ({spread}{interval}). {answers(arm, document)}."
    return Finding(level, text)  # type: ignore[arg-type]


def answers(arm: JsonObject, document: JsonObject) -> str:
    """How the arm's answers stand to those of the reference arm."""
    standing = arm["correspondence"]
    items, reference = document["workload"]["items"], document["method"]["reference"]
    differing = len(standing["differing"])
    match standing["status"]:
        case "reference":
            return "The other arms' answers are held against its own"
        case "equal":
            return f"The same {standing['compared']} as {reference} on all {items} items"
        case "ties":
            gap = f"{standing['largest_margin']:.1g}"
            return f"{differing} of {items} answers part from {reference}'s at a tie (logits apart by at most {gap})"
        case "differs":
            return f"{differing} of {items} answers are other ones than {reference}'s, of nearly as many tokens"
        case _:
            return "Its answers do not correspond"


def tables(document: JsonObject) -> tuple[Table, ...]:
    """All of them, those without rows left out."""
    found = (build(document) for build in (result_table, cost_table, path_table, speculation_table, gate_table))
    return tuple(table for table in found if table is not None)


def result_table(document: JsonObject) -> Table:
    """Speed: one row for each arm."""
    headings = ("arm", "output tokens/s", "from", "to", "ratio", "95 % interval", "end to end", "answers")
    return Table(headings, tuple(_result_row(arm, document["method"]["baseline"]) for arm in document["arms"]))


def _result_row(arm: JsonObject, baseline: str) -> tuple[str, ...]:
    rate, ratio = arm["summary"]["tokens_per_s"], arm["ratio"]
    interval = ratio["interval"] if ratio else None
    return (
        arm["name"],
        *(f"{rate[name]:,.1f}" for name in ("median", "min", "max")),
        f"{ratio['median']:.2f}" if ratio else "1" if arm["name"] == baseline and not arm["refused"] else ABSENT,
        f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else ABSENT,
        show_duration(arm["summary"]["seconds"]["median"]),
        "refused" if arm["refused"] else arm["correspondence"]["status"],
    )


def cost_table(document: JsonObject) -> Table:
    """Waits and memory: one row for each arm."""
    headings = (
        *("arm", "first token p50", "p95", "between tokens p50", "p95", "whole item p50", "p95"),
        *("peak resident", "ru_maxrss", "peak MLX"),
    )
    waits = tuple(f"{name}_{share}_s" for name in ("ttft", "itl", "done") for share in ("p50", "p95"))
    sizes = ("resident_peak_bytes", "ru_maxrss_bytes", "mlx_peak_bytes")
    rows = [
        (
            arm["name"],
            *(show_duration(_median(arm["summary"], name)) for name in waits),
            *(show_size(_most(arm["summary"], name)) for name in sizes),
        )
        for arm in document["arms"]
    ]
    return Table(headings, tuple(rows))


def path_table(document: JsonObject) -> Table:
    """What each arm really ran."""
    rows = []
    for arm in document["arms"]:
        counters = ", ".join(f"{name} {value:,}" for name, value in arm["path"]["counters"].items())
        runner = "mlx-lm's BatchGenerator" if arm["runner"] == "mlx_lm" else "our engine"
        rows.append((arm["name"], runner, ", ".join(arm["path"]["seen"]) or "none", counters or "none"))
    return Table(("arm", "runs on", "mechanisms seen", "counters, all repetitions"), tuple(rows), is_prose=True)


def speculation_table(document: JsonObject) -> Table | None:
    """Guesses and how they fared; None where no arm guessed."""
    rows = []
    for arm in document["arms"]:
        for name, found in arm["speculation"].items():
            rows.append(
                (
                    arm["name"],
                    name,
                    f"{found['proposed']:,}",
                    f"{100 * found['acceptance']:.1f} %",
                    f"{100 * found['position_acceptance']:.1f} %",
                    f"{found['mean_width']:.2f}",
                    f"{found['mean_accepted_prefix']:.2f}",
                    f"{found['paused_rounds']:,}",
                    ", ".join(f"{key.removeprefix(f'{name}_')} {value}" for key, value in found["declines"].items())
                    or "none",
                )
            )
    headings = (
        *("arm", "mechanism", "guessed", "taken", "taken of tested", "mean width", "mean accepted prefix"),
        *("paused", "declines"),
    )
    return Table(headings, tuple(rows)) if rows else None


def gate_table(document: JsonObject) -> Table | None:
    """What checks of accelerations found; None where none spoke."""
    seen: dict[tuple[str, ...], int] = {}
    for arm in document["arms"]:
        for one in arm["verdicts"]:
            key = (arm["name"], one["mechanism"], one["outcome"], one["code"], one["reason"])
            seen[key] = seen.get(key, 0) + one["count"]
    headings = ("arm", "mechanism", "outcome", "code", "reason", "count")
    return Table(headings, tuple((*key, f"{count:,}") for key, count in seen.items()), is_prose=True) if seen else None


# --- numbers ----------------------------------------------------------------------------------------------------------


def show_rate(triple: JsonObject) -> str:
    """``81.2 (79.0 to 84.5)``."""
    return f"{triple['median']:,.1f} ({triple['min']:,.1f} to {triple['max']:,.1f})"


def show_duration(seconds: float | None) -> str:
    """``850 ms``, ``4.21 s``, ``73 s``."""
    if seconds is None:
        return ABSENT
    if seconds < 1:
        return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.0f} s"


def show_size(size: float | None) -> str:
    if size is None:
        return ABSENT
    return f"{size / 2**20:,.0f} MiB" if size < 2**30 else f"{size / 2**30:,.2f} GiB"


def _median(summary: JsonObject, name: str) -> float | None:
    return summary[name]["median"] if name in summary else None


def _most(summary: JsonObject, name: str) -> float | None:
    return summary[name]["max"] if name in summary else None
