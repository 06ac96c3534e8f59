"""Requests for `bench_generate.py`: the same on every run, out of real English sentences.

The sentences are Cranfield's abstracts where ``CRANFIELD_DIR`` is set, else the reference texts every Python carries.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.checkpoints.tokens import TokenCounter
from pipeline.specs.bench import BenchItem
from tests.benchmarks.record_streams import WORKLOADS as PROMPTS

#: In place of the template's own system text, which alone is longer than the shortest prompt.
SYSTEM = "Be brief."

TASKS = ("Summarize this:", "What is this about?", "Name the main point of this:", "Put this in plain words:")
QUESTIONS = (
    "What was measured?",
    "Which method was used, and why?",
    "Name one result that is given as a number.",
    "What would you ask the authors?",
    "Is the flow steady or not? Say how you know.",
    "Give this text a title of at most six words.",
    "Which quantity depends on which other one?",
    "Who could make use of this, and for what?",
)


@dataclass(frozen=True)
class Workload:
    """``arms``, ``baseline`` and ``repeat`` are the usual ones; ``bar`` is what should be reached, in words."""

    name: str
    title: str
    bar: str
    width: int
    arms: tuple[str, ...]
    items: Callable[[Path], list[BenchItem]]
    repeat: int = 3
    warm_up_items: int = 3
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def baseline(self) -> str:
        return self.arms[0]


def mixed(model: Path, count: int = 64) -> list[BenchItem]:
    """Chat requests in random order: prompts of 20 to 400 tokens, answers of at most 8 to 128."""
    noise, writer = random.Random(4), _Writer(model)
    items = []
    for number in range(count):
        prompt, most = noise.randint(20, 400), noise.randint(8, 128)
        task = noise.choice(TASKS) if prompt > 40 else ""
        text = writer.text(noise, prompt - writer.overhead - writer.count(task), number)
        items.append(_item(f"chat-{number}", [_say("system", SYSTEM), _say("user", f"{task} {text}".strip())], most))
    return items


def shared_prefix(model: Path, count: int = 64) -> list[BenchItem]:
    """Questions about one document of 400 tokens, at most 40 tokens of their own, answers of at most 16."""
    noise, writer = random.Random(5), _Writer(model)
    document = writer.text(noise, 390, 0)
    words = noise.sample(sorted(set(document.split())), count)
    questions = [f"{QUESTIONS[number % len(QUESTIONS)]} Mind the word {words[number]}." for number in range(count)]
    return [
        _item(f"question-{number}", [_say("system", document), _say("user", question)], 16)
        for number, question in enumerate(questions)
    ]


def task(name: str, rows: int, max_tokens: int) -> Callable[[Path], list[BenchItem]]:
    """Copying, editing, prose and so on, as the governor's recorded streams have them."""
    return lambda model: [
        _item(f"{name}-{number}", [_say("user", PROMPTS[name](number))], max_tokens) for number in range(rows)
    ]


def all_workloads() -> tuple[Workload, ...]:
    """In the order they are run: what the table of bars names, then the governor's."""
    against_library = ("mlx_lm", "auto")
    fixed = [
        Workload("mixed", "64 chat requests, mixed lengths", "1.5 times mlx_lm", 16, against_library, mixed),
        Workload("prefix", "64 requests, one prefix of 400", "3 times mlx_lm", 16, against_library, shared_prefix),
    ]
    guessing = [
        Workload(
            f"lookup-{name}",
            f"prompt lookup, {name}, one row",
            bar,
            1,
            ("plain", "lookup"),
            task(name, 2, 80),
            repeat=4,
            warm_up_items=1,
        )
        for name, bar in (("copying", "1.8 times plain"), ("editing", "1.8 times plain"), ("prose", "0.97 times plain"))
    ]
    governed = [
        Workload(
            f"auto-{name}-{width}",
            f"auto, {name}, width {width}",
            "the best fixed arm, interval above 0.95",
            width,
            ("plain", "lookup", "auto"),
            task(name, max(2, width), 48),
            repeat=4,
            warm_up_items=max(1, width // 4),
            spec={"prefix_cache": False},  # the arms then differ in who guesses, and in nothing else
        )
        for name in ("copying", "chat", "prose")
        for width in (1, 8)
    ]
    return (*fixed, *guessing, *governed)


class _Writer:
    """Texts of so many tokens."""

    def __init__(self, model: Path) -> None:
        self._counter = TokenCounter(model)
        self._sentences = _sentences()
        #: Tokens of the template around a system and a user text, and of the system text.
        self.overhead = 14 + self.count(SYSTEM)

    def count(self, text: str) -> int:
        return self._counter.count([text])[0]

    def text(self, noise: random.Random, tokens: int, number: int) -> str:
        """Whole words of running text, as near below ``tokens`` as words allow, at least one."""
        start = noise.randrange(len(self._sentences))
        words: list[str] = []
        while len(words) <= tokens:
            words += self._sentences[start % len(self._sentences)].split()
            start += 1
        low, high = 1, len(words)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.count(" ".join(words[:middle])) <= tokens else (low, middle - 1)
        return " ".join(words[:low])


def _sentences() -> list[str]:
    folder = os.environ.get("CRANFIELD_DIR")
    if folder:
        lines = (Path(folder) / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
        texts = [str(json.loads(line)["text"]) for line in lines]
    else:
        from pydoc_data.topics import topics

        texts = [topics[name] for name in sorted(topics)]
    parts = [" ".join(part.split()) for text in texts for part in text.replace("\n\n", ". ").split(". ")]
    return [f"{part}." for part in parts if 40 <= len(part) <= 400]


def _say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _item(custom_id: str, messages: list[dict[str, str]], max_tokens: int) -> BenchItem:
    return BenchItem(custom_id=custom_id, body={"messages": messages, "max_tokens": max_tokens})
