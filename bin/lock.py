"""Write requirements/lock.txt: one exact version of everything, for every machine this project is written for.

pip resolves each target with ``--platform`` and ``--python-version``, so Linux can lock for macOS. pip evaluates
environment markers for the machine it runs on even then; the target's own values are put in their place first. The
first target's versions bind the others, so that a version differs between targets only where it must.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "lock.txt"

#: Extras whose packages are locked. ``vlm`` brings a whole ecosystem and is resolved when it is asked for.
EXTRAS = ("postgres", "s3", "dev")

#: Brought by PyTorch's CUDA build on Linux alone; nothing here uses it, so nothing here pins it.
UNLOCKED = re.compile(r"^(nvidia-|cuda-|triton$)")

HEADER = """\
# Written by `make lock`; read by pip as constraints (-c), so only what is asked for is installed.
# torch is a reference for tests, never used by the pipeline. On Linux its default build brings CUDA with it;
# put PyTorch's own CPU index in PIP_EXTRA_INDEX_URL before `make test` to get the small one.
"""

# Runs in the child: gives pip the target's markers, then lets it run as ever.
_PIP = """
import json, sys
import pip._vendor.packaging.markers as markers
own, target = markers.default_environment(), json.loads(sys.argv.pop(1))
markers.default_environment = lambda: {**own, **target}
from pip._internal.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A machine to lock for."""

    platform: str
    python: str

    @property
    def tags(self) -> list[str]:
        if self.platform == "darwin":
            return ["macosx_14_0_arm64"]
        return [f"manylinux_2_{minor}_x86_64" for minor in range(35, 16, -1)] + ["manylinux2014_x86_64"]

    @property
    def markers(self) -> dict[str, str]:
        mac = self.platform == "darwin"
        return {
            "sys_platform": self.platform,
            "platform_system": "Darwin" if mac else "Linux",
            "platform_machine": "arm64" if mac else "x86_64",
            "platform_release": "23.0.0" if mac else "6.1.0",
            "os_name": "posix",
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_version": f"{self.python}.0",
        }


TARGETS = [Target(platform, python) for platform in ("linux", "darwin") for python in ("3.11", "3.12", "3.13")]


def main() -> int:
    requirements = read_requirements()
    versions: dict[str, dict[str, list[Target]]] = defaultdict(lambda: defaultdict(list))
    bound: dict[str, str] = {}
    for target in TARGETS:
        print(f"resolving for {target.platform}, Python {target.python} ...", file=sys.stderr)
        found = resolve(target, requirements, bound)
        for name, version in found.items():
            versions[name][version].append(target)
            bound.setdefault(name, version)
    lines = [
        f"{name}=={version}{marker(targets)}"
        for name in sorted(versions)
        for version, targets in versions[name].items()
    ]
    LOCK.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{LOCK.relative_to(ROOT)}: {len(lines)} pins")
    return 0


def read_requirements() -> list[str]:
    """What pyproject.toml asks for, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]


def resolve(target: Target, requirements: list[str], bound: dict[str, str]) -> dict[str, str]:
    """Versions by name for one target; ``bound`` are versions to keep to. Exits with pip's words where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder) / "constraints.txt", Path(folder) / "report.json"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in bound.items()), encoding="utf-8")
        arguments = ["install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary=:all:"]
        arguments += ["--target", folder, "--python-version", target.python, "--report", str(report)]
        arguments += ["--constraint", str(constraints), *(f"--platform={tag}" for tag in target.tags), *requirements]
        subprocess.run([sys.executable, "-c", _PIP, json.dumps(target.markers), *arguments], check=True)
        installs = json.loads(report.read_text(encoding="utf-8"))["install"]
    # A local version (2.13.0+cpu) names one index's build of a version; the pin must hold on all.
    found = {canonical(item["metadata"]["name"]): item["metadata"]["version"].partition("+")[0] for item in installs}
    return {name: version for name, version in found.items() if not UNLOCKED.match(name)}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def marker(targets: list[Target]) -> str:
    """The shortest marker that is true for exactly these targets; "" for all of them."""
    if len(targets) == len(TARGETS):
        return ""
    pythons = {platform: [t.python for t in targets if t.platform == platform] for platform in ("linux", "darwin")}
    if pythons["linux"] == pythons["darwin"]:
        return f" ; {python_marker(pythons['linux'])}"
    every = [t.python for t in TARGETS if t.platform == "linux"]
    clauses = [
        f"sys_platform == '{platform}'" + ("" if found == every else f" and ({python_marker(found)})")
        for platform, found in pythons.items()
        if found
    ]
    return " ; " + " or ".join(clauses)


def python_marker(pythons: list[str]) -> str:
    return " or ".join(f"python_version == '{python}'" for python in pythons)


if __name__ == "__main__":
    sys.exit(main())
