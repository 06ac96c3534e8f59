"""The tests that the docs point at are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["architecture.md", "scenarios.md"])
def test_named_tests_exist(page: str) -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*/test_*.py")}
    files = {path.stem for path in sources}
    functions = set(re.findall(r"^def (test_\w+)", "\n".join(sources.values()), re.MULTILINE))
    named = set(re.findall(r"\btest_\w+", (ROOT / "docs" / page).read_text(encoding="utf-8")))
    assert named
    assert not named - files - functions
