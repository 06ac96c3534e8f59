"""``python -m pipeline.cli``: the same as the command ``pipeline``, for where no script is on PATH."""

from __future__ import annotations

from pipeline.cli import main

main()
