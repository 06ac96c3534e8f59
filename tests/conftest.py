"""What every test stands on: a clean environment, and the fixtures of ``tests/fixtures``.

``make verify`` sets ``PIPELINE_TEST_FULL=1``; tests that sample read the fixture ``full_counts`` and then do all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.fixtures import databases

pytest_plugins = [
    "tests.fixtures.services",
    "tests.fixtures.restartable",
    "tests.fixtures.small_disk",
    "tests.fixtures.object_store",
    "tests.fixtures.house",
    "tests.fixtures.models",
    "tests.fixtures.encoders",
]

# Tests assert behaviour, never seconds.
hypothesis.settings.register_profile("pipeline", deadline=None)
hypothesis.settings.load_profile("pipeline")

_FULL = os.environ.get("PIPELINE_TEST_FULL") == "1"
_REPORT = os.environ.get("PIPELINE_TEST_REPORT")

# Before anything imports MLX or a tokenizer: no g++ at first use, no hub, no warning about forks.
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Test processes and their children share few cores: threads of a BLAS that wait for each other take them from the rest.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# As a worker's child does: transformers imports torch wherever it is installed. Reference values come from a process
# of their own.
sys.modules["torch"] = None  # type: ignore[assignment]

# Hundreds of processes are started; without bytecode each would compile our sources anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    databases.choose(config, items)


@pytest.fixture(scope="session")
def full_counts() -> bool:
    """Whether to do all of what an ordinary run samples."""
    return _FULL


@pytest.fixture(scope="session")
def report() -> Callable[[str], None]:
    """Say something that `make verify` writes below its table; an ordinary run drops it."""

    def write(text: str) -> None:
        if _REPORT is not None:
            with Path(_REPORT).open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    return write


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No setting of the developer's reaches a test, and no test reaches the developer's ``~/.pipeline``."""
    for name in [name for name in os.environ if name.startswith(("PIPELINE_", "AWS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(_home(tmp_path_factory)))


def _home(factory: pytest.TempPathFactory) -> Path:
    home = factory.getbasetemp() / "home"
    home.mkdir(exist_ok=True)
    return home


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder whose name is short enough for a Unix socket inside it (104 bytes on macOS)."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as folder:
        yield Path(folder)
