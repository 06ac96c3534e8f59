"""Which items of a shard may have ended a child, and what is done about it (law 5). Pure; needs no database library.

Items that were inside a child when it died become suspects, and are then tried one at a time, in ascending order. A
suspect that does no harm alone is cleared; one that was alone at two deaths is condemned. Two and not one: a child may
be killed from outside while an innocent item happens to be in it. A lost lease is weaker evidence, since lids are
closed and hosts restarted: where one is among them, it takes three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.db.values import ShardView
from pipeline.formats.ranges import dump_ranges, parse_ranges

#: Deaths with one item alone in the child, in a row, that condemn it; and ends of both kinds that do.
CONDEMNING_DEATHS, CONDEMNING_ENDS = 2, 3

#: Lost leases after which whatever was in flight is suspect: it may have taken the whole parent, or the host, down.
SUSPICIOUS_LOSSES = 2

Items = frozenset[int]
_NONE: Items = frozenset()


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What a shard's row says of its items, by their places in the shard.

    Attributes:
        in_flight: given to a child and not registered; empty while nothing is fed.
        suspects: to be tried alone; the lowest comes first.
        cleared: were alone in a child and did it no harm.
        alone_deaths: children in a row that ended while the lowest suspect was alone in them.
        alone_losses: leases that were lost meanwhile.
    """

    in_flight: Items = _NONE
    suspects: Items = _NONE
    cleared: Items = _NONE
    alone_deaths: int = 0
    alone_losses: int = 0

    @classmethod
    def of(cls, shard: ShardView) -> Suspicion:
        return cls(
            parse_ranges(shard.in_flight or ""),
            parse_ranges(shard.suspects or ""),
            parse_ranges(shard.cleared or ""),
            shard.alone_deaths,
            shard.alone_losses,
        )

    @property
    def condemned(self) -> int | None:
        """The item that errs: it was alone once too often."""
        is_proven = self.alone_deaths >= CONDEMNING_DEATHS or self.alone_deaths + self.alone_losses >= CONDEMNING_ENDS
        return min(self.suspects) if self.suspects and is_proven else None

    def at_rest(self, answered: Items) -> Suspicion:
        """Before anything is fed again: what is answered is no suspect any more."""
        suspects = self.suspects - answered
        same = suspects and min(suspects) == min(self.suspects)
        ends = (self.alone_deaths, self.alone_losses) if same else (0, 0)
        return Suspicion(_NONE, suspects, self.cleared - answered, *ends)

    def feeding(self, items: Items) -> Suspicion:
        return replace(self, in_flight=items)

    def after_clearing(self, item: int) -> Suspicion:
        """``item``, the lowest suspect, was alone and did no harm."""
        return Suspicion(_NONE, self.suspects - {item}, self.cleared | {item})

    def after_death(self, inside: Items) -> Suspicion:
        """The child ended with ``inside`` in it."""
        if self._is_alone:
            return replace(self, in_flight=_NONE, alone_deaths=self.alone_deaths + 1)
        return Suspicion(_NONE, self.suspects | inside, self.cleared)

    def after_loss(self, losses: int) -> Suspicion:
        """The lease was lost, for the ``losses``-th time: nobody can say what became of the child."""
        if self._is_alone:
            return replace(self, in_flight=_NONE, alone_losses=self.alone_losses + 1)
        if losses < SUSPICIOUS_LOSSES or not self.in_flight:
            return replace(self, in_flight=_NONE)
        return Suspicion(_NONE, self.suspects | self.in_flight, self.cleared)

    def columns(self) -> dict[str, str | int | None]:
        """As the row has it."""
        return {
            "in_flight": dump_ranges(self.in_flight) or None,
            "suspects": dump_ranges(self.suspects) or None,
            "cleared": dump_ranges(self.cleared) or None,
            "alone_deaths": self.alone_deaths,
            "alone_losses": self.alone_losses,
        }

    @property
    def _is_alone(self) -> bool:
        return bool(self.suspects) and self.in_flight == {min(self.suspects)}
