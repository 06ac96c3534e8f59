"""Redis goes away, forgets, fills up, refuses us: rings are lost, and no work (law 1)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Settings
from pipeline.db.states import JobStatus
from pipeline.db.values import JobView
from pipeline.errors import BrokerUnavailable, ConfigError, ExitCode
from pipeline.jobs.dispatch import Doorbell
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import requests
from tests.fixtures.restartable import OwnRedis

pytestmark = pytest.mark.timeout(180)

QUICK = {"lease_s": 3, "renew_s": 0.5, "reconcile_s": 0.2, "poll_s": 0.2, "backoff_s": 0.1}


def submit(house: House, number: int = 6) -> str:
    return house.submit(requests(number), shard_items=2)


def check_end(house: House, job_id: str, number: int = 6) -> JobView:
    job = house.wait_end(job_id)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, number), house.logs()
    assert [line["custom_id"] for line in house.results(job_id)] == [f"r{index}" for index in range(number)]
    return job


def wait_listening(house: House, redis: OwnRedis) -> None:
    """Until the worker's consumer waits at Redis: it hears a ring then."""

    def waits() -> bool:
        clients = redis.command("CLIENT", "LIST")
        assert isinstance(clients, (bytes, str))
        text = clients.decode() if isinstance(clients, bytes) else clients
        return "cmd=brpop" in text

    house.wait_for(waits, "the worker to listen")


def hears(house: House, redis: OwnRedis, queue: str = "generate") -> bool:
    """Whether a ring sent now is taken from the queue."""
    assert house.deployment.doorbell.run(queue)
    return bool(house.wait_for(lambda: redis.command("LLEN", queue) == 0, "the ring to be heard"))


def test_redis_that_restarts_in_mid_job_costs_no_work(own_redis: OwnRedis, make_house: MakeHouse) -> None:
    house = make_house(broker_url=own_redis.url, part_items=1, **QUICK)
    house.add_fake_model(delay_s=0.2)
    worker = house.start_worker()
    wait_listening(house, own_redis)
    job_id = submit(house, 12)
    house.wait_for(lambda: house.job(job_id).succeeded >= 2, "some answers")
    own_redis.stop()
    unheard = submit(house, 2)
    house.wait_for(lambda: house.job(job_id).succeeded >= 6, "answers without a broker")
    own_redis.start()
    check_end(house, job_id, 12)
    check_end(house, unheard, 2)
    assert {shard.attempts for shard in house.shards(job_id)} == {1}
    wait_listening(house, own_redis)
    house.deployment.doorbell._silent_until = 0.0
    assert hears(house, own_redis)
    assert worker.poll() is None, house.logs()


def test_flushed_redis_costs_no_work(own_redis: OwnRedis, make_house: MakeHouse) -> None:
    """Queues, bindings and messages are gone; the worker still hears the next ring."""
    house = make_house(broker_url=own_redis.url, part_items=1, **QUICK)
    house.add_fake_model(delay_s=0.1)
    house.start_worker()
    wait_listening(house, own_redis)
    job_id = submit(house, 12)
    house.wait_for(lambda: house.job(job_id).succeeded >= 2, "some answers")
    own_redis.command("FLUSHALL")
    check_end(house, job_id, 12)
    assert {shard.attempts for shard in house.shards(job_id)} == {1}
    own_redis.command("FLUSHALL")
    assert hears(house, own_redis)
    check_end(house, submit(house))


def test_full_redis_takes_no_ring_and_holds_no_job_up(
    own_redis: OwnRedis, make_house: MakeHouse, caplog: pytest.LogCaptureFixture
) -> None:
    house = make_house(broker_url=own_redis.url, **QUICK)
    own_redis.command("CONFIG", "SET", "maxmemory", "1")
    house.start_worker()
    job_id = submit(house)
    assert "doorbell_not_sent" in caplog.text
    check_end(house, job_id)
    with pytest.raises(BrokerUnavailable, match="maxmemory") as refusal:
        house.deployment.doorbell.check()
    assert "jobs run, without rings" in (refusal.value.hint or "")
    own_redis.command("CONFIG", "SET", "maxmemory", "0")
    house.deployment.doorbell._silent_until = 0.0
    house.wait_for(lambda: house.deployment.doorbell.run("generate"), "Redis to take rings again")
    house.deployment.doorbell.check()


def test_worker_starts_and_works_with_the_broker_down(own_redis: OwnRedis, make_house: MakeHouse) -> None:
    house = make_house(broker_url=own_redis.url, **QUICK)
    own_redis.stop()
    worker = house.start_worker()
    done = house.pipeline("submit", "generate", "-", "--model", "fake", stdin=b'{"custom_id": "r0", "prompt": "x"}\n')
    assert b"Traceback" not in done.stderr
    assert b"doorbell_not_sent" in done.stderr
    check_end(house, done.stdout.decode().split()[0], 1)
    own_redis.start()
    wait_listening(house, own_redis)
    assert hears(house, own_redis)
    worker.terminate()
    assert worker.wait(timeout=60) == 0, house.logs()


def test_wrong_password_is_said_and_never_shown(own_redis: OwnRedis, make_house: MakeHouse) -> None:
    wrong = own_redis.url.replace(own_redis.server.password, "hunter2hunter2")
    house = make_house(broker_url=wrong, **QUICK)
    worker = house.start_worker()
    check_end(house, submit(house))
    house.wait_for(lambda: "invalid username-password" in house.logs(), "the worker to say what is wrong")
    done = house.pipeline("doctor", check=False)
    assert done.returncode == ExitCode.UNAVAILABLE
    lines = done.stdout.decode().splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.lower().startswith("fail  broker")]
    assert "invalid username-password" in lines[place]
    assert "has a password that the server does not know" in lines[place + 1]
    assert worker.poll() is None, house.logs()
    for text in (house.logs(), done.stdout.decode(), done.stderr.decode()):
        assert "hunter2" not in text
    assert "Traceback" not in house.logs()
    worker.terminate()  # one that waits for its broker leaves when it is asked to
    assert worker.wait(timeout=60) == 0, house.logs()


def test_tls_is_verified_with_the_authority_that_the_url_names(
    tls_redis: tuple[OwnRedis, Path], make_house: MakeHouse
) -> None:
    redis, authority = tls_redis
    house = make_house(broker_url=f"{tls_url(redis)}?ssl_ca_certs={authority}", **QUICK)
    house.start_worker()
    wait_listening(house, redis)
    check_end(house, submit(house))
    assert hears(house, redis)
    house.deployment.doorbell.check()
    assert "insecure" not in house.logs()


def test_tls_without_the_authority_is_refused_and_holds_no_job_up(
    tls_redis: tuple[OwnRedis, Path], make_house: MakeHouse
) -> None:
    """Celery alone would connect to anybody."""
    redis, _ = tls_redis
    house = make_house(broker_url=tls_url(redis), **QUICK)
    house.start_worker()
    check_end(house, submit(house))
    assert not house.deployment.doorbell.run("generate")
    with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED") as refusal:
        house.deployment.doorbell.check()
    assert "ssl_ca_certs" in (refusal.value.hint or "")
    house.wait_for(lambda: "CERTIFICATE_VERIFY_FAILED" in house.logs(), "the worker to say what is wrong")
    assert redis.server.password not in house.logs()


def test_tls_certificate_of_another_host_is_refused(
    tls_redis: tuple[OwnRedis, Path], make_house: MakeHouse, tmp_path: Path
) -> None:
    redis, authority = tls_redis
    other = tls_url(redis).replace("127.0.0.1", "127.0.0.2")
    redis.command("CONFIG", "SET", "bind", "127.0.0.1 127.0.0.2")
    with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        doorbell(tmp_path, f"{other}?ssl_ca_certs={authority}").check()
    doorbell(tmp_path, f"{other}?ssl_ca_certs={authority}&ssl_check_hostname=false").check()
    doorbell(tmp_path, f"{other}?ssl_cert_reqs=none").check()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("ssl_ca_certs=/nowhere/ca.pem", "names no file: /nowhere/ca.pem"),
        ("ssl_cert_reqs=optional", "it may be required or none"),
        ("ssl_verify=no", "ssl_verify is not known"),
    ],
)
def test_tls_options_that_cannot_be_are_refused(tmp_path: Path, query: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        doorbell(tmp_path, f"rediss://:secret@127.0.0.1:1/0?{query}").check()


def test_broker_that_is_away_is_not_asked_at_each_ring(tmp_path: Path) -> None:
    """Reconcile rings once for each shard it takes back; a hundred of them must not cost a hundred timeouts."""
    from tests.fixtures.services import _free_port

    asked: list[int] = []
    bell = doorbell(tmp_path, f"redis://127.0.0.1:{_free_port()}/0")
    make: Any = bell._make_app

    def count() -> Any:
        asked.append(1)
        app = make()
        send = app.send_task
        app.send_task = lambda *given, **named: (asked.append(1), send(*given, **named))
        return app

    bell._make_app = count  # type: ignore[method-assign]
    done = threading.Event()

    def ring() -> None:
        assert not any(bell.run("generate") for _ in range(50))
        done.set()

    threading.Thread(target=ring, daemon=True).start()
    assert done.wait(60)
    assert len(asked) <= 4


def tls_url(redis: OwnRedis) -> str:
    return redis.url.replace("redis://", "rediss://").replace(f":{redis.server.port}/", f":{redis.tls_port}/")


def doorbell(home: Path, url: str) -> Doorbell:
    return Doorbell(Settings(home=home, broker_url=url))
