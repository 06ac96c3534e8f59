"""A benchmark's document as a page."""

from __future__ import annotations

from pipeline.ports import JsonObject
from pipeline.reports.bench_words import (
    cost_table,
    findings,
    gate_table,
    path_table,
    result_table,
    show_duration,
    show_rate,
    show_size,
    speculation_table,
)
from pipeline.reports.page import Figure, Page, Pairs, Section, Table, render_page
from pipeline.reports.plots import Bar, Curve, Dots, bars, curves, ratios, share_below

_DEFINITIONS = (
    (
        "output tokens/s",
        "Answer tokens, end tokens included, by end-to-end seconds: median, least and most of the runs.",
    ),
    ("end to end", "From handing over all items to the last answer's text: reading, scheduling, decoding. Median."),
    ("ratio", "Output tokens/s of the arm by those of the baseline in the same repetition; the median of them."),
    (
        "95 % interval",
        "Of the geometric mean of the ratios, by Student's t on their logarithms. Repetitions are few, so it is wide.",
    ),
    (
        "first token",
        (
            "From the moment a prompt began to be read to its first token: waiting for a place is not in it. "
            "Percentiles over the items by nearest rank; the median of the runs."
        ),
    ),
    (
        "between tokens",
        "Time between two tokens of one row, all rows together. Tokens that a guess brought come at once.",
    ),
    (
        "peak resident",
        (
            "Largest resident size of the process, sampled every 50 ms; the most of the runs. The weights, and what an "
            "earlier arm left with the allocator, are in it."
        ),
    ),
    (
        "ru_maxrss",
        (
            "The kernel's own peak of the process: of the run where it can be set back (Linux), else of the process so "
            "far; the most of the runs."
        ),
    ),
    ("whole item", "From the start of the run to the item's last token: waiting for a place is in it."),
    ("peak MLX", "Most bytes that MLX had allocated at once during a run; the most of the runs."),
    (
        "answers",
        (
            "Against the reference arm. equal: the same tokens. ties: other tokens only where two logits are closer than "
            "the bound. differs: other answers of as many tokens (within the tolerance). refused: not comparable."
        ),
    ),
    ("mechanisms seen", "What the engine's own counters show at work; an arm that never ran its own gets no ratio."),
    ("taken", "Guessed tokens that the model confirmed, of all that were guessed."),
    ("taken of tested", "The same of those that were compared: what lies behind a wrong guess never is."),
    ("mean width", "Guessed tokens for each forward of a row that had a guess."),
    ("paused", "Forwards in which a row did not guess because its last guesses had failed."),
    ("mean accepted prefix", "Confirmed tokens for each forward of a row that had a guess."),
)


def bench_page(document: JsonObject) -> str:
    """The HTML page."""
    workload, method = document["workload"], document["method"]
    subtitle = (
        f"{document['model']['name']} · {workload['items']} items · width {workload['width']} · "
        f"{method['repeat']} repetition{'' if method['repeat'] == 1 else 's'} · {document['made_at']}"
    )
    sections = (
        Section("Results", (result_table(document),)),
        Section("Throughput", _throughput(document)),
        Section("What each arm really ran", _paths(document)),
        Section("Waits and memory", (cost_table(document), *_waits(document), *_memory(document))),
        Section("Workload and method", (Pairs(_method(document)),)),
        Section("Machine and versions", (Pairs(_machine(document)),)),
        Section("What the numbers mean", (Pairs(_DEFINITIONS),)),
    )
    kept = tuple(section for section in sections if section.blocks)
    return render_page(Page(document["title"], subtitle, findings(document), kept))


def _throughput(document: JsonObject) -> tuple[Figure, ...]:
    rows = [
        Bar(number, arm["name"], rate["median"], rate["min"], rate["max"], show_rate(rate).split(" ")[0])
        for number, arm in enumerate(document["arms"])
        for rate in [arm["summary"]["tokens_per_s"]]
    ]
    label = "Output tokens per second of each arm"
    figures = [Figure(bars(rows, label=label, unit="output tokens/s"), f"{label}: the median, and from least to most.")]
    compared = [
        Dots(number, arm["name"], tuple(ratio["per_run"]), _pair(ratio["interval"]), f"{ratio['median']:.2f}")
        for number, arm in enumerate(document["arms"])
        if (ratio := arm["ratio"])
    ]
    if compared:
        label = f"Ratio to {document['method']['baseline']} in each repetition"
        figures.append(Figure(ratios(compared, label=label, unit="times as fast"), f"{label}, with the 95 % interval."))
    return tuple(figures)


def _pair(interval: list[float] | None) -> tuple[float, float] | None:
    return (interval[0], interval[1]) if interval else None


def _paths(document: JsonObject) -> tuple[Table, ...]:
    tables = (path_table(document), speculation_table(document), gate_table(document))
    return tuple(table for table in tables if table is not None)


def _waits(document: JsonObject) -> tuple[Figure, ...]:
    label = "Mean time between an item's tokens"
    series = []
    for number, arm in enumerate(document["arms"]):
        waits = sorted(1000 * wait for run in arm["runs"] for wait in run["itl_mean_s"])
        if waits:
            series.append(Curve(number, arm["name"], share_below(waits)))
    if not series:
        return ()
    drawing = curves(series, label=label, x_unit="ms between tokens", y_unit="% of items at most so long")
    return (Figure(drawing, f"{label}: how many of the items wait at most so long, all repetitions."),)


def _memory(document: JsonObject) -> tuple[Figure, ...]:
    label = "Resident memory over a run"
    series = [
        Curve(number, arm["name"], tuple((at, size / 2**20) for at, size in arm["runs"][-1]["resident"]))
        for number, arm in enumerate(document["arms"])
    ]
    drawing = curves(series, label=label, x_unit="seconds since the run began", y_unit="MiB", from_nought=False)
    return (Figure(drawing, f"{label}, last repetition. The axis does not begin at 0."),)


def _method(document: JsonObject) -> tuple[tuple[str, str], ...]:
    workload, method = document["workload"], document["method"]
    sampling = ", ".join(f"{name} {value:g}" for name, value in workload["sampling"].items())
    return (
        ("prompts", _spread(workload["prompt_tokens"])),
        ("answers", _spread(workload["output_tokens"])),
        ("items that erred", str(workload["erred"])),
        ("sampling", f"{sampling}, where an item does not say otherwise"),
        ("most rows together", str(workload["width"])),
        ("warm-up", f"{method['warm_up_items']} items through each arm, not measured"),
        ("order", "; ".join(", ".join(names) for names in method["order"])),
        ("reference for answers", method["reference"]),
        ("shadow rows", "off: every answer is held against the reference's here"),
        ("bound of a tie", f"logits apart by at most {method['tie_bound']:g}"),
        ("tolerance of counts", f"{100 * method['count_tolerance']:g} % of the output tokens"),
    )


def _spread(tokens: JsonObject) -> str:
    if not tokens["total"]:
        return "no tokens"
    return f"{tokens['least']:,} to {tokens['most']:,} tokens, median {tokens['median']:g}, {tokens['total']:,} in all"


def _machine(document: JsonObject) -> tuple[tuple[str, str], ...]:
    machine, model = document["machine"], document["model"]
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    return (
        ("processor", f"{machine['processor']}, {machine['threads']} threads for this process"),
        ("memory", f"{show_size(machine['memory_bytes'])}, {show_size(machine['memory_free_bytes'])} free at the end"),
        ("system", machine["system"]),
        ("load at the end", f"{machine['load_1_min']:g} over one minute"),
        ("versions", versions),
        ("computes on", ", ".join(f"{name} {value}" for name, value in model["numeric_platform"].items())),
        ("checkpoint", f"{model['name']} ({model.get('model_type')}), sha256 {model['digest']}"),
        ("load", f"{show_duration(model['load_s'])}, then {show_size(model['loaded_bytes'])} resident"),
    )
