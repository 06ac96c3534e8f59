"""What the demo works on: chat requests of our own, and the reference texts that every Python carries."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: (id, prompt, most tokens of the answer).
REQUESTS: tuple[tuple[str, str, int], ...] = (
    ("capital-france", "What is the capital of France? Answer in one short sentence.", 24),
    ("capital-japan", "What is the capital of Japan? Answer in one short sentence.", 24),
    ("capital-kenya", "What is the capital of Kenya? Answer in one short sentence.", 24),
    ("planet-largest", "Which planet of the solar system is the largest?", 24),
    ("planet-rings", "Which planet is best known for its rings?", 24),
    ("water-boils", "At what temperature does water boil at sea level, in degrees Celsius?", 24),
    ("days-leap", "How many days does a leap year have?", 24),
    ("opposite-hot", "Give the opposite of the word 'hot'. Answer with one word.", 24),
    ("opposite-early", "Give the opposite of the word 'early'. Answer with one word.", 24),
    ("plural-mouse", "What is the plural of 'mouse', the animal?", 24),
    ("rhyme-light", "Write down three words that rhyme with 'light'.", 32),
    ("translate-thanks", "How do you say 'thank you' in Spanish?", 24),
    ("translate-morning", "How do you say 'good morning' in French?", 24),
    ("sum-small", "What is 17 plus 25? Give only the number.", 24),
    ("sort-numbers", "Sort these numbers from small to large: 9, 4, 7, 1.", 32),
    ("next-number", "Which number comes next: 2, 4, 6, 8?", 24),
    ("sentiment-good", "Is this review positive or negative? 'The tea was hot and the people were kind.'", 32),
    ("sentiment-bad", "Is this review positive or negative? 'We waited an hour and the soup was cold.'", 32),
    ("extract-city", "Which city is named here? 'Last spring Amina moved to Lisbon to study music.'", 24),
    ("extract-date", "Which date is named here? 'The library opens again on 3 May, after the repairs.'", 24),
    ("extract-colours", "List the colours in this sentence: 'A red bicycle leaned on a blue door.'", 32),
    ("shorten", "Say this in fewer words: 'At this point in time we are not able to give you an answer.'", 40),
    ("formal", "Make this sentence more formal: 'Hey, can you send me that file?'", 40),
    ("correct", "Correct the grammar: 'She go to school every days.'", 32),
    ("title", "Give a title to a story about a lighthouse keeper who finds a map.", 32),
    ("headline", "Write a headline about a town that planted a thousand trees.", 32),
    ("haiku", "Write a short poem of three lines about rain.", 48),
    ("slogan", "Write a slogan for a small bakery.", 32),
    ("email", "Write one sentence that declines a meeting politely.", 40),
    ("recipe", "Name four ingredients of a simple pancake batter.", 40),
    ("packing", "Name four things to pack for a day at the beach.", 40),
    ("explain-shadow", "Explain to a child in one sentence why there are shadows.", 48),
    ("explain-queue", "Explain in one sentence what a queue is in computing.", 48),
    ("explain-backup", "Explain in one sentence why one should make backups.", 48),
    ("python-list", "In Python, how do I get the number of elements of a list?", 48),
    ("python-loop", "In Python, what does the keyword 'break' do?", 48),
)

#: Asked of the index.
QUESTIONS: tuple[str, ...] = (
    "How do I handle an exception and clean up afterwards?",
    "How does a for loop go through a sequence?",
    "How do I define a class that inherits from another one?",
)


def write_requests(path: Path) -> int:
    """The chat requests as simple lines; gives their number."""
    lines = ({"custom_id": name, "prompt": prompt, "max_tokens": most} for name, prompt, most in REQUESTS)
    return write_lines(path, lines)


def write_corpus(path: Path, longest: int) -> int:
    """Python's own reference texts, one topic a line, those of up to ``longest`` characters; gives their number."""
    from pydoc_data.topics import topics

    return write_lines(
        path, ({"topic": name, "text": text} for name, text in sorted(topics.items()) if len(text) <= longest)
    )


def write_rerank(path: Path, answers: Iterable[dict[str, Any]]) -> int:
    """The texts that a search found, as one rerank request a question; gives their number."""
    return write_lines(
        path,
        (
            {
                "custom_id": f"question-{number}",
                "query": one["query"],
                "documents": [hit["text"] for hit in one["hits"]],
            }
            for number, one in enumerate(answers, start=1)
        ),
    )


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]
