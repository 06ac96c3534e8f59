"""What becomes of rows on their way through the scheduler, beside their tokens."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from mlx_lm.models import gpt_bigcode

from pipeline.errors import ItemError
from tests.fixtures.drafting import make_machine, make_rows, random_llama, run_rows
from workers.engines.batching.budget import LaneCost, MemoryBudget
from workers.engines.batching.canonical import Bounds
from workers.engines.batching.prefixes import PrefixStore
from workers.engines.batching.probing import probe_decoding
from workers.engines.batching.routers import RouterWatch
from workers.engines.batching.rows import Row
from workers.engines.batching.scheduler import Scheduler
from workers.engines.batching.seams import Logits
from workers.engines.batching.shadow import shadow_tokens
from workers.engines.memory import held_bytes
from workers.engines.requests import Sampling
from workers.engines.tally import Tally


def row(item: int, prompt: list[int], max_tokens: int) -> Row:
    return Row(item=item, choice=0, prompt=prompt, max_tokens=max_tokens, sampling=Sampling(), seed=item)


def test_who_needs_a_prefix_is_announced_before_the_model_reads_it() -> None:
    machine = make_machine(random_llama(1), ends=())
    machine.prefixes = PrefixStore(1 << 20)
    shared = list(range(1, 25))
    tally, announced = Tally("decode"), []
    scheduler = Scheduler(machine, width=2, tally=tally, on_start=lambda rows: announced.append(len(rows)))
    scheduler.add([row(0, [*shared, 30, 31], 2), row(1, [*shared, 32, 33], 2)])
    scheduler.step()
    assert tally.tokens == len(shared)
    assert announced


def test_a_row_that_waited_for_memory_says_when_it_first_began() -> None:
    machine = make_machine(random_llama(1), ends=())
    plain = run_rows(machine, make_rows(4, max_tokens=24), 4)
    machine.budget = MemoryBudget(held_bytes(), 0, LaneCost(), 0)
    rows = make_rows(4, max_tokens=24)
    result = run_rows(machine, rows, 4)
    assert result.counts["rows_shed"] >= 2
    assert result.tokens == plain.tokens
    assert all(0.0 < row.admitted_at <= row.first_at <= row.last_at for row in rows)


def test_a_ceiling_is_judged_by_the_rows_that_reached_it_and_not_by_those_left() -> None:
    machine = make_machine(random_llama(1), ends=())
    machine.budget = MemoryBudget(held_bytes(), 0, LaneCost(), 0)
    scheduler = Scheduler(machine, width=4, tally=Tally("decode"), shares_prefixes=False)
    scheduler.add(make_rows(4, max_tokens=48))
    while not scheduler.is_idle:
        scheduler.step()
    assert scheduler.width == 1
    assert scheduler.most_rows == 4


def test_an_estimate_that_was_stretched_does_not_refuse_a_row_that_fits_alone() -> None:
    machine = make_machine(random_llama(1), ends=())
    machine.budget = MemoryBudget(30_000, 0, LaneCost(per_token=100), 0, stretch=4.0)
    rows = [row(item, [1, 2, 3, 4], 40) for item in range(3)]
    assert [len(tokens) for tokens in run_rows(machine, rows, 3).tokens] == [40] * 3


def test_a_shadow_ends_where_the_plain_path_errs() -> None:
    class Failing:
        stretch = 1.0

        def apply(self, logits: Logits, tokens: Sequence[int]) -> Logits:
            if len(tokens) == 2:
                raise ItemError("no token can go on", code="grammar_failed")
            return logits

    machine = make_machine(random_llama(1), ends=())
    finished = row(0, [1, 2, 3], 5)
    run_rows(machine, [finished], 1)
    finished.rule = Failing()
    assert shadow_tokens(machine, finished) == finished.tokens[:2]


def test_prompts_that_are_read_together_have_room_for_their_keys_twice() -> None:
    machine = make_machine(random_llama(1), ends=())
    length, answer = 8, 4
    cost = LaneCost(per_token=100)
    machine.budget = MemoryBudget(None, 0, cost, 0, kv_limit_bytes=8 * cost.lane_bytes(length + answer))
    groups: list[int] = []
    scheduler = Scheduler(
        machine,
        width=16,
        tally=Tally("decode"),
        shares_prefixes=False,
        on_start=lambda rows: groups.append(len(rows)),
    )
    scheduler.add(
        [row(item, np.random.default_rng(item).integers(1, 64, length).tolist(), answer) for item in range(12)]
    )
    while not scheduler.is_idle:
        before, seen = scheduler.in_flight, len(groups)
        scheduler.step()
        if len(groups) > seen:
            assert before + 2 * groups[-1] <= 8
    assert sum(groups) == 12


def test_an_infinite_logit_errs_and_is_never_the_best_token() -> None:
    model = random_llama(1)
    weights, norm = model.model.embed_tokens.weight, model.model.norm
    weights[62:64] = 0.0
    weights[62, 0], weights[63, 0] = 3e38, -3e38  # one of them overflows upwards, by the sign of what is read
    norm.weight = norm.weight * 100
    machine = make_machine(model, ends=())
    scheduler = Scheduler(machine, width=1, tally=Tally("decode"), shares_prefixes=False)
    scheduler.add([row(0, [1, 2, 3], 1)])
    errors = []
    while not scheduler.is_idle:
        errors += [advance.error.item_code for advance in scheduler.step() if advance.error is not None]
    assert errors == ["non_finite_logits"]


def test_a_row_takes_the_lane_of_one_that_was_no_number_and_is_not_harmed() -> None:
    model = random_llama(1)
    model.model.embed_tokens.weight[63] = float("nan")
    weight = model.model.embed_tokens.weight
    output = mx.where(mx.isnan(weight), 0.0, weight)
    model.model.embed_tokens.as_linear = lambda x: x @ output.T  # every other row has logits that are numbers
    machine = make_machine(model, ends=())
    long, broken, short = row(0, [5] * 40, 30), row(1, [*[6] * 20, 63], 20), row(2, [7, 8], 10)
    scheduler = Scheduler(machine, width=2, tally=Tally("decode"), shares_prefixes=False)
    scheduler.add([long, broken, short])
    failed = []
    while not scheduler.is_idle:
        failed += [advance.row for advance in scheduler.step() if advance.error is not None]
    assert failed == [broken]
    assert (len(long.tokens), len(short.tokens)) == (30, 10)


def test_a_family_that_computes_with_one_offset_for_all_rows_fails_the_probe_and_works_alone() -> None:
    model = gpt_bigcode.Model(
        gpt_bigcode.ModelArgs(
            model_type="gpt_bigcode",
            n_embd=32,
            n_layer=2,
            n_inner=48,
            n_head=4,
            n_positions=128,
            layer_norm_epsilon=1e-5,
            vocab_size=64,
        )
    )
    mx.eval(model.parameters())
    routers = RouterWatch(model, {}, Bounds("float32"))
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    probe = probe_decoding(model, prompts, "float32", Bounds("float32"), routers)
    assert not probe.passed
    assert "together" in probe.reason
    assert probe_decoding(model, prompts[:1], "float32", Bounds("float32"), routers).passed

    machine = make_machine(model, ends=())
    machine.width_limit = 1
    rows = make_rows(3, max_tokens=5)
    assert [len(tokens) for tokens in run_rows(machine, rows, 4).tokens] == [5, 5, 5]
