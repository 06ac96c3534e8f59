"""Passwords with real servers: nothing that is printed, logged, stored or started holds one, whatever goes wrong."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus

import psutil
import pytest
import redis
from sqlalchemy import create_engine, inspect, text

from pipeline.db.states import JobStatus
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.services import PostgresServer, RedisServer

QUICK = {"poll_s": 0.3, "reconcile_s": 0.3}

_numbers = itertools.count()


@dataclass(frozen=True)
class Secret:
    """A password with what URLs, shells and quotes trip over; ``part`` is in each spelling of it."""

    part: str

    @property
    def plain(self) -> str:
        return f"{self.part}/x@y:%z"

    @property
    def quoted(self) -> str:
        return quote(self.plain, safe="")

    def is_in(self, data: bytes | str) -> bool:
        return self.part in (data.decode(errors="replace") if isinstance(data, bytes) else data)


def new_secret() -> Secret:
    return Secret(f"Zq7{secrets.token_hex(6)}")


@dataclass(frozen=True)
class Guarded:
    """A house whose two servers ask for passwords with every awkward character."""

    house: House
    secret: Secret
    database_url: Callable[[str], str]
    broker_url: Callable[[str], str]

    def check(self, *texts: bytes | str) -> None:
        for one in texts:
            assert not self.secret.is_in(one), one

    def run(self, *arguments: str, **environ: str) -> str:
        """A command with all it said; checked for the secret, debugging on."""
        before = dict(self.house.environ)
        self.house.environ.update(environ)
        try:
            done = self.house.pipeline("--debug", *arguments, stdin=b'{"prompt": "x"}\n', check=False)
        finally:
            self.house.environ.clear()
            self.house.environ.update(before)
        self.check(done.stdout, done.stderr)
        return (done.stdout + done.stderr).decode()


@pytest.fixture
def guarded(
    make_house: MakeHouse, postgres_server: PostgresServer, postgres_url: str, redis_server: RedisServer
) -> Iterator[Guarded]:
    secret = new_secret()
    role = f"guarded_{next(_numbers)}"
    database = postgres_url.rsplit("/", 1)[1]
    postgres_server.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{secret.plain}'")
    number = redis_server.next_database()
    with redis.Redis.from_url(redis_server.url(number)) as admin:
        admin.acl_setuser(
            role, enabled=True, passwords=[f"+{secret.plain}"], keys=["*"], channels=["*"], categories=["+@all"]
        )

        def database_url(password: str) -> str:
            return f"postgresql+psycopg://{role}:{password}@127.0.0.1:{postgres_server.port}/{database}"

        def broker_url(password: str) -> str:
            return f"redis://{role}:{password}@127.0.0.1:{redis_server.port}/{number}"

        house = make_house(
            database_url=database_url(secret.quoted),
            broker_url=broker_url(secret.quoted),
            log_level="debug",
            part_items=1,
            **QUICK,
        )
        yield Guarded(house, secret, database_url, broker_url)
        admin.acl_deluser(role)


def all_rows(url: str) -> Iterator[str]:
    engine = create_engine(url)
    with engine.connect() as connection:
        for table in inspect(connection).get_table_names():
            for row in connection.execute(text(f'SELECT row_to_json(t)::text FROM "{table}" t')):
                yield f"{table}: {row[0]}"
    engine.dispose()


def processes_of(pid: int) -> Iterator[tuple[psutil.Process, dict[str, Any]]]:
    """The children of a worker, all the way down, with their arguments and environments."""
    for process in psutil.Process(pid).children(recursive=True):
        yield process, process.as_dict(["cmdline", "environ", "name"])


@pytest.mark.timeout(180)
def test_a_job_from_submit_to_results_shows_no_password(guarded: Guarded) -> None:
    house = guarded.house
    house.add_fake_model(delay_s=0.2, errors={"r1": "made_up"})
    worker = house.start_worker()
    guarded.run("submit", "generate", "-", "--model", "fake")
    job_id = house.submit([{"custom_id": f"r{n}", "prompt": "x"} for n in range(10)])
    house.wait_for(lambda: house.job(job_id).succeeded + house.job(job_id).errored >= 1, "an answer")
    own = psutil.Process(worker.pid)
    guarded.check(" ".join(own.cmdline()), own.name())
    children = list(processes_of(worker.pid))
    assert children, "the engine runs in a child"
    for _, facts in children:
        guarded.check(repr(facts))
        assert not [name for name in facts["environ"] or {} if name.startswith(("PIPELINE_", "AWS_"))]
    assert house.wait_end(job_id).status is JobStatus.COMPLETED
    said = guarded.run("config", "show")
    assert "***@127.0.0.1" in said
    for command in (["config", "show", "--json"], ["status", job_id], ["doctor", "--json"]):
        guarded.run(*command)
    rows = list(all_rows(house.settings.resolved_database_url))
    assert any(job_id in row for row in rows)
    guarded.check(*rows)
    assert len(house.logs()) > 1000, "a log at level debug"
    guarded.check(house.logs())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("form", ["quoted", "query"])
def test_a_database_that_refuses_us_is_told_of_without_the_password(guarded: Guarded, form: str) -> None:
    """The password is a wrong one, or the URL cannot be read at all: what a person types on the first day."""
    house, secret = guarded.house, guarded.secret
    right = guarded.database_url("")
    host = right.partition("@")[2]
    url = {
        "quoted": guarded.database_url(secret.quoted + "x"),
        "query": f"postgresql+psycopg://{host}?user=nobody&password={quote_plus(secret.plain)}",
    }[form]
    assert "error: " in guarded.run("submit", "generate", "-", "--model", "fake", PIPELINE_DATABASE_URL=url)
    assert "://" in guarded.run("config", "show", PIPELINE_DATABASE_URL=url)
    worker = house.start_worker(PIPELINE_DATABASE_URL=url)
    assert worker.wait(timeout=60) != 0
    assert "error: " in house.logs()
    guarded.check(house.logs())


@pytest.mark.timeout(180)
def test_a_broker_that_refuses_us_is_told_of_without_the_password_and_work_goes_on(guarded: Guarded) -> None:
    house, secret = guarded.house, guarded.secret
    wrong = guarded.broker_url(secret.quoted + "x")
    house.start_worker(PIPELINE_BROKER_URL=wrong)
    said = guarded.run("submit", "generate", "-", "--model", "fake", PIPELINE_BROKER_URL=wrong)
    assert "doorbell" in said
    job_id = house.submit([{"custom_id": "r", "prompt": "x"}])
    assert house.wait_end(job_id).status is JobStatus.COMPLETED
    assert "fail  broker" in guarded.run("doctor", PIPELINE_BROKER_URL=wrong).lower()
    query = f"{guarded.broker_url('')}?password={secret.quoted}x"
    guarded.run("submit", "generate", "-", "--model", "fake", PIPELINE_BROKER_URL=query)
    said = guarded.run(
        "submit", "generate", "-", "--model", "fake", PIPELINE_BROKER_URL=guarded.broker_url(secret.plain)
    )
    assert "broker_url has no number as its port" in said
    guarded.check(house.logs(), *all_rows(house.settings.resolved_database_url))


@pytest.mark.timeout(120)
def test_a_store_that_is_out_of_reach_is_told_of_without_its_key(make_house: MakeHouse) -> None:
    house, secret = make_house(), new_secret()
    house.environ["PIPELINE_STORE_URL"] = f"s3://AKIAEXAMPLE:{secret.quoted}@bucket/prefix"
    house.environ["AWS_SECRET_ACCESS_KEY"] = secret.plain
    house.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    for command in (["config", "show"], ["status"]):
        done = house.pipeline("--debug", *command, check=False)
        assert not secret.is_in(done.stdout), done.stdout
        assert not secret.is_in(done.stderr), done.stderr
