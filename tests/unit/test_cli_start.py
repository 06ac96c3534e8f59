"""The start of the command line: what it imports, what its help says, how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.exits import EPILOG, MEANINGS
from pipeline.cli.root import root
from pipeline.errors import ExitCode

ROOT = Path(__file__).parents[2]

#: What `--help` must not pay for.
HEAVY = {
    "mlx",
    "faiss",
    "sqlalchemy",
    "alembic",
    "celery",
    "kombu",
    "transformers",
    "tokenizers",
    "numpy",
    "rich",
    "pydantic",
    "yaml",
}


def start(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def imported_by(program: str, **environ: str) -> set[str]:
    """Top-level names of all modules that a program has imported at its end."""
    code = f"import sys, json, atexit\natexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


@pytest.mark.parametrize(
    "program", ["import pipeline.cli", "from pipeline.cli import main; main(['--help'])"], ids=["import", "help"]
)
def test_start_imports_nothing_heavy(program: str) -> None:
    assert imported_by(program) & HEAVY == set()


def test_submit_help_imports_no_engine_database_or_queue() -> None:
    found = imported_by("from pipeline.cli import main; main(['config', '--help'])")
    assert found & (HEAVY - {"pydantic", "yaml"}) == set()


def test_a_command_on_a_database_of_this_version_imports_no_alembic_no_numpy_and_no_engine(tmp_path: Path) -> None:
    environ = {"PIPELINE_HOME": str(tmp_path / "home")}
    assert start("db", "upgrade", **environ).returncode == 0
    found = imported_by("from pipeline.cli import main; main(['list'])", **environ)
    assert "sqlalchemy" in found
    assert found & {"alembic", "mako", "numpy", "mlx", "faiss", "transformers", "tokenizers"} == set()


def test_cycles_are_collected_again_once_a_command_has_its_database(tmp_path: Path) -> None:
    program = "import atexit, gc; atexit.register(lambda: print(gc.isenabled())); from pipeline.cli import main; "
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PIPELINE_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", program + "main(['list'])"], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "True"


def test_help_lists_every_command_and_every_exit_code() -> None:
    done = start("--help")
    assert done.returncode == 0
    for name in root.lazy:  # type: ignore[attr-defined]
        assert f"\n  {name} " in done.stdout
    for code, meaning in MEANINGS.items():
        assert f"{code:>3}  {meaning}" in EPILOG
    assert set(MEANINGS) == set(ExitCode)


@pytest.mark.parametrize("name", sorted(root.lazy))  # type: ignore[attr-defined]
def test_command_loads_and_its_help_begins_as_the_list_says(name: str) -> None:
    lazy = root.lazy[name]  # type: ignore[attr-defined]
    command = lazy.load()
    assert command.name == name
    assert (command.help or "").split("\n")[0].startswith(lazy.summary.rstrip("."))


def test_unknown_command_is_a_usage_error_with_the_nearest_name() -> None:
    done = start("statsu")
    assert done.returncode == ExitCode.USAGE
    assert "did you mean status?" in done.stderr
    assert done.stdout == ""


def test_expected_error_has_no_traceback_and_its_own_code(tmp_path: Path) -> None:
    done = start("status", "job_0123", PIPELINE_HOME=str(tmp_path))
    assert done.returncode == ExitCode.NOT_FOUND
    assert done.stderr.splitlines() == ["error: no job job_0123", "hint: `pipeline list` shows the jobs"]


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = start("--debug", "status", "job_0123", PIPELINE_HOME=str(tmp_path))
    assert done.returncode == ExitCode.NOT_FOUND
    assert "Traceback" in done.stderr


def test_cause_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where a folder should be")
    done = start("list", PIPELINE_HOME=str(tmp_path / "home"))
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert all(line.startswith(("error: ", "cause: ", "hint: ")) for line in done.stderr.splitlines())


def test_unreachable_database_exits_unavailable_and_hides_the_password() -> None:
    url = "postgresql+psycopg://user:secret@127.0.0.1:1/nothing"
    done = start("list", PIPELINE_DATABASE_URL=url)
    assert done.returncode == ExitCode.UNAVAILABLE
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PIPELINE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "pipeline.cli", "config", "show"]
    done = subprocess.run(command, env=env, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_config_show_tells_origins_and_masks_secrets(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("slots: 3\nmodels: {tiny: /models/tiny}\n")
    environ = {"PIPELINE_BROKER_URL": "redis://:hunter2@broker:6379/0", "PIPELINE_HOME": str(tmp_path)}
    shown = json.loads(start("--config", str(file), "config", "show", "--json", **environ).stdout)
    assert shown["slots"] == {"value": 3, "origin": str(file)}
    assert shown["models"]["value"] == {"tiny": "/models/tiny"}
    assert shown["broker_url"] == {"value": "redis://:***@broker:6379/0", "origin": "env PIPELINE_BROKER_URL"}
    assert shown["lease_s"]["origin"] == "default"
    table = start("--config", str(file), "config", "show", **environ).stdout
    assert "hunter2" not in table
    assert "tiny=/models/tiny" in table


def test_unknown_setting_is_refused_with_the_nearest_name() -> None:
    done = start("config", "show", PIPELINE_SLOT="2")
    assert done.returncode == ExitCode.USAGE
    assert "did you mean slots?" in done.stderr


def test_db_commands_make_and_name_the_schema(tmp_path: Path) -> None:
    environ = {"PIPELINE_HOME": str(tmp_path / "home")}
    assert start("db", "current", **environ).stdout == "none\n"
    missing = start("db", "check", **environ)
    assert missing.returncode == ExitCode.UNAVAILABLE
    assert "pipeline db upgrade" in missing.stderr
    made = start("db", "upgrade", **environ).stdout
    assert start("db", "check", **environ).stdout == made
    again = start("db", "upgrade", "--json", **environ)
    assert json.loads(again.stdout)["revision"] == made.strip()
    assert "up to date" in again.stderr


def test_worker_refuses_a_queue_that_does_not_exist() -> None:
    done = start("worker", "--queues", "generate,nonsense")
    assert done.returncode == ExitCode.USAGE
    assert "no queue 'nonsense'" in done.stderr
