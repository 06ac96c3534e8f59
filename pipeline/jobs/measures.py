"""What is measured of one attempt at a shard, as rows of ``metrics``. Times are monotonic seconds of this host."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from pipeline.db.repository.base import utc_now
from pipeline.db.values import JobView, Measurement, ShardLease
from pipeline.ports import Answer, EngineInfo, RunStats


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
        """The child is done: tokens, time inside engine calls, memory, whatever it counted."""
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
        self._values += [(name, float(number), "count") for name, number in stats.counters.items()]
        self._values += [(name, value, "s") for name, value in stats.measures.items()]

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
            values += [(f"{name}_p50", percentile(samples, 0.50), "s"), (f"{name}_p95", percentile(samples, 0.95), "s")]
        return [Measurement(name, float(value), unit, self._shard_id, self._owner) for name, value, unit in values]


def percentile(samples: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of at least one sample."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
