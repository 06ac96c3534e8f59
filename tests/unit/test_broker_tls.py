"""What a ``rediss://`` URL says of TLS; the connections themselves are in the integration tests."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from pipeline.config import Settings
from pipeline.jobs.broker_tls import is_verified, split_tls
from pipeline.jobs.dispatch import celery_options


def test_a_url_that_says_nothing_verifies(tmp_path: Path) -> None:
    url = "rediss://:p%40ss@redis.example:6379/2"
    assert split_tls(url) == (url, {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True})
    options = celery_options(Settings(home=tmp_path, broker_url=url))
    assert options["broker_use_ssl"]["ssl_cert_reqs"] is ssl.CERT_REQUIRED


def test_options_leave_the_url_and_others_stay(tmp_path: Path) -> None:
    authority = tmp_path / "my ca.pem"
    authority.touch()
    query = f"ssl_ca_certs={str(authority).replace(' ', '%20')}&virtual_host=3&ssl_check_hostname=FALSE"
    url, options = split_tls(f"rediss://:secret@redis.example:6379/0?{query}")
    assert url == "rediss://:secret@redis.example:6379/0?virtual_host=3"
    assert options is not None
    assert options["ssl_ca_certs"] == str(authority)
    assert options["ssl_check_hostname"] is False
    assert options["ssl_cert_reqs"] is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("url", "verified"),
    [
        ("redis://redis.example/0", True),
        ("filesystem://localhost/", True),
        ("rediss://redis.example/0", True),
        ("rediss://redis.example/0?ssl_check_hostname=false", True),
        ("rediss://redis.example/0?ssl_cert_reqs=none", False),
    ],
)
def test_only_a_url_that_asks_for_it_goes_unverified(url: str, verified: bool) -> None:
    assert is_verified(url) is verified


def test_without_tls_nothing_is_taken_apart() -> None:
    url = "redis+socket:///run/redis.sock?virtual_host=1"
    assert split_tls(url) == (url, None)
