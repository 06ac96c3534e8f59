"""The governor against every fixed choice, in replays of recorded token streams and step costs.

    python -m tests.benchmarks.bench_governor [--times 4] [--jitter 0.2] [--decisions]

Five workloads, widths 1, 4 and 16, three cost models. Tokens per second relative to plain decoding; ``auto/best`` is
the figure with a bar (0.98). ``--jitter`` spreads each step's time by a seeded factor, the same for all policies at
the same step; ``--times`` says how often the 16 recorded rows of a workload are decoded. Prints a table, the worst figure, and with ``--decisions`` what the governor wrote down.
"""

from __future__ import annotations

import argparse
import json
import random

from tests.fixtures.replays import GB10, M4_PRO, WIDTHS, WORKLOADS, measured_costs, published_costs, traced_rows
from workers.engines.batching.governor import Governor
from workers.engines.batching.replay import Fixed, StepSeconds, replay

MODELS = {"cpu": measured_costs(), "gb10": published_costs(GB10), "m4": published_costs(M4_PRO)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--jitter", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decisions", action="store_true")
    asked = parser.parse_args()
    print(f"{'costs':5} {'workload':10} {'width':>5} {'lookup':>7} {'full':>7} {'auto':>7} {'auto/best':>9} steps")
    worst = 2.0
    for model, costs in MODELS.items():
        for workload in WORKLOADS:
            for width in WIDTHS:
                rows = traced_rows(workload, times=asked.times)

                def spread(costs: StepSeconds = costs) -> StepSeconds:
                    return jittered(costs, asked.jitter, asked.seed)

                plain = replay(rows, Fixed("plain"), spread(), width=width).tokens_per_s
                lookup = replay(rows, Fixed("lookup", 8), spread(), width=width, adaptive=True).tokens_per_s / plain
                full = replay(rows, Fixed("lookup", 8), spread(), width=width).tokens_per_s / plain
                governor = Governor()
                auto = replay(rows, governor, spread(), width=width).tokens_per_s / plain
                ratio = auto / max(1.0, lookup, full)
                worst = min(worst, ratio)
                steps = governor.as_json()["steps"]
                print(f"{model:5} {workload:10} {width:5} {lookup:7.3f} {full:7.3f} {auto:7.3f} {ratio:9.3f} {steps}")
                if asked.decisions:
                    print(json.dumps(governor.as_json(), indent=1))
    print(f"worst auto/best {worst:.3f}")


def jittered(costs: StepSeconds, most: float, seed: int) -> StepSeconds:
    dice = random.Random(seed)

    def seconds(width: int, columns: int, context: int) -> float:
        return costs(width, columns, context) * (1.0 + most * dice.uniform(-1.0, 1.0))

    return seconds


if __name__ == "__main__":
    main()
