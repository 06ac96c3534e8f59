"""Home and store are their owner's alone, also for a user whose umask lets everybody in."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.private import find_exposed, make_private_file, make_private_folder
from tests.fixtures.house import House, MakeHouse

#: Runs a command with a umask of 0.
OPEN_HANDED = "import os, sys; os.umask(0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


def run(house: House, *arguments: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", OPEN_HANDED, *arguments]
    done = subprocess.run(
        command, cwd=house.log_folder, env=house.environ | environ, input=stdin, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.timeout(180)
def test_nothing_in_home_can_be_read_by_others(make_house: MakeHouse, tmp_path: Path) -> None:
    house = make_house()
    home = tmp_path / "new" / "home"
    environ = {"PIPELINE_HOME": str(home), "PIPELINE_TRUSTED_MODELS": ""}
    model = house.add_fake_model()
    lines = b"".join(b'{"text": "text %d"}\n' % number for number in range(4))
    pipeline = ("-m", "pipeline.cli")
    run(house, *pipeline, "run", "embed", "-", "--model", str(model), stdin=lines, **environ)
    submitted = run(house, *pipeline, "submit", "embed", "-", "--model", str(model), stdin=lines, **environ)
    job_id = submitted.stdout.decode().strip()
    run(house, "-m", "workers", "serve", "--until", job_id, **environ)
    index = run(house, *pipeline, "submit", "index", "docs", "--from", job_id, **environ).stdout.decode().strip()
    run(house, "-m", "workers", "serve", "--until", index, **environ)
    paths = [home, home.parent, *home.rglob("*")]
    names = {path.name for path in paths}
    assert {"pipeline.db", "store.json", "logs", "broker", "messages", "scratch", "tmp", "file-digests.json"} <= names
    assert {path.suffix for path in paths} >= {".jsonl", ".safetensors", ".faiss", ".log", ".msg"}
    assert list(find_exposed(paths)) == []
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "pipeline.db").stat().st_mode) == 0o600


@pytest.mark.timeout(120)
def test_a_database_in_use_has_private_journals(make_house: MakeHouse, tmp_path: Path) -> None:
    house = make_house()
    program = (
        "import os; os.umask(0)\n"
        "from pathlib import Path\n"
        "from pipeline.config import Settings\n"
        "from pipeline.jobs.deployment import Deployment\n"
        f"deployment = Deployment.open(Settings(home=Path({str(tmp_path / 'fresh')!r})))\n"
        "with deployment.database.write() as uow:\n"
        "    uow.workers.store_uuid()\n"
        f"    for path in Path({str(tmp_path / 'fresh')!r}).glob('pipeline.db*'):\n"
        "        print(path.name, oct(path.stat().st_mode & 0o777))\n"
    )
    done = run(house, "-c", program)
    modes = dict(line.split() for line in done.stdout.decode().splitlines())
    assert {"pipeline.db", "pipeline.db-wal", "pipeline.db-shm"} <= modes.keys()
    assert set(modes.values()) == {"0o600"}


def test_folders_and_files_are_private_at_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private_folder(tmp_path / "a" / "b" / "c")
        make_private_file(tmp_path / "a" / "file")
    finally:
        os.umask(before)
    paths = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c", tmp_path / "a" / "file"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o700, 0o700, 0o600]
    assert list(find_exposed([*paths, tmp_path / "nothing"])) == []
    paths[3].chmod(0o640)
    assert list(find_exposed(paths)) == [(paths[3], 0o640)]


@pytest.mark.timeout(120)
def test_doctor_tells_of_a_home_that_others_can_enter(make_house: MakeHouse) -> None:
    house = make_house()
    house.settings.home_path.chmod(0o755)
    said = house.pipeline("doctor", check=False).stdout.decode()
    assert f"chmod go-rwx {house.settings.home_path}" in said
