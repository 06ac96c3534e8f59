"""The wheel holds all four packages and works without the source tree, migrations included."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
from pipeline.db import migrate
import migrations, pipeline
assert pipeline.__file__.startswith(sys.argv[1]), pipeline.__file__
assert migrations.__file__.startswith(sys.argv[1]), migrations.__file__
url = "sqlite:///" + sys.argv[2]
migrate.upgrade(url)
migrate.check(url)
migrate.downgrade(url)
print(migrate.current(url))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_every_module_and_no_other_package(wheel: Path) -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    names = zipfile.ZipFile(wheel).namelist()
    held = {name for name in names if name.endswith(".py")}
    assert held == {str(path.relative_to(ROOT)) for package in packages for path in (ROOT / package).rglob("*.py")}
    assert "migrations/script.py.mako" in names


def test_migrations_run_from_the_wheel_with_no_source_tree(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-W", "error", str(script), str(installed), str(tmp_path / "pipeline.db")]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "None"


def test_lock_pins_every_requirement_exactly_once_for_each_marker() -> None:
    lines = [
        line for line in (ROOT / "requirements" / "lock.txt").read_text().splitlines() if line[:1] not in ("", "#")
    ]
    for line in lines:
        pin = line.partition(" ; ")[0]
        assert pin.count("==") == 1, line
        assert "+" not in pin, line
    assert len(lines) == len(set(lines))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {line.partition("==")[0] for line in lines}
    extras = project["optional-dependencies"]
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for requirement in [*project["dependencies"], *extras["dev"], *extras["postgres"]]:
        assert canonicalize_name(Requirement(requirement).name) in pinned, requirement


def test_requirements_name_no_index() -> None:
    for path in (ROOT / "requirements").iterdir():
        for line in path.read_text().splitlines():
            assert line.startswith("#") or "==" in line, line
            assert "://" not in line, line
