"""Fail if the migrations do not make the tables that the models describe, on a fresh SQLite."""

from __future__ import annotations

import sys
import tempfile

from pipeline.db import migrate


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/pipeline.db"
        migrate.upgrade(url)
        differences = migrate.find_differences(url)
    for difference in differences:
        print(difference)
    if differences:
        print("models and migrations differ: write a migration with `.venv/bin/python bin/revision.py SLUG`")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
