"""What `pipeline status` says of a job's contract: measured values beside ceilings, and what checks found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.measures import aggregate
from pipeline.cli.output import print_table, show_bytes, show_seconds
from pipeline.specs.contract import Contract

if TYPE_CHECKING:
    from pipeline.jobs.status import JobReport

_Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ContractLine:
    """One name of ``measure`` or ``ceilings``; None is what nobody measured, or what has no ceiling."""

    name: str
    measured: float | None
    ceiling: float | None


def _metric(name: str) -> Callable[[_Values], float | None]:
    return lambda values: values.get(name)


def _ratio(over: Sequence[str], under: Sequence[str]) -> Callable[[_Values], float | None]:
    """Sum by sum; None where nothing is below."""

    def divide(values: _Values) -> float | None:
        below = sum(values.get(name, 0.0) for name in under)
        return sum(values.get(name, 0.0) for name in over) / below if below else None

    return divide


#: From the names that contracts use to those of ``metrics``, as :func:`pipeline.cli.measures.aggregate` sums them.
SOURCES: Mapping[str, Callable[[_Values], float | None]] = {
    "output_tokens_per_s": _ratio(["output_tokens"], ["engine_busy_s"]),
    "items_per_s": _metric("items_per_s"),
    "ttft_p50": _metric("ttft_p50_s"),
    "ttft_p95": _metric("ttft_p95_s"),
    "itl_p50": _metric("itl_p50_s"),
    "itl_p95": _metric("itl_p95_s"),
    "request_p50_s": _metric("request_p50_s"),
    "request_p95_s": _metric("request_p95_s"),
    "accepted_per_verify": _ratio(
        ["lookup_accepted", "draft_accepted"], ["lookup_drafted_rounds", "draft_drafted_rounds"]
    ),
    "prefix_hit_rate": _ratio(["prefix_tokens"], ["prefix_tokens", "prompt_tokens_read"]),
    "resident_bytes": _metric("peak_rss_bytes"),
    "kv_bytes": _metric("peak_kv_bytes"),
    "model_start_s": _metric("slowest_model_load_s"),
}


def contract_lines(report: JobReport) -> list[ContractLine]:
    """What the job's own contract asks to see, and each ceiling it sets; nothing without a contract."""
    given = report.job.spec.get("contract")
    if given is None:
        return []
    contract = Contract.model_validate(given)
    loads = [row.value for row in report.metrics if row.name == "model_load_s"]
    values = aggregate(report.metrics) | ({"slowest_model_load_s": max(loads)} if loads else {})
    ceilings = contract.ceilings.given
    names = dict.fromkeys((*contract.measure, *ceilings))
    return [
        ContractLine(name, SOURCES[name](values) if name in SOURCES else None, ceilings.get(name)) for name in names
    ]


def contract_document(report: JobReport) -> dict[str, Any] | None:
    """The contract with its lines as JSON; None for a job without one."""
    given = report.job.spec.get("contract")
    return None if given is None else {**given, "lines": [asdict(line) for line in contract_lines(report)]}


def print_contract(report: JobReport) -> None:
    """Two tables, each only where there is something in it."""
    if lines := contract_lines(report):
        click.echo()
        print_table(
            ("CONTRACT", "MEASURED", "CEILING"),
            ((line.name, _show(line.name, line.measured), _show(line.name, line.ceiling, "-")) for line in lines),
        )
    if report.verdicts:
        click.echo()
        print_table(
            ("MECHANISM", "OUTCOME", "CODE", "COUNT", "REASON"),
            ((one.mechanism, one.outcome, one.code, f"{one.count:,}", one.reason) for one in report.verdicts),
        )


def _show(name: str, value: float | None, absent: str = "not measured") -> str:
    if value is None:
        return absent
    if name.endswith("_bytes"):
        return show_bytes(value)
    if name.endswith("_per_s"):
        return f"{value:,.1f}"
    if name.endswith("_s") or name.startswith(("ttft", "itl")):
        return show_seconds(value)
    return f"{value:.3g}"
