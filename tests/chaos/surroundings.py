"""What outlives one run: the servers, the real model, and what the items answer undisturbed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.db import migrate
from pipeline.db.states import JobStatus
from tests.chaos import disk
from tests.chaos.bytes import mask, read
from tests.chaos.disk import SmallDisk
from tests.chaos.plan import Options, Plan
from tests.fixtures.house import House, build_house
from tests.fixtures.models import make_smollm2
from tests.fixtures.restartable import OwnPostgres, OwnRedis
from tests.fixtures.services import find_postgres, find_redis, start_postgres, start_redis

#: Answers are short: what is tested is not the model.
MAX_TOKENS = 8

#: Items in a shard, about.
SHARD_ITEMS = 20

_THINGS = ("a river", "the moon", "bread", "a clock", "snow", "a violin", "the sea", "a bee")
_ASKED = ("What is {}?", "Describe {}.", "Name a use of {}.", "Where is {} found?", "Is {} alive?")


@dataclass(frozen=True)
class Undisturbed:
    """The two files of the job when nothing goes wrong, masked."""

    output: bytes
    errors: bytes


@dataclass
class Surroundings:
    options: Options
    redis: OwnRedis | None
    postgres: OwnPostgres | None
    no_disk: str | None
    folder: Path
    _undisturbed: Undisturbed | None = field(default=None)

    @classmethod
    @contextmanager
    def open(cls, options: Options) -> Iterator[Surroundings]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos")))
            redis = postgres = None
            if options.broker == "redis":
                program = find_redis()
                assert program is not None, "no redis-server here"
                redis = OwnRedis(server=start_redis(program))
                stack.callback(redis.close)
            if options.database == "postgresql":
                binaries = find_postgres()
                assert binaries is not None, "no PostgreSQL here"
                # What was committed survives a server that is stopped as by a crash.
                server = start_postgres(binaries, synchronous_commit="on")
                postgres = OwnPostgres(server=server, url="")
                stack.callback(postgres.close)
            yield cls(options, redis, postgres, disk.reason_against(), folder)

    @contextmanager
    def house(self, name: str) -> Iterator[tuple[House, SmallDisk | None]]:
        """An empty installation on a small disk, where there may be one; stopped at the end, its files removed."""
        home = self.folder / name
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            small = SmallDisk(home / "store") if self.no_disk is None else None
            if small is not None:
                assert small.mount()
                stack.callback(small.unmount)
            if self.redis is not None:
                self.redis.command("FLUSHALL")
            yield build_house(home, **self._places(stack), **self.options.settings), small

    def _places(self, stack: ExitStack) -> dict[str, str]:
        places = {}
        if self.postgres is not None:
            database = self.postgres.server.create()
            stack.callback(self.postgres.server.drop, database)
            places["database_url"] = self.postgres.server.url(database)
            migrate.upgrade(places["database_url"])
        if self.redis is not None:
            places["broker_url"] = self.redis.url
        return places

    def undisturbed(self) -> Undisturbed:
        """Worked off once, by one worker without a broker, on SQLite."""
        if self._undisturbed is None:
            house = build_house(self.folder / "undisturbed", **self.options.settings)
            add_model(house, self.options, None)
            job_id = house.pipeline(*submit_words(house, self.options)).stdout.decode().strip()
            assert house.work_off(job_id).status is JobStatus.COMPLETED, house.logs()
            self._undisturbed = Undisturbed(mask(read(house, job_id, "output")), mask(read(house, job_id, "errors")))
            house.stop()
        return self._undisturbed


def item_id(ordinal: int) -> str:
    return f"item-{ordinal:04d}"


def requests(options: Options) -> Sequence[dict[str, Any]]:
    if options.engine == "fake":
        return [{"custom_id": item_id(n), "prompt": f"say {n}"} for n in range(options.items)]
    asked = [form.format(thing) for form in _ASKED for thing in _THINGS]
    return [{"custom_id": item_id(n), "prompt": asked[n % len(asked)]} for n in range(options.items)]


def add_model(house: House, options: Options, plan: Plan | None) -> None:
    """The model that the job names; without a plan it is as quick and as healthy as it can be."""
    if options.engine == "smollm2":
        house.add_model("model", make_smollm2())
        return
    delay_s = options.work_s * options.workers / options.items if plan is not None else 0.0
    crashes = {item_id(plan.poison[0]): plan.poison[1]} if plan is not None and plan.poison is not None else {}
    errors = {item_id(ordinal): "scripted" for ordinal in options.errors}
    house.add_fake_model("model", delay_s=delay_s, batch_size=2, errors=errors, crashes=crashes)


def submit_words(house: House, options: Options) -> tuple[str, ...]:
    """The command that submits the job, whose file it writes. Asked again with its key it gives the same job."""
    file = house.settings.home / "requests.jsonl"
    file.write_text("".join(json.dumps(request) + "\n" for request in requests(options)), encoding="utf-8")
    tokens = SHARD_ITEMS * (MAX_TOKENS + 2) if options.engine == "fake" else 6 * (MAX_TOKENS + 40)
    sizes = ("--max-tokens", str(MAX_TOKENS), "--shard-tokens", str(tokens), "--width", "4")
    return ("submit", "generate", str(file), "--model", "model", *sizes, "--idempotency-key", "chaos")
