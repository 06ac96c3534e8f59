"""From a seed to what will go wrong, and when. Knows no process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from pipeline.failpoints import FAIL_POINTS
from tests.chaos import faults
from tests.fixtures.in_process import SHORT_LEASES

DatabaseKind = Literal["sqlite", "postgresql"]
BrokerKind = Literal["embedded", "redis"]
EngineKind = Literal["fake", "smollm2"]
Death = Literal["abort", "kill"]

Strike = Callable[[faults.Run, Random], faults.Strike]

#: What strikes in the middle of a job, and how often in one run: from, to.
MIDDLE: Mapping[str, tuple[Strike, int, int]] = {
    "child killed": (faults.kill_child, 1, 2),
    "parent killed": (faults.kill_parent, 1, 2),
    "parent stopped": (faults.stop_parent, 1, 1),
    "broker restarted": (faults.restart_broker, 1, 1),
    "broker flushed": (faults.flush_broker, 1, 1),
    "doorbells doubled": (faults.double_doorbells, 1, 1),
    "doorbells forged": (faults.forge_doorbells, 1, 1),
    "doorbells dropped": (faults.drop_doorbells, 1, 1),
    "database away": (faults.restart_database, 1, 1),
    "disk full": (faults.fill_disk, 1, 1),
}

SUBMITTER, FINALIZER, POISON = "submitter killed", "finalizer killed", "poison item"

#: Leases for tests of seconds; the rules are those of the defaults.
SHORT: Mapping[str, Any] = {
    **SHORT_LEASES,
    "lease_s": 2.0,
    "renew_s": 0.4,
    "reconcile_s": 0.3,
    "poll_s": 0.3,
    "backoff_s": 0.2,
    "part_items": 5,
    "part_s": 1.0,
}


@dataclass(frozen=True)
class Options:
    """What is attacked. ``work_s`` is about how long the fake engine takes undisturbed; ``share`` of faults is struck."""

    database: DatabaseKind = "sqlite"
    broker: BrokerKind = "embedded"
    engine: EngineKind = "fake"
    items: int = 300
    workers: int = 3
    default_settings: bool = False
    work_s: float = 12.0
    share: float = 1.0

    @property
    def errors(self) -> tuple[int, ...]:
        """Ordinals of the items that err by themselves."""
        return tuple(range(self.items // 5, self.items, self.items // 3)) if self.engine == "fake" else ()

    @property
    def hold_s(self) -> tuple[float, float]:
        """How long a fault that lasts is kept up, from and to: as parts are written, so that some meet it."""
        return (5.0, 25.0) if self.default_settings else (0.5, 3.0)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {} if self.default_settings else SHORT


@dataclass(frozen=True)
class Planned:
    """A fault that strikes when ``at`` of the items that were open after submitting are registered.

    ``rng_seed`` makes its own choices.
    """

    name: str
    at: float
    rng_seed: int


@dataclass(frozen=True)
class Plan:
    """All that one seed means.

    Attributes:
        workers_first: whether workers run already while the job is submitted.
        submit_kills: how each submit before the last one dies: at a fail point, or after so many seconds.
        finalize_point: where the first finalizer dies; None for nowhere.
        poison: ordinal of the item that ends every engine that takes it, and how; None for no such item.
        left_out: fault to the reason why it is not among them.
    """

    seed: int
    middle: tuple[Planned, ...]
    workers_first: bool
    submit_kills: tuple[str | float, ...]
    finalize_point: str | None
    poison: tuple[int, Death] | None
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [f"{one.name} at {one.at:.2f}" for one in self.middle]
        words += [
            f"{SUBMITTER} {kill if isinstance(kill, str) else f'after {kill:.2f} s'}" for kill in self.submit_kills
        ]
        words += [f"{FINALIZER} {self.finalize_point}"] if self.finalize_point else []
        words += [f"{POISON} {self.poison[0]} ({self.poison[1]})"] if self.poison else []
        return "; ".join(words)


def make_plan(seed: int, options: Options, no_disk: str | None) -> Plan:
    """The same seed and options give the same plan. ``no_disk`` says why there is no disk to fill, if so."""
    rng = Random(seed)
    left_out = {}
    if options.broker == "embedded":
        left_out["broker restarted"] = "the embedded broker is a folder: there is no server to restart"
    if no_disk is not None:
        left_out["disk full"] = no_disk
    if options.engine != "fake":
        left_out[POISON] = "only the fake engine dies of an item when told to"
    middle = []
    for name, (_, least, most) in MIDDLE.items():
        # Numbers are drawn for what is left out too, so that the rest of the plan is the same everywhere.
        for _ in range(rng.randint(least, most)):
            planned = Planned(name, rng.uniform(0.03, 0.85), rng.getrandbits(32))
            is_drawn = rng.random() < options.share
            if is_drawn and name not in left_out:
                middle.append(planned)
    submit_points = sorted(point for point in FAIL_POINTS if point.startswith("submit."))
    finalize_points = sorted(point for point in FAIL_POINTS if point.startswith("finalize."))
    kills = [
        rng.choice(submit_points) if rng.random() < 0.7 else rng.uniform(0.1, 1.5) for _ in range(rng.randint(1, 2))
    ]
    deaths: tuple[Death, ...] = ("abort", "kill")
    poison = rng.choice(sorted(set(range(options.items)) - set(options.errors))), rng.choice(deaths)
    return Plan(
        seed,
        tuple(sorted(middle, key=lambda one: one.at)),
        rng.random() < 0.5,
        tuple(kills),
        rng.choice(finalize_points),
        poison if options.engine == "fake" else None,
        left_out,
    )
