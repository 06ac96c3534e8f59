"""Settings that do not go together are refused, and the error names where the wrong one was set."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("environ", "place", "text"),
    [
        ({"PIPELINE_RENEW_S": "7"}, "env PIPELINE_RENEW_S", "renew_s must be at most a third of lease_s"),
        ({"PIPELINE_LEASE_S": "12"}, "env PIPELINE_LEASE_S", "renew_s must be at most a third of lease_s"),
        ({"PIPELINE_RECONCILE_S": "3"}, "env PIPELINE_RECONCILE_S", "reconcile_s must be at most a quarter"),
        (
            {"PIPELINE_LEASE_S": "6", "PIPELINE_RENEW_S": "2"},
            "env PIPELINE_LEASE_S",
            "reconcile_s must be at most a quarter of lease_s",
        ),
        ({"PIPELINE_QUEUES": "generate,paint"}, "env PIPELINE_QUEUES", "no queue 'paint'"),
    ],
)
def test_settings_that_do_not_go_together_name_the_place(environ: dict[str, str], place: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        load_settings(environ=environ)
    assert caught.value.place == place
    assert str(caught.value).startswith(f"{place}: ")


def test_place_is_the_file_when_it_was_set_there(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("renew_s: 8\n")
    with pytest.raises(ConfigError, match="a third of lease_s") as caught:
        load_settings(file, environ={"PIPELINE_LOG_LEVEL": "debug"})
    assert caught.value.place == str(file)


def test_limits_themselves_are_allowed() -> None:
    environ = {"PIPELINE_LEASE_S": "12", "PIPELINE_RENEW_S": "4", "PIPELINE_RECONCILE_S": "2.5"}
    settings = load_settings(environ=environ).settings
    assert (settings.lease_s, settings.renew_s, settings.reconcile_s) == (12.0, 4.0, 2.5)
