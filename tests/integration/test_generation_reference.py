"""Generation on SmolLM2 against plain mlx-lm, token for token; sampling alone, batched and permuted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workers.blas import blas_environment

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "fixtures" / "generation_process.py"

#: Prompts of different length and kind: batches must pad.
PROMPTS = (
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea, and then one about the mountains, as a poet of the last century would have.",
    "2 + 2 =",
    "Translate to French: good morning",
    "List the planets of the solar system in order from the sun, with one fact about each of them.",
    "Say hello.",
    "What does DNA stand for? Answer in a few words, then explain in one sentence what it does in a living cell.",
)
MAX_TOKENS = 12
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "top_k": 60, "min_p": 0.01, "max_tokens": 8}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def chat(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def sampled_item(index: int) -> list[Any]:
    return [index, f"item-{index}", {"messages": chat(PROMPTS[index]), **SAMPLED}, 100 + index]


@pytest.fixture(scope="module")
def told(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory, full_counts: bool) -> dict[str, Any]:
    """All of it in one process, since the model takes seconds to load."""
    alone = [0, 4] if not full_counts else range(len(PROMPTS))
    greedy = [
        [index, f"item-{index}", {"messages": chat(prompt), "max_tokens": MAX_TOKENS}, 0]
        for index, prompt in enumerate(PROMPTS)
    ]
    batch = [sampled_item(index) for index in range(len(PROMPTS))]
    runs = [
        {"items": greedy, "width": 8},
        {"items": greedy, "width": 3},
        {"items": batch, "width": 8},
        {"items": [batch[place] for place in (5, 2, 7, 0, 3, 6, 1, 4)], "width": 3},
        # Sampled and greedy rows side by side.
        {"items": [batch[0], *([8 + item[0], *item[1:]] for item in greedy[:3])], "width": 4},
        *({"items": [sampled_item(index)], "width": 1} for index in alone),
    ]
    asked = {
        "model": str(smollm2_path),
        "max_tokens": MAX_TOKENS,
        "plain": [chat(prompt) for prompt in PROMPTS],
        "runs": runs,
    }
    out = tmp_path_factory.mktemp("generation") / "told.json"
    environ = {**os.environ, **blas_environment(), "PYTHONPATH": str(ROOT), "MLX_DISABLE_COMPILE": "1"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(out)],
        input=json.dumps(asked),
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(out.read_text())
    told["runs"] = [{int(index): tokens for index, tokens in run.items()} for run in told["runs"]]
    told["alone"] = list(alone)
    return told


def test_greedy_tokens_equal_plain_mlx_lm(told: dict[str, Any]) -> None:
    expected = dict(enumerate(told["plain"]))
    assert all(expected.values())
    assert told["runs"][0] == expected
    assert told["runs"][1] == expected


def test_sampled_tokens_are_the_same_batched_and_permuted(told: dict[str, Any]) -> None:
    batched, permuted = told["runs"][2], told["runs"][3]
    assert set(batched) == set(range(len(PROMPTS)))
    assert permuted == batched
    assert batched != told["runs"][0]


def test_sampled_tokens_are_the_same_alone(told: dict[str, Any]) -> None:
    for index, run in zip(told["alone"], told["runs"][5:], strict=True):
        assert run == {index: told["runs"][2][index]}


def test_greedy_and_sampled_rows_do_not_disturb_each_other(told: dict[str, Any]) -> None:
    mixed = told["runs"][4]
    assert mixed[0] == told["runs"][2][0]
    assert [mixed[8 + index] for index in range(3)] == told["plain"][:3]


def test_probe_passes_on_the_real_model(told: dict[str, Any]) -> None:
    assert told["probe"]["passed"]
    assert told["probe"]["rows"] == 3
