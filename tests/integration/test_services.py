"""The servers that tests start: real, their own, unprivileged, and gone when the tests are, however they end."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, text

from tests.fixtures import services
from tests.fixtures.services import PostgresServer, RedisServer, start_postgres, start_redis

ROOT = Path(__file__).resolve().parents[2]


def test_postgres_is_ours_and_not_roots(postgres_server: PostgresServer, postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        folder = connection.execute(text("SHOW data_directory")).scalar_one()
    engine.dispose()
    assert folder == str(postgres_server.guarded.folder / "data")
    assert os.stat(folder).st_uid != 0


def test_each_test_gets_a_database_of_its_own(postgres_server: PostgresServer, postgres_template: str) -> None:
    names = [postgres_server.create(postgres_template) for _ in range(2)]
    for name, expected in zip(names, (1, 0), strict=True):
        engine = create_engine(postgres_server.url(name))
        with engine.begin() as connection:
            if expected:
                connection.execute(text("INSERT INTO leases (name, token, renewals) VALUES ('x', 0, 0)"))
            assert connection.execute(text("SELECT count(*) FROM leases")).scalar_one() == expected
        engine.dispose()
        postgres_server.drop(name)


def test_redis_refuses_strangers_and_serves_by_socket(
    redis_server: RedisServer, redis_url: str, redis_socket_url: str
) -> None:
    import kombu
    import redis

    with redis.Redis(port=redis_server.port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    for url in (redis_url, redis_socket_url):
        with kombu.Connection(url) as connection:
            queue = connection.SimpleQueue("bell")
            queue.put({"ring": 1})
            assert queue.get(timeout=5).payload == {"ring": 1}
            queue.close()


def test_packaged_servers_do_where_the_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services.shutil, "which", lambda _name: None)
    monkeypatch.setattr(services.glob, "glob", lambda _pattern: [])
    postgres, redis = services.find_postgres(), services.find_redis()
    if postgres is None or redis is None:
        pytest.skip("not both packages have a wheel for this Python and machine")
    assert "site-packages" in f"{postgres} {redis}"
    for server in (start_postgres(postgres), start_redis(redis)):
        assert server.answers()
        server.guarded.stop()
        assert not server.guarded.folder.exists()


SCRIPT = """
import sys, time
from tests.fixtures.services import find_redis, start_redis
server = start_redis(find_redis())
print(server.guarded.folder, server.port, flush=True)
time.sleep(600)
"""


def test_a_server_ends_when_its_tests_are_killed(redis_server: RedisServer) -> None:
    # Given a test process of its own with a server
    tests = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert tests.stdout is not None
    folder = Path(tests.stdout.readline().split()[0])
    assert folder.is_dir()

    # When it has no chance to clean up
    tests.send_signal(signal.SIGKILL)
    tests.wait()
    tests.stdout.close()

    # Then neither server nor folder outlives it
    deadline = time.monotonic() + 30
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists()
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])]


def test_no_setting_of_the_developer_reaches_a_test(tmp_path: Path) -> None:
    assert not [name for name in os.environ if name.startswith("PIPELINE_")]
    assert Path.home() != Path(pwd.getpwuid(os.getuid()).pw_dir)
