"""Advice as a person reads it: facts, the table of mechanisms, remarks, and what is not known."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

import click

from pipeline.advice.facts import Spread, WorkloadFacts
from pipeline.advice.lines import NO_GAIN, UNKNOWN_GAIN, Gain, Mechanism
from pipeline.advice.report import Report
from pipeline.cli.output import count_of, show_bytes

#: Widths of the columns before the last one, which takes the rest.
_COLUMNS = (("MECHANISM", 19), ("POSSIBLE", 8), ("CHOSEN", 8), ("MEMORY", 10), ("GAIN", 11))

#: On a terminal narrower than this the reasons stand below each line.
_NARROW = 100


def show_report(report: Report) -> None:
    """Print it, as wide as the terminal is, up to 140 columns."""
    width = max(60, min(140, shutil.get_terminal_size().columns))
    for name, text in _facts(report):
        _hang(f"{name.ljust(9)} ", text, width)
    click.echo()
    _table(report.mechanisms, width)
    for heading, lines in (("Remarks", report.remarks), ("Not known", report.unknown)):
        if lines:
            click.echo(f"\n{heading}")
            for line in lines:
                _hang("- ", line, width)


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    model, footprint, host, room = report.model, report.footprint, report.host, report.room
    words = [
        f"{model.name} ({footprint.family})",
        f"{show_bytes(model.weights.stored_bytes)} stored as {model.quantization or model.dtype}",
        f"{show_bytes(footprint.weights_bytes)} computed in {report.dtype}",
    ]
    yield "model", ", ".join(words)
    if footprint.caches:
        kept = [f"{show_bytes(footprint.token_bytes)} a token" if footprint.token_bytes else ""]
        kept.append(f"{show_bytes(footprint.window_bytes)} in full windows" if footprint.window_bytes else "")
        kept.append(f"{show_bytes(footprint.state_bytes)} of state" if footprint.state_bytes else "")
        yield "a row", ", ".join(word for word in kept if word)
    if report.work is not None:
        yield "requests", _requests(report.work)
        yield "prompts", _prompts(report.work)
    system = f" ({host.system})" if host.system else ""
    blas = f", {host.blas}" if host.blas else ""
    budget = f"{show_bytes(room.budget_bytes)} for one engine"
    yield "host", f"{host.device}{system}, {show_bytes(host.memory_bytes)} of memory, {budget}{blas}"


def _requests(work: WorkloadFacts) -> str:
    about = "about " if work.items_are_estimated else ""
    words = [f"{about}{count_of(work.items, 'item')}"]
    if work.sampled + work.invalid < work.items:
        words.append(f"{work.sampled:,} sampled")
    sampling = "greedy" if work.greedy == 1 else f"{work.greedy:.0%} greedy" if work.greedy else "sampled at random"
    words += [sampling, f"max_tokens {_spread(work.answer_tokens)}"]
    words += [f"{name} in {count:,}" for name, count in work.features.items()]
    return ", ".join(words)


def _prompts(work: WorkloadFacts) -> str:
    if work.prompt_tokens is None or work.shared is None or work.repeats is None:
        return f"{_spread(work.prompt_chars)} characters"
    return (
        f"{_spread(work.prompt_tokens)} tokens; {work.shared.share:.0%} shared with others, all begin with the same "
        f"{work.shared.common:,}; repeat {work.repeats:.0%} of themselves"
    )


def _spread(spread: Spread) -> str:
    if spread.least == spread.most:
        return f"{spread.most:,}"
    return f"{spread.least:,} to {spread.most:,} (median {spread.median:,}, p95 {spread.p95:,})"


# --- the table ---------------------------------------------------------------------------------------------------------


def _table(mechanisms: Sequence[Mechanism], width: int) -> None:
    first = sum(size + 2 for _, size in _COLUMNS)
    narrow = width < _NARROW
    click.echo("  ".join([*(name.ljust(size) for name, size in _COLUMNS), "" if narrow else "WHY"]).rstrip())
    for one in mechanisms:
        cells = (one.name, one.possible, one.chosen, _memory(one.memory_bytes), _gain(one.gain))
        line = "  ".join(cell.ljust(size) for cell, (_, size) in zip(cells, _COLUMNS, strict=True))
        reasons = [one.why] if one.gain in (NO_GAIN, UNKNOWN_GAIN) else [one.why, f"gain: {one.gain.basis}"]
        if narrow:
            click.echo(line.rstrip())
            for reason in reasons:
                _hang("    ", reason, width)
            continue
        wrapped = [piece for reason in reasons for piece in textwrap.wrap(reason, width - first)]
        click.echo(f"{line}  {wrapped[0]}")
        for piece in wrapped[1:]:
            click.echo(" " * first + piece)


def _memory(size: int | None) -> str:
    if size is None:
        return "-"
    return f"-{show_bytes(-size)}" if size < 0 else show_bytes(size)


def _gain(gain: Gain) -> str:
    if gain.least is None:
        return "-"
    if gain.most is None:
        return f"over {gain.least:g}x"
    return f"{gain.most:g}x" if gain.least == gain.most else f"{gain.least:g}-{gain.most:g}x"


def _hang(head: str, text: str, width: int) -> None:
    click.echo(textwrap.fill(text, width, initial_indent=head, subsequent_indent=" " * len(head)))
