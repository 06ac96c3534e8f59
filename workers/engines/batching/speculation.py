"""What guessing ahead came to: the counters that every proposer keeps. Knows nothing about who guesses."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class SpeculationStats:
    """Sums over rows and rounds; a round is one forward that one row took part in.

    Attributes:
        emitted: tokens that the rows said.
        drafted_rounds: rounds with at least one guessed token.
        paused_rounds: rounds in which a row could not guess because its last guesses had failed.
        positions_tested: guessed tokens that were compared: all that were accepted and the first that was not.
        refused_rows: rows whose cache cannot take a guess back.
    """

    rounds: int = 0
    drafted_rounds: int = 0
    paused_rounds: int = 0
    emitted: int = 0
    proposed: int = 0
    positions_tested: int = 0
    accepted: int = 0
    refused_rows: int = 0

    def add(self, emitted: int, proposed: int, accepted: int) -> None:
        """Count one row's round.

        Raises:
            ValueError: more was accepted than proposed or said.
        """
        if not 0 <= accepted <= min(proposed, emitted):
            raise ValueError(f"{accepted} accepted of {proposed} proposed and {emitted} emitted tokens cannot be")
        self.rounds += 1
        self.emitted += emitted
        if proposed:
            self.drafted_rounds += 1
            self.proposed += proposed
            self.accepted += accepted
            self.positions_tested += accepted + (accepted < proposed)

    @property
    def position_acceptance(self) -> float:
        """Share of the compared guesses that were right; what lies behind a wrong one was never compared."""
        return self.accepted / self.positions_tested if self.positions_tested else 0.0

    @property
    def mean_accepted(self) -> float:
        """Accepted tokens per round with a guess."""
        return self.accepted / self.drafted_rounds if self.drafted_rounds else 0.0

    @property
    def tokens_per_forward(self) -> float:
        """Tokens that a row said per round; 1 without any guess."""
        return self.emitted / self.rounds if self.rounds else 0.0

    def as_counters(self, prefix: str) -> dict[str, int]:
        """All counts, as ``<prefix>_<name>``; ratios are left to the reader, since counters are summed over runs."""
        return {f"{prefix}_{name}": count for name, count in asdict(self).items()}
