"""Generation on SmolLM2, token for token: mlx-lm's plainest loop, and our engine with everything that makes it faster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.generation_report import describe
from tests.fixtures.generation_runs import ASKED, NAMED, Outcome, Told, few_runs, many_runs
from tests.fixtures.prompts import few_prompts, real_prompts
from workers.blas import blas_environment

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "fixtures" / "generation_process.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]


@pytest.fixture(scope="module")
def told(
    smollm2_path: Path,
    smollm2_drafter_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    full_counts: bool,
    report: Callable[[str], None],
) -> Told:
    """All of it in one process, since the model takes seconds to load."""
    prompts = real_prompts() if full_counts else few_prompts()
    runs = list(many_runs(prompts) if full_counts else few_runs(prompts))
    asked = {"model": str(smollm2_path), "drafter": str(smollm2_drafter_path), "runs": [run.request for run in runs]}
    folder = tmp_path_factory.mktemp("generation")
    environ = {**os.environ, **blas_environment(), "PYTHONPATH": str(ROOT), "MLX_DISABLE_COMPILE": "1"}
    if full_counts:
        environ.pop("OMP_NUM_THREADS", None)  # here it has the machine to itself
    command = [sys.executable, str(PROGRAM), str(folder / "told.json")]
    with (folder / "log").open("w") as log:
        done = subprocess.run(command, input=json.dumps(asked), env=environ, stderr=log, text=True, check=False)
    assert done.returncode == 0, (folder / "log").read_text()
    answered = json.loads((folder / "told.json").read_text())
    outcomes = [
        Outcome(run, {int(index): said for index, said in one.pop("tokens").items()}, **one)
        for run, one in zip(runs, answered["runs"], strict=True)
    ]
    told = Told(prompts, answered["probe"], outcomes, answered["plain"])
    report(describe(told))
    return told


def test_greedy_tokens_are_those_of_plain_mlx_lm(told: Told) -> None:
    """Where mlx-lm says another token, the two are closer than rounding, and ours is the one the canonical pass has."""
    assert [row["index"] for row in told.plain] == [item[0] for item in told.outcomes[0].run.items]
    for row in told.plain:
        for difference in row["differences"]:
            assert difference["margin"] is not None, row
            assert 0 <= difference["margin"] < difference["bound"], row


def test_greedy_tokens_are_the_best_of_the_canonical_pass(told: Told) -> None:
    assert [row["index"] for row in told.plain if not row["is_canonical"]] == []


@pytest.mark.parametrize("name", NAMED)
def test_mechanism_says_what_plain_decoding_says_and_did_something(name: str, told: Told) -> None:
    outcomes = [outcome for outcome in told.of("greedy", "mixed") if outcome.run.mechanism == name]
    assert outcomes
    for outcome in outcomes:
        check_complete(outcome)
        check_same(outcome, told.first("greedy") | told.first("sampled"))
        proof = NAMED[name].proof
        assert proof is None or outcome.count(proof) > 0, outcome.counters


def test_guesses_are_taken_where_an_answer_copies(told: Told) -> None:
    """The same as above for lookup, by kind of prompt: a guess that is taken saves a step."""
    lookups = [outcome for outcome in told.of("greedy") if outcome.run.mechanism == "lookup"]
    copying = {index for index, prompt in enumerate(told.prompts) if prompt.kind == "copying"}
    assert copying
    for outcome in lookups:
        assert copying <= outcome.tokens.keys()
        assert outcome.count("lookup_accepted") >= 2 * len(copying)


def test_sampled_tokens_are_the_same_alone_batched_permuted_and_guessed(told: Told) -> None:
    outcomes = told.of("sampled", "mixed")
    assert {1} < {outcome.run.width for outcome in outcomes}
    assert len({outcome.run.mechanism for outcome in outcomes}) >= 3
    for outcome in outcomes:
        check_complete(outcome)
        check_same(outcome, told.first("greedy") | told.first("sampled"))


def test_sampled_tokens_are_not_the_best_ones(told: Told) -> None:
    best = {tuple(said[0][:6]) for said in told.first("greedy").values()}
    drawn = [tuple(said[0][:6]) for said in told.first("sampled").values()]
    assert sum(tokens not in best for tokens in drawn) > len(drawn) // 2


def test_parameters_give_the_same_tokens_with_every_mechanism(told: Told, full_counts: bool) -> None:
    if not full_counts:
        pytest.skip("part of the full counts; test_generation_parameters.py asks a tiny model")
    first, *others = told.of("asked")
    check_complete(first)
    assert len(first.tokens) == len(ASKED)
    assert [len(said) for said in first.tokens.values()].count(3) == 1
    for outcome in others:
        check_complete(outcome)
        check_same(outcome, first.tokens)


def test_probe_passes_on_the_real_model(told: Told) -> None:
    assert told.probe["passed"]
    assert told.probe["rows"] == 3


def check_complete(outcome: Outcome) -> None:
    """Every item is answered, and nobody found a contract broken or left a mechanism out."""
    assert outcome.errors == {}
    assert outcome.tokens.keys() == {item[0] for item in outcome.run.items}
    assert [verdict for verdict in outcome.verdicts if verdict["outcome"] != "held"] == []


def check_same(outcome: Outcome, expected: dict[int, list[list[int]]]) -> None:
    """An item that asks for fewer tokens than the one it is compared with says the beginning of the same."""
    wrong = {
        index: (said, expected[index])
        for index, said in outcome.tokens.items()
        if said != outcome.run.cut(index, expected[index])
    }
    assert wrong == {}, f"{outcome.run.mechanism} at width {outcome.run.width}"
