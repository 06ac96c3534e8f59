"""Durations as people write them: ``90s``, ``30m``, ``24h``, ``7d``."""

from __future__ import annotations

import re

from pipeline.errors import UsageError

#: Seconds of each unit.
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

#: Longest duration, in seconds: ten years. A deadline has to be a date.
LONGEST_S = 3650 * 86_400


def parse_duration(text: str) -> int:
    """Seconds, at least 1; raises UsageError saying how one is written."""
    form = re.fullmatch(r"\s*([0-9]{1,12})\s*([smhd])\s*", text, re.ASCII)
    seconds = int(form[1]) * UNITS[form[2]] if form else 0
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"{text!r} is no duration", hint="a whole number and a unit, up to 3650d: 90s, 30m, 24h, 7d")
    return seconds
