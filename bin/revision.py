"""Write a new migration: ``bin/revision.py SLUG``. Compares a fresh SQLite at head with the models."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from pipeline.db import migrate

ROOT = Path(__file__).resolve().parent.parent


def main(slug: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/pipeline.db"
        if any((ROOT / "migrations" / "versions").glob("*.py")):
            migrate.upgrade(url)
        migrate.write_revision(url, slug)
    newest = max((ROOT / "migrations" / "versions").glob("*.py"))
    lines = newest.read_text(encoding="utf-8").splitlines(keepends=True)
    newest.write_text("".join(line for line in lines if "# ###" not in line), encoding="utf-8")
    versions = str(ROOT / "migrations" / "versions")
    subprocess.run(["ruff", "format", "--quiet", versions], check=True)
    subprocess.run(["ruff", "check", "--fix", "--quiet", versions], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
