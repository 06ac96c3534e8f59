"""The environment that puts a real BLAS in front of MLX's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers import blas
from workers.blas import blas_environment

ROOT = Path(__file__).parents[2]

linux = pytest.mark.skipif(sys.platform != "linux", reason="macOS has Accelerate")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Path:
    found = Path("/somewhere/libopenblas.so")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(blas, "find_openblas", lambda: found)
    return found


def test_nothing_is_set_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas_environment({}) == {}


def test_nothing_is_set_without_an_openblas(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    monkeypatch.setattr(blas, "find_openblas", lambda: None)
    assert blas_environment({}) == {}


def test_library_comes_before_what_is_preloaded_already(library: Path) -> None:
    variables = blas_environment({"LD_PRELOAD": "/a.so:/b.so", "LD_LIBRARY_PATH": "/lib"})
    assert variables["LD_PRELOAD"] == f"{library}:/a.so:/b.so"
    assert variables["LD_LIBRARY_PATH"] == "/somewhere:/lib"


def test_environment_made_twice_is_the_same(library: Path) -> None:
    once = blas_environment({})
    assert {**once, **blas_environment(once)} == once


def test_what_the_caller_chose_stays(library: Path) -> None:
    variables = blas_environment({"OPENBLAS_CORETYPE": "Zen", "OMP_WAIT_POLICY": "ACTIVE"})
    assert not {"OPENBLAS_CORETYPE", "OMP_WAIT_POLICY"} & set(variables)


@linux
def test_child_with_it_runs_on_openblas_and_says_so() -> None:
    """MLX's own answer, since numpy brings an OpenBLAS too that serves numpy alone."""
    program = "import numpy; from workers.engines.platform import serving_blas; print(serving_blas())"

    def serving(environ: dict[str, str]) -> str:
        environ = {**environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
        ).stdout.strip()

    bare = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    real = serving({**bare, **blas_environment(bare)})
    assert real.startswith("openblas 0.")
    assert serving(bare) != real
