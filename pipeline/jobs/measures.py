"""What is measured of one attempt at a shard, as rows of ``metrics``. Times are monotonic seconds of this host."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from pipeline.db.repository.base import utc_now
from pipeline.db.values import JobView, Measurement, ShardLease
from pipeline.ports import Answer, EngineInfo, RunStats, Verdict


class ShardMeasures:
    """Gathers; :meth:`rows` gives what belongs to the shard."""

    def __init__(self, lease: ShardLease) -> None:
        self._shard_id = lease.shard_id
        self._owner = lease.owner
        self._claimed = time.monotonic()
        self._cpu = time.thread_time()
        self._committed = self._claimed
        self._values: list[tuple[str, float, str]] = []
        self._samples: defaultdict[str, list[float]] = defaultdict(list)
        self._answers = 0
        self._counts: Counter[str] = Counter()
        self.verdicts: list[Verdict] = []

    def waited(self, job: JobView) -> None:
        """The first claim of a job ends its wait in the queue (wall clock, for people)."""
        if job.in_progress_at is None and job.queued_at is not None:
            self._values.append(("queue_wait_s", max(0.0, (utc_now() - job.queued_at).total_seconds()), "s"))

    def loaded(self, info: EngineInfo, waited_s: float) -> None:
        """A child holds the model; a warm one loaded nothing."""
        self._values.append(("prepare_s", waited_s, "s"))
        if waited_s > info.load_s:
            self._values.append(("model_load_s", info.load_s, "s"))

    def answered(self, answer: Answer) -> None:
        self._answers += 1
        for name, value in answer.measures.items():
            self._samples[name].append(value)

    def ran(self, stats: RunStats) -> None:
        """The child is done: tokens, time inside engine calls, memory, whatever it counted and checked."""
        busy_s = sum(end - start for start, end in stats.busy)
        tokens = stats.output_tokens or stats.prompt_tokens
        self._values += [
            ("prompt_tokens", stats.prompt_tokens, "tokens"),
            ("output_tokens", stats.output_tokens, "tokens"),
            ("engine_busy_s", busy_s, "s"),
            ("peak_rss_bytes", stats.peak_rss_bytes, "bytes"),
        ]
        if busy_s > 0:
            self._values.append(("tokens_per_s", tokens / busy_s, "tokens/s"))
            self._values.append(("items_per_s", self._answers / busy_s, "items/s"))
        self._values += [(name, float(number), _unit_of(name)) for name, number in stats.counters.items()]
        self._values += [(_metric_name(name), value, "s") for name, value in stats.measures.items()]
        self.verdicts += stats.verdicts

    def count(self, name: str) -> None:
        """One more of something that this attempt did beside the ordinary."""
        self._counts[name] += 1

    def committing(self) -> None:
        self._committed = time.monotonic()

    def rows(self) -> list[Measurement]:
        """All of it. Percentiles are over the answers of this attempt."""
        values = [
            *self._values,
            ("claimed_at_monotonic_s", self._claimed, "s"),
            ("committed_at_monotonic_s", self._committed, "s"),
            *((name, float(number), "count") for name, number in sorted(self._counts.items())),
            ("parent_cpu_s", time.thread_time() - self._cpu, "s"),
        ]
        for name, samples in sorted(self._samples.items()):
            values += [(_metric_name(f"{name}_p{share}"), percentile(samples, share / 100), "s") for share in (50, 95)]
        return [Measurement(name, float(value), unit, self._shard_id, self._owner) for name, value, unit in values]


def _metric_name(name: str) -> str:
    """Units stand last: ``ttft_s_p95`` of an engine is ``ttft_p95_s`` in ``metrics``."""
    return re.sub(r"_s_(p\d+)$", r"_\1_s", name)


def _unit_of(counter: str) -> str:
    """A counter of bytes is a level that was reached, and of several the highest counts."""
    return "bytes" if counter.endswith("_bytes") else "count"


def percentile(samples: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of at least one sample."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
