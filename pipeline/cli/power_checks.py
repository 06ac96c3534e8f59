"""What ``pipeline doctor`` says of a Mac's sleep: ``pmset`` read and judged for a machine that works at night."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator, Mapping

from pipeline.cli.context import Context
from pipeline.cli.finding import Finding, Level

#: Seconds pmset may take.
_TIMEOUT_S = 10.0


def check_power(context: Context) -> Iterator[Finding]:
    """Nothing where there is no ``pmset``: another system, or one that keeps its rules elsewhere."""
    if platform.system() != "Darwin":
        return
    try:
        settings, source = _pmset("-g"), _pmset("-g", "batt")
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("power", Level.WARN, f"pmset does not say how this Mac sleeps: {error}")
        return
    on_battery = "battery power" in source.lower().partition("\n")[0]
    yield from judge_power(parse_pmset(settings), on_battery=on_battery, keep_awake=context.settings.keep_awake)


def _pmset(*arguments: str) -> str:
    command = ["pmset", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S).stdout


def parse_pmset(text: str) -> dict[str, int]:
    """Names (small letters) and numbers of ``pmset -g``; lines whose value is no number are left out.

    A value may be followed by a remark, as in ``sleep  1 (sleep prevented by caffeinate)``.
    """
    found = {}
    for line in text.splitlines():
        words = line.partition("(")[0].split()
        if len(words) >= 2 and words[-1].isdecimal():
            found[" ".join(words[:-1]).lower()] = int(words[-1])
    return found


def judge_power(settings: Mapping[str, int], *, on_battery: bool, keep_awake: bool) -> Iterator[Finding]:
    """One finding on sleep, and one for each thing that would spoil a night.

    Args:
        settings: what :func:`parse_pmset` gave: minutes for ``sleep`` and ``disksleep``, 0 for never; 0 or 1 else.
        on_battery: the Mac runs on its battery now.
        keep_awake: the setting.
    """
    minutes = settings.get("sleep")
    details = [f"{name} {settings[name]}" for name in ("sleep", "disksleep", "powernap", "womp") if name in settings]
    shown = ", ".join(details) or "pmset names none of its usual settings"
    if minutes is None:
        yield Finding("power", Level.WARN, shown, "pmset -g shows what this Mac does")
    elif minutes == 0 or settings.get("sleepdisabled"):
        yield Finding("power", Level.OK, f"does not sleep by itself ({shown})")
    elif keep_awake:
        text = f"sleeps after {minutes} min without work, and takes no jobs then; awake during a shard ({shown})"
        yield Finding("power", Level.WARN, text, "sudo pmset -c sleep 0")
    else:
        text = f"sleeps after {minutes} min, in the middle of a shard too: keep_awake is off ({shown})"
        yield Finding("power", Level.WARN, text, "set keep_awake, or: sudo pmset -c sleep 0")
    if on_battery:
        yield Finding("power", Level.WARN, "runs on its battery", "connect it; a closed lid sleeps in any case")
    if settings.get("lowpowermode"):
        yield Finding("power", Level.WARN, "low power mode slows the GPU down", "sudo pmset -a lowpowermode 0")
