"""The command line as a user has it: processes, exit codes, data on stdout and talk on stderr; the fake engine answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ExitCode
from tests.fixtures.house import PATIENCE_S, House, MakeHouse

Done = subprocess.CompletedProcess[str]

FAST = {"reconcile_s": 0.3, "poll_s": 0.3, "part_s": 0.5}


@pytest.fixture
def local_house(make_house: MakeHouse) -> House:
    return make_house(**FAST)


def pipeline(house: House, *arguments: str, stdin: str = "", cwd: Path | None = None) -> Done:
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    folder = cwd or house.log_folder
    return subprocess.run(
        command,
        env=house.environ,
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def lines(*requests: Any) -> str:
    return "".join((request if isinstance(request, str) else json.dumps(request)) + "\n" for request in requests)


PROMPTS = lines({"custom_id": "a", "prompt": "one"}, {"custom_id": "b", "prompt": "two"})


def test_run_prints_answers_on_stdout_and_all_else_on_stderr(local_house: House) -> None:
    done = pipeline(local_house, "run", "generate", "-", "--model", "fake", stdin=PROMPTS)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["custom_id"] for answer in answers] == ["a", "b"]
    assert "completed: 2 succeeded, 0 erred of 2" in done.stderr


def test_run_needs_no_import_from_the_current_folder(local_house: House, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("workers.py", "tasks.py", "migrations.py"):
        (folder / name).write_text("raise SystemExit('this module is not the pipeline\\'s')")
    output = folder / "output.jsonl"
    script = "import sys; sys.path = [p for p in sys.path if p]; from pipeline.cli import main; main()"
    command = [sys.executable, "-P", "-c", script, "run", "generate", "-", "--model", "fake", "-o", str(output)]
    done = subprocess.run(command, env=local_house.environ, cwd=folder, input=PROMPTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(output.read_text().splitlines()) == 2
    assert done.stdout == ""


def test_submit_prints_the_id_alone_and_says_that_nobody_serves(local_house: House) -> None:
    done = pipeline(local_house, "submit", "generate", "-", "--model", "fake", stdin=PROMPTS)
    assert done.returncode == 0
    assert done.stdout.startswith("job_")
    assert len(done.stdout.splitlines()) == 1
    assert "no live worker serves the queue generate; start one with: pipeline up" in done.stderr


def test_submit_wait_without_a_worker_ends_at_once_and_keeps_the_job(local_house: House) -> None:
    done = pipeline(local_house, "submit", "generate", "-", "--model", "fake", "--wait", stdin=PROMPTS)
    assert done.returncode == ExitCode.NO_WORKER
    assert "pipeline up" in done.stderr
    assert local_house.job(done.stdout.strip()).total == 2


def test_submit_wait_follows_a_worker_and_everything_shows_the_job(local_house: House) -> None:
    with (local_house.log_folder / "up.log").open("wb") as log:
        command = [sys.executable, "-m", "pipeline.cli", "up"]
        worker = subprocess.Popen(command, env=local_house.environ, stdout=log, stderr=log, start_new_session=True)
    local_house.workers.append(worker)

    def served() -> bool:
        with local_house.deployment.database.read() as uow:
            # The command became the worker: its process id is the worker's own.
            return any(one.pid == worker.pid for one in uow.workers.live())

    local_house.wait_for(served, "the worker")
    done = pipeline(local_house, "submit", "generate", "-", "--model", "fake", "--wait", "--json", stdin=PROMPTS)
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["job"]
    assert (job["status"], job["succeeded"]) == ("completed", 2)

    status = json.loads(pipeline(local_house, "status", job["id"], "--json").stdout)
    assert status["result"] == "completed"
    assert Path(status["files"]["output"]).is_file()
    assert status["metrics"]["parent_cpu_s"] >= 0
    shown = pipeline(local_house, "status", job["id"][: len("job_") + 6]).stdout
    assert "2/2" in shown
    listed = json.loads(pipeline(local_house, "list", "--json", "--status", "completed").stdout)
    assert [row["id"] for row in listed] == [job["id"]]
    assert pipeline(local_house, "watch", job["id"], "--json").stdout.count("\n") == 1
    assert len(pipeline(local_house, "results", job["id"]).stdout.splitlines()) == 2
    assert pipeline(local_house, "errors", job["id"]).stdout == ""
    assert pipeline(local_house, "cancel", job["id"]).returncode == ExitCode.CONFLICT

    os.killpg(worker.pid, signal.SIGTERM)
    assert worker.wait(timeout=PATIENCE_S) == 0


def test_invalid_lines_are_shown_with_their_place_and_all_written(local_house: House, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(lines(*({"custom_id": f"i{n}", "prompt": n} for n in range(150))))
    done = pipeline(local_house, "submit", "generate", str(bad), "--model", "fake", cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert done.stdout == ""
    shown = [line for line in done.stderr.splitlines() if line.startswith(f"{bad}:")]
    assert len(shown) == 100
    assert shown[0].startswith(f"{bad}:1: invalid_type: ")
    assert shown[0].endswith("(prompt)")
    assert "150 of 150 lines are invalid" in done.stderr
    assert len((tmp_path / "bad.jsonl.invalid.jsonl").read_text().splitlines()) == 150
    assert json.loads(pipeline(local_house, "list", "--json").stdout) == []


def test_skip_invalid_makes_them_items_that_err(local_house: House) -> None:
    text = PROMPTS + lines({"custom_id": "c"})
    done = pipeline(local_house, "run", "generate", "-", "--model", "fake", "--skip-invalid", stdin=text)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    job = json.loads(pipeline(local_house, "list", "--json").stdout)[0]
    errors = [json.loads(line) for line in pipeline(local_house, "errors", job["id"]).stdout.splitlines()]
    assert [error["custom_id"] for error in errors] == ["c"]
    assert f"pipeline errors {job['id']}" in done.stderr


def test_job_whose_items_all_err_has_its_own_exit_code(local_house: House) -> None:
    text = lines({"custom_id": "c"}, {"custom_id": "d"})
    done = pipeline(local_house, "run", "generate", "-", "--model", "fake", "--skip-invalid", stdin=text)
    assert done.returncode == ExitCode.ALL_ERRORED
    assert done.stdout == ""


def test_spec_out_of_range_is_refused_before_the_file_is_read(local_house: House) -> None:
    done = pipeline(local_house, "submit", "generate", "-", "--model", "fake", "--temperature", "9", stdin="not json\n")
    assert done.returncode == ExitCode.USAGE
    assert "sampling.temperature" in done.stderr
    assert "invalid_json" not in done.stderr


def test_unknown_model_is_one_clear_error(local_house: House) -> None:
    done = pipeline(local_house, "submit", "generate", "-", "--model", "nowhere", stdin=PROMPTS)
    assert done.returncode == ExitCode.NOT_FOUND
    assert "error: no model 'nowhere' on this host" in done.stderr
    assert "Traceback" not in done.stderr


def test_idempotency_key_gives_the_same_job(local_house: House) -> None:
    arguments = ("submit", "generate", "-", "--model", "fake", "--idempotency-key", "night-1")
    first = pipeline(local_house, *arguments, stdin=PROMPTS)
    second = pipeline(local_house, *arguments, stdin=PROMPTS)
    assert first.stdout == second.stdout
    assert "the idempotency key is known" in second.stderr


def test_cancel_without_a_worker_ends_the_job_by_itself(local_house: House) -> None:
    job = pipeline(local_house, "submit", "generate", "-", "--model", "fake", stdin=PROMPTS).stdout.strip()
    assert pipeline(local_house, "results", job).returncode == ExitCode.CONFLICT
    done = pipeline(local_house, "cancel", job)
    assert done.returncode == 0, done.stderr
    assert local_house.job(job).status == "cancelled"
    assert pipeline(local_house, "watch", job).returncode == ExitCode.JOB_CANCELLED


def test_run_that_is_interrupted_leaves_no_process_and_keeps_the_job(local_house: House) -> None:
    local_house.add_fake_model(name="slow", delay_s=2.0)
    text = lines(*({"prompt": f"p{number}"} for number in range(200)))
    command = [sys.executable, "-m", "pipeline.cli", "run", "generate", "-", "--model", "slow"]
    process = subprocess.Popen(
        command,
        env=local_house.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.close()
    process.stdin = None

    def worker_pid() -> int | None:
        with local_house.deployment.database.read() as uow:
            live = uow.workers.live()
        return live[0].pid if live else None

    pid = local_house.wait_for(worker_pid, "the local worker")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, said
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not json.loads(pipeline(local_house, "list", "--json").stdout)[0]["completed_at"]


def test_index_of_a_job_that_is_not_there_is_not_found(local_house: House) -> None:
    assert pipeline(local_house, "submit", "index", "docs", "--from", "job_nothere").returncode == ExitCode.NOT_FOUND
    assert pipeline(local_house, "search", "docs", "why?").returncode == ExitCode.NOT_FOUND


def test_models_are_listed_inspected_and_a_broken_one_harms_no_other(local_house: House) -> None:
    (local_house.settings.models_path / "broken").mkdir()
    done = pipeline(local_house, "models", "list", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["fake"]["model_type"] == "pipeline_fake"
    assert "config.json" in rows["broken"]["error"]
    facts = json.loads(pipeline(local_house, "models", "inspect", "fake", "--json").stdout)
    assert len(facts["digest"]) == 64


def test_doctor_reports_each_part_and_exits_by_the_worst(local_house: House) -> None:
    done = pipeline(local_house, "doctor", "--json")
    findings = {row["subject"]: row for row in json.loads(done.stdout)}
    assert {"python", "database", "store", "broker", "workers", "engine", "models", "versions"} <= set(findings)
    assert findings["store"]["level"] == "ok"
    assert findings["workers"]["level"] == "warn"
    failed = any(row["level"] == "fail" for row in findings.values())
    assert done.returncode == (ExitCode.UNAVAILABLE if failed else 0)
    assert not failed, done.stdout


def test_doctor_fails_on_a_store_of_another_database(make_house: MakeHouse) -> None:
    first, second = make_house(**FAST), make_house(**FAST)
    second.environ["PIPELINE_STORE_URL"] = first.settings.resolved_store_url
    done = pipeline(second, "doctor", "--json")
    findings = {row["subject"]: row for row in json.loads(done.stdout)}
    assert done.returncode == ExitCode.UNAVAILABLE
    assert findings["store"]["level"] == "fail"
    assert "not the store of this database" in findings["store"]["text"]
