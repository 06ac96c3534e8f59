"""What SmolLM2 says greedily to the prompts of five workloads, for `bench_governor.py`.

    python -m tests.benchmarks.record_streams > tests/benchmarks/data/streams.json

Token ids of prompts and answers (at most 96 tokens each, the end token included), 16 rows a workload.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

from tests.benchmarks.record_step_costs import relaunch_with_blas
from tests.fixtures.models import make_smollm2

ROWS = 16
MAX_TOKENS = 96

NAMES = ["Anna", "Boris", "Chen", "Dalia", "Edgar", "Fatima", "Goran", "Hanna", "Ivo", "Jale", "Karim", "Lena"]
PLACES = ["Lisbon", "Tallinn", "Oslo", "Quito", "Nairobi", "Hanoi", "Lima", "Bergen", "Tunis", "Split", "Graz"]
THINGS = ["lamp", "bicycle", "kettle", "violin", "ladder", "compass", "blanket", "clock", "barrel", "lantern", "oven"]
SUBJECTS = ["a robot who learns to cook", "a lighthouse keeper", "two rivers", "a lost letter", "the last train home"]
QUESTIONS = [
    "What is the capital of Portugal?",
    "Explain in two sentences why the sky is blue.",
    "List five fruits that grow in cold countries.",
    "Give me a recipe for a simple soup.",
    "How do I learn to play the violin?",
]


def passage(number: int) -> str:
    """A few plain sentences, different for each number."""
    name, other = NAMES[number % len(NAMES)], NAMES[(number * 5 + 3) % len(NAMES)]
    place, thing = PLACES[number % len(PLACES)], THINGS[(number * 3 + 1) % len(THINGS)]
    return (
        f"{name} bought an old {thing} at the market in {place} for {number * 7 + 12} coins. The {thing} was heavy, and "
        f"the road from {place} to the village was long. On the way {name} met {other}, who had a cart and two horses. "
        f"They put the {thing} on the cart and reached the village before it was dark."
    )


def records(number: int) -> str:
    people = [(NAMES[(number + step) % len(NAMES)], 20 + (number * 7 + step * 5) % 50) for step in range(5)]
    return "; ".join(f"name={name} age={age} city={PLACES[(number + age) % len(PLACES)]}" for name, age in people)


def edit(number: int) -> str:
    thing = THINGS[(number * 3 + 1) % len(THINGS)]
    return f"Rewrite the following text with every '{thing}' replaced by 'mirror':\n{passage(number)}"


def mixed(number: int) -> str:
    kinds: list[Callable[[int], str]] = [
        lambda n: QUESTIONS[n % len(QUESTIONS)],
        lambda n: f"Write a short story about {SUBJECTS[n % len(SUBJECTS)]}.",
        lambda n: f"Summarize this text in one sentence:\n{passage(n)}",
        lambda n: f"Who is mentioned in this text, and what did they do?\n{passage(n)}",
    ]
    return kinds[number % len(kinds)](number)


WORKLOADS: dict[str, Callable[[int], str]] = {
    "copying": lambda n: f"Repeat the following text exactly:\n{passage(n)}",
    "editing": edit,
    "extraction": lambda n: f"Convert to JSON lines: {records(n)}",
    "prose": lambda n: f"Write a story about {SUBJECTS[n % len(SUBJECTS)]} in {PLACES[n % len(PLACES)]}.",
    "chat": mixed,
}


def main() -> None:
    relaunch_with_blas()
    json.dump(dict(record()), sys.stdout, separators=(",", ":"))
    print()


def record() -> Iterator[tuple[str, list[dict[str, list[int]]]]]:
    from mlx_lm import batch_generate

    from workers.engines.loading import load_language_model

    loaded = load_language_model(make_smollm2())
    for name, ask in WORKLOADS.items():
        prompts = [
            loaded.tokenizer.apply_chat_template([{"role": "user", "content": ask(row)}], add_generation_prompt=True)
            for row in range(ROWS)
        ]
        said = batch_generate(loaded.model, loaded.tokenizer, prompts, max_tokens=MAX_TOKENS, return_token_ids=True)
        print(name, *said.texts[:2], file=sys.stderr, sep="\n  ")
        yield name, [{"prompt": p, "answer": a} for p, a in zip(prompts, said.token_ids, strict=True)]


if __name__ == "__main__":
    main()
