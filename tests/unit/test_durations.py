"""Durations: a whole number and a unit, or one clear error."""

from __future__ import annotations

import pytest

from pipeline.errors import UsageError
from pipeline.formats.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("24h", 86_400), ("7d", 604_800), (" 1 h ", 3600), ("3650d", 315_360_000)],
)
def test_number_and_unit_give_seconds(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "24", "h", "0s", "-1h", "+1h", "1.5h", "1h30m", "1w", "24H", "1e3s", "٣h", "3651d", "9999999999999d"]
)
def test_all_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="is no duration") as caught:
        parse_duration(text)
    assert "24h" in str(caught.value.hint)
