"""What ``doctor`` makes of pmset's answers. The texts are in the shape that pmset prints on several kinds of Mac."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from pipeline.cli.context import Context
from pipeline.cli.finding import Finding, Level
from pipeline.cli.power_checks import check_power, judge_power, parse_pmset
from tests.fixtures.fake_macos import add_pmset

LAPTOP = """System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 hibernatefile        /var/vm/sleepimage
 powernap             1
 networkoversleep     0
 disksleep            10
 sleep                1 (sleep prevented by caffeinate, powerd, coreaudiod)
 hibernatemode        3
 ttyskeepawake        1
 displaysleep         2 (display sleep prevented by Music)
 tcpkeepalive         1
 lowpowermode         1
 womp                 0
"""

DESKTOP = """System-wide power settings:
 SleepDisabled\t\t0
Currently in use:
 hibernatemode        0
 powernap             0
 networkoversleep     0
 disksleep            0
 sleep                0
 ttyskeepawake        1
 displaysleep         10
 tcpkeepalive         1
 autorestart          1
 womp                 1
"""

ON_BATTERY = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1234567)\t81%; discharging; 5:12 remaining present: true\n"
ON_MAINS = (
    "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1234567)\t100%; charged; 0:00 remaining present: true\n"
)


def judge(text: str, *, on_battery: bool = False, keep_awake: bool = True) -> list[Finding]:
    return list(judge_power(parse_pmset(text), on_battery=on_battery, keep_awake=keep_awake))


def test_numbers_are_read_with_their_remarks_left_out() -> None:
    found = parse_pmset(LAPTOP)
    assert (found["sleep"], found["disksleep"], found["displaysleep"], found["powernap"]) == (1, 10, 2, 1)
    assert found["sleep on power button"] == 1
    assert "hibernatefile" not in found


def test_a_desktop_that_never_sleeps_is_well() -> None:
    (finding,) = judge(DESKTOP)
    assert finding.level is Level.OK
    assert "sleep 0, disksleep 0, powernap 0, womp 1" in finding.text


def test_sleep_that_is_switched_off_altogether_is_well() -> None:
    (finding,) = judge(
        DESKTOP.replace("SleepDisabled\t\t0", "SleepDisabled\t\t1").replace("sleep                0", "sleep 5")
    )
    assert finding.level is Level.OK


def test_a_laptop_is_told_what_to_do() -> None:
    sleep, battery, slow = judge(LAPTOP, on_battery=True)
    assert {one.level for one in (sleep, battery, slow)} == {Level.WARN}
    assert "after 1 min" in sleep.text
    assert "awake during a shard" in sleep.text
    assert sleep.hint == "sudo pmset -c sleep 0"
    assert "lid" in (battery.hint or "")
    assert "lowpowermode" in (slow.hint or "")


def test_without_keep_awake_a_shard_may_be_cut() -> None:
    assert "in the middle of a shard" in judge(LAPTOP, keep_awake=False)[0].text


def test_an_answer_in_another_shape_is_no_good_news() -> None:
    (finding,) = judge("pmset: not supported\n")
    assert finding.level is Level.WARN


@pytest.mark.parametrize(("battery", "expected"), [(ON_BATTERY, 3), (ON_MAINS, 2), ("", 2)])
def test_the_program_is_asked_on_a_mac(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, battery: str, expected: int
) -> None:
    add_pmset(tmp_path / "bin", LAPTOP, battery)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert len(list(check_power(Context()))) == expected


def test_a_mac_without_the_program_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    (finding,) = check_power(Context())
    assert finding.level is Level.WARN


def test_other_systems_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert list(check_power(Context())) == []
