"""What commands print: tables, words for numbers, rates, a job's measurements, the doctor's verdict on BLAS."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pipeline.cli.finding import Level
from pipeline.cli.host_checks import judge_blas
from pipeline.cli.measures import aggregate, show_measures
from pipeline.cli.meter import Meter
from pipeline.cli.output import count_of, print_table, show_bytes, show_seconds
from pipeline.db.states import JobStatus
from pipeline.db.values import JobView, Measurement


def make_job(**values: Any) -> JobView:
    empty: dict[str, Any] = dict.fromkeys(JobView.__dataclass_fields__)
    counts = {"total": 10, "processing": 10, "succeeded": 0, "errored": 0, "cancelled": 0, "expired": 0}
    return JobView(
        **{**empty, **counts, "id": "job_1", "status": JobStatus.IN_PROGRESS, "created_at": datetime.now(UTC), **values}
    )


def test_table_sets_numbers_to_the_right_and_words_to_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "ITEMS"), [("a", "1"), ("long", "2,000")])
    assert capsys.readouterr().out.splitlines() == ["NAME  ITEMS", "a         1", "long  2,000"]


def test_table_without_rows_is_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "ITEMS"), [])
    assert capsys.readouterr().out == "NAME  ITEMS\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250 ms"), (4.2, "4.2 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_seconds_are_shown_in_fitting_units(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


def test_sizes_and_counts_have_units() -> None:
    assert [show_bytes(size) for size in (512, 2048, 3 << 20, 5 << 30)] == ["512 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]
    assert [count_of(number, "item") for number in (1, 2000)] == ["1 item", "2,000 items"]


def test_meter_gives_rate_and_time_left_over_the_last_minute() -> None:
    meter = Meter()
    job = make_job()
    assert meter.read(job, None, now=0.0).items_per_s is None
    snapshot = meter.read(replace(job, processing=6, succeeded=4), 12.0, now=2.0)
    assert (snapshot.done, snapshot.items_per_s, snapshot.eta_s) == (4, 2.0, 3.0)
    assert str(snapshot) == "in_progress 4/10, 2.0 items/s, 12 tokens/s, 3.0 s left"
    later = meter.read(replace(job, processing=5, succeeded=5), None, now=62.0)
    assert later.items_per_s == pytest.approx(1 / 60)  # the first sample is too old to count


def shard(number: int, **values: float) -> list[Measurement]:
    units = {"output_tokens": "tokens", "peak_rss_bytes": "bytes", "tokens_per_s": "tokens/s", "items_per_s": "items/s"}
    return [Measurement(name, value, units.get(name, "s"), number) for name, value in values.items()]


def test_measurements_of_shards_become_those_of_the_job() -> None:
    rows = [
        *shard(1, output_tokens=100, engine_busy_s=10, tokens_per_s=10, items_per_s=1, ttft_p50_s=0.2, ttft_p95_s=0.9),
        *shard(2, output_tokens=600, engine_busy_s=30, tokens_per_s=20, items_per_s=1, ttft_p50_s=0.4, ttft_p95_s=0.5),
        *shard(1, peak_rss_bytes=5, claimed_at_monotonic_s=1e9),
        *shard(2, peak_rss_bytes=9),
    ]
    found = aggregate(rows)
    assert found["output_tokens"] == 700
    assert found["tokens_per_s"] == pytest.approx(700 / 40)
    assert found["ttft_p50_s"] == pytest.approx((0.2 * 10 + 0.4 * 30) / 40)
    assert found["ttft_p95_s"] == 0.9
    assert found["peak_rss_bytes"] == 9
    assert "claimed_at_monotonic_s" not in found


def test_measurements_are_shown_in_words_and_those_not_taken_are_left_out() -> None:
    shown = dict(show_measures({"output_tokens": 1234, "tokens_per_s": 17.51, "ttft_p50_s": 0.25, "prompt_tokens": 0}))
    assert shown == {"output tokens": "1,234", "tokens/s": "17.5", "time to first token, p50": "250 ms"}


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("openblas 0.3.30 Haswell", Level.OK),
        ("accelerate", Level.OK),
        ("libblas.so.3", Level.WARN),
        ("unknown", Level.WARN),
    ],
)
def test_doctor_warns_of_a_slow_blas(name: str, level: Level) -> None:
    finding = judge_blas(name)
    assert finding.level is level
    assert (finding.hint is None) == (level is Level.OK)
